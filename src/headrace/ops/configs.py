"""Settings of topics, brokers, groups and whatever else has some: described, set and unset."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from headrace.client.columnar.retry import refused
from headrace.client.core.topics import alter_configs_request, describe_configs_request
from headrace.client.errors import ClientError
from headrace.config.setting import ConfigSource
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode

from .operations import Operations

ALL_BROKERS: Final = ""
"""The name of the settings that all brokers have, unless one has its own."""


class ConfigKind(IntEnum):
    """What has settings, numbered as in DescribeConfigs."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A setting as it is in force. `value` is None where brokers keep it to themselves."""

    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None


class ConfigOperations(Operations):
    """The settings of one cluster. Each method raises `ClientError`."""

    def describe_configs(self, kind: ConfigKind, name: str, settings: Iterable[str] = ()) -> list[ConfigEntry]:
        """These settings, or all, by name."""
        wanted = sorted(set(settings)) or None
        request = {**describe_configs_request(kind, [name], wanted), "include_documentation": True}
        (result,) = self._ask_owner(kind, name, ApiKey.DESCRIBE_CONFIGS, request).results
        _check(kind, name, result)
        return sorted((_entry(each) for each in result.configs), key=lambda entry: entry.name)

    def alter_configs(
        self, kind: ConfigKind, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set settings, and take back those that are None; others stay as they are."""
        request = {**alter_configs_request(kind, [name], changes), "validate_only": validate_only}
        (result,) = self._ask_owner(kind, name, ApiKey.INCREMENTAL_ALTER_CONFIGS, request).responses
        _check(kind, name, result)

    def _ask_owner(self, kind: ConfigKind, name: str, api: ApiKey, request: Mapping[str, Any]) -> Any:
        """What only one broker knows is asked of that one."""
        if kind not in (ConfigKind.BROKER, ConfigKind.BROKER_LOGGER) or name == ALL_BROKERS:
            return self._ask(api, request)
        alive = self._cluster.brokers()
        if not name.isdecimal() or int(name) not in alive:
            listed = ", ".join(map(str, alive))
            raise ClientError(f"there is no broker '{name}' that is alive; there are {listed}", "BROKER_NOT_AVAILABLE")
        self._asked_broker = int(name)
        try:
            return self._ask(api, request)
        finally:
            self._asked_broker = None


def _check(kind: ConfigKind, name: str, result: Any) -> None:
    if result.error_code is not ErrorCode.none:
        shown = kind.name.lower().replace("_", " ")
        raise refused(result.error_code, f"{shown} '{name}'" if name else "all brokers", result.error_message)


def _entry(config: Any) -> ConfigEntry:
    source = int(config.config_source)
    known = {member.value: member.name.lower().replace("_", " ") for member in ConfigSource}
    return ConfigEntry(
        name=config.name,
        value=None if config.is_sensitive else config.value,
        source=known.get(source, str(source)),
        is_default=source == ConfigSource.DEFAULT,
        is_read_only=bool(config.read_only),
        is_sensitive=bool(config.is_sensitive),
        documentation=getattr(config, "documentation", None),
    )
