"""Settings as DescribeConfigs and CreateTopics answer them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.cluster.image import Topic
from headrace.config import (
    CLIENT_METRICS_SETTINGS,
    OWN_GROUP_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    ConfigSource,
    FoundValue,
    Setting,
    Value,
    broker_setting,
    effective_topic,
    render,
)


def describe_topic_configs(
    config: BrokerConfig, topic: Topic, *, synonyms: bool = False, documentation: bool = False
) -> list[dict[str, Any]]:
    """Every setting of a topic with the value in force; obsolete ones only where they are set."""
    values = effective_topic(topic.configs, config)
    return [
        _describe(
            setting,
            values[name],
            config.trace_topic(name, topic.configs),
            synonyms=synonyms,
            documentation=documentation,
            read_only=False,
        )
        for name, setting in TOPIC_SETTINGS.items()
        if not setting.obsolete or name in topic.configs
    ]


def describe_broker_configs(
    config: BrokerConfig, *, synonyms: bool = False, documentation: bool = False
) -> list[dict[str, Any]]:
    """Every setting of this broker with the value in force; obsolete ones only where they are set."""
    return [
        _describe(
            setting,
            config.in_force(setting),
            config.trace(setting.name),
            synonyms=synonyms,
            documentation=documentation,
            read_only=not setting.dynamic,
        )
        for setting in config.settings()
        if not setting.obsolete or any(found.source is not ConfigSource.DEFAULT for found in config.trace(setting.name))
    ]


def describe_group_configs(
    config: BrokerConfig, given: Mapping[str, str], *, synonyms: bool = False, documentation: bool = False
) -> list[dict[str, Any]]:
    """Every setting that a group can have, with the value in force."""
    return [
        _describe(
            setting,
            setting.parse(given[name]) if name in given else _from_broker(config, setting),
            _trace_group(config, setting, given),
            synonyms=synonyms,
            documentation=documentation,
            read_only=False,
        )
        for name, setting in OWN_GROUP_SETTINGS.items()
    ]


def describe_client_metrics(
    given: Mapping[str, str], *, synonyms: bool = False, documentation: bool = False
) -> list[dict[str, Any]]:
    """Every setting of a subscription to the metrics of clients."""
    return [
        _describe(
            setting,
            setting.parse(given.get(name, setting.default or "")),
            _trace_client_metrics(setting, given),
            synonyms=synonyms,
            documentation=documentation,
            read_only=False,
        )
        for name, setting in CLIENT_METRICS_SETTINGS.items()
    ]


def _trace_client_metrics(setting: Setting, given: Mapping[str, str]) -> list[FoundValue]:
    name = setting.name
    own = [FoundValue(name, given[name], ConfigSource.DYNAMIC_CLIENT_METRICS)] if name in given else []
    return [*own, FoundValue(name, setting.default or "", ConfigSource.DEFAULT)]


def _from_broker(config: BrokerConfig, setting: Setting) -> Value:
    """What the broker has for groups that have nothing themselves; the first of a list."""
    if setting.broker_name is None:
        return setting.parse(setting.default or "")
    value: Value = config[setting.broker_name]
    return value[0] if isinstance(value, tuple) else value


def _trace_group(config: BrokerConfig, setting: Setting, given: Mapping[str, str]) -> list[FoundValue]:
    own = [FoundValue(setting.name, given[setting.name], ConfigSource.DYNAMIC_GROUP)] if setting.name in given else []
    if setting.broker_name is None:
        return [*own, FoundValue(setting.name, setting.default or "", ConfigSource.DEFAULT)]
    return own + config.trace(setting.broker_name)


def describe_given(
    given: Iterable[tuple[str, str]], *, synonyms: bool = False, documentation: bool = False
) -> list[dict[str, Any]]:
    """The settings that are set for all brokers, and nothing else: they have no values in force of their own."""
    return [
        _describe(
            broker_setting(name),
            broker_setting(name).parse(text),
            [FoundValue(name, text, ConfigSource.DYNAMIC_DEFAULT_BROKER)],
            synonyms=synonyms,
            documentation=documentation,
            read_only=False,
        )
        for name, text in given
    ]


def _describe(
    setting: Setting,
    value: Value,
    values: Sequence[FoundValue],
    *,
    synonyms: bool,
    documentation: bool,
    read_only: bool,
) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": None if setting.sensitive else render(value),
        "read_only": read_only,
        "config_source": values[0].source if values else ConfigSource.DEFAULT,
        "is_sensitive": setting.sensitive,
        "synonyms": [_synonym(setting, each) for each in values] if synonyms else (),
        "config_type": setting.type.value,
        "documentation": setting.doc if documentation else None,
    }


def _synonym(setting: Setting, found: FoundValue) -> dict[str, Any]:
    return {"name": found.name, "value": None if setting.sensitive else found.text, "source": found.source}
