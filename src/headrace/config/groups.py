"""The settings of a broker that concern groups and their offsets, and those that a group can have itself."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from headrace.protocol.errors import CodedError, ErrorCode

from .names import nearest, shown
from .setting import MAX_INT, ConfigError, Rule, Setting, Type, at_least, between, one_of, some_of


def _group(name: str, kind: Type, default: str, rule: Rule, doc: str, importance: str = "medium") -> Setting:
    return Setting(name=name, type=kind, default=default, rule=rule, doc=doc, importance=importance)


GROUP_SETTINGS: Final = (
    _group(
        "group.consumer.assignors",
        Type.LIST,
        "uniform,range",
        some_of("uniform", "range"),
        "The assignors that members of the consumer protocol may ask for; the first is for groups in which none does.",
    ),
    _group(
        "group.consumer.heartbeat.interval.ms",
        Type.INT,
        "5000",
        at_least(1),
        "How often members of the consumer protocol are told to send a heartbeat.",
    ),
    _group(
        "group.consumer.max.heartbeat.interval.ms",
        Type.INT,
        "15000",
        at_least(1),
        "The longest heartbeat interval that a group can be given.",
    ),
    _group(
        "group.consumer.max.session.timeout.ms",
        Type.INT,
        "60000",
        at_least(1),
        "The longest session timeout that a group of the consumer protocol can be given.",
    ),
    _group(
        "group.consumer.max.size",
        Type.INT,
        str(MAX_INT),
        at_least(1),
        "The most members of one group of the consumer protocol.",
    ),
    _group(
        "group.consumer.migration.policy",
        Type.STRING,
        "bidirectional",
        one_of("bidirectional", "upgrade", "downgrade", "disabled"),
        "Whether groups change from the classic to the consumer protocol (upgrade) when a member of the new one joins, "
        "and back (downgrade) when the last one leaves.",
    ),
    _group(
        "group.consumer.min.heartbeat.interval.ms",
        Type.INT,
        "5000",
        at_least(1),
        "The shortest heartbeat interval that a group can be given.",
    ),
    _group(
        "group.consumer.min.session.timeout.ms",
        Type.INT,
        "45000",
        at_least(1),
        "The shortest session timeout that a group of the consumer protocol can be given.",
    ),
    _group(
        "group.consumer.session.timeout.ms",
        Type.INT,
        "45000",
        at_least(1),
        "How long a member of the consumer protocol may be silent before its partitions go to others.",
    ),
    _group(
        "group.initial.rebalance.delay.ms",
        Type.INT,
        "3000",
        at_least(0),
        "How long the first rebalance of an empty group waits for more members. 0 starts each one at once.",
    ),
    _group("group.max.size", Type.INT, str(MAX_INT), at_least(1), "The most members of one group."),
    _group(
        "group.max.session.timeout.ms",
        Type.INT,
        "1800000",
        at_least(1),
        "The longest session timeout that a member can ask for.",
    ),
    _group(
        "group.min.session.timeout.ms",
        Type.INT,
        "6000",
        at_least(1),
        "The shortest session timeout that a member can ask for. Short ones find failures soon, for more heartbeats.",
    ),
    _group(
        "offset.metadata.max.bytes",
        Type.INT,
        "4096",
        between(0, 8191),
        "The longest text that can be kept with a committed offset.",
        "high",
    ),
    _group(
        "offsets.retention.check.interval.ms",
        Type.LONG,
        "600000",
        at_least(1),
        "How often groups are looked at for offsets that have expired.",
        "high",
    ),
    _group(
        "offsets.retention.minutes",
        Type.INT,
        "10080",
        at_least(1),
        "How long the offsets of a group are kept after its last member left, and those of topics that it no longer "
        "reads after their last commit.",
        "high",
    ),
    _group(
        "offsets.topic.num.partitions",
        Type.INT,
        "50",
        at_least(1),
        "The partitions of the internal topic that holds groups and offsets. Not to be changed once it exists.",
        "high",
    ),
    _group(
        "offsets.topic.replication.factor",
        Type.SHORT,
        "3",
        at_least(1),
        "The replicas of the internal topic of groups; as many as there are brokers, where those are fewer. With one "
        "it is made with flush.messages=1.",
        "high",
    ),
    _group(
        "offsets.topic.segment.bytes",
        Type.INT,
        "104857600",
        at_least(14),
        "The size of the segments of the internal topic of groups: small ones are compacted, and loaded, sooner.",
        "high",
    ),
)


def _own(name: str, kind: Type, default: str, rule: Rule, broker_name: str, doc: str) -> Setting:
    return Setting(name=name, type=kind, default=default, rule=rule, doc=doc, dynamic=True, broker_name=broker_name)


OWN_GROUP_SETTINGS: Final[dict[str, Setting]] = {
    setting.name: setting
    for setting in (
        _own(
            "consumer.assignor",
            Type.STRING,
            "uniform",
            one_of("uniform", "range"),
            "group.consumer.assignors",
            "The assignor of a group of the consumer protocol in which no member asks for one.",
        ),
        _own(
            "consumer.heartbeat.interval.ms",
            Type.INT,
            "5000",
            at_least(1),
            "group.consumer.heartbeat.interval.ms",
            "How often members of the consumer protocol are told to send a heartbeat.",
        ),
        _own(
            "consumer.session.timeout.ms",
            Type.INT,
            "45000",
            at_least(1),
            "group.consumer.session.timeout.ms",
            "How long a member of the consumer protocol may be silent before its partitions go to others.",
        ),
    )
}
"""What can be set on a group, by name."""
_BOUNDED: Final = ("heartbeat.interval.ms", "session.timeout.ms")


def group_setting(name: str) -> Setting:
    """The setting of that name that a group can have; INVALID_CONFIG when there is none."""
    setting = OWN_GROUP_SETTINGS.get(name)
    if setting is None:
        raise CodedError(
            ErrorCode.invalid_config, f"Unknown group config name: {shown(name)}{nearest(name, OWN_GROUP_SETTINGS)}"
        )
    return setting


def validate_group_overrides(overrides: Mapping[str, str], broker: Callable[[str], Any]) -> None:
    """Raises `CodedError` (INVALID_CONFIG) unless a group may have these, within the bounds that the broker has set."""
    try:
        values = {name: group_setting(name).parse(text) for name, text in overrides.items()}
    except ConfigError as error:
        raise CodedError(ErrorCode.invalid_config, str(error)) from None
    for kind in _BOUNDED:
        value = values.get(f"consumer.{kind}")
        low, high = broker(f"group.consumer.min.{kind}"), broker(f"group.consumer.max.{kind}")
        if isinstance(value, int) and not low <= value <= high:
            raise CodedError(
                ErrorCode.invalid_config,
                f"consumer.{kind} must be between group.consumer.min.{kind} ({low}) and group.consumer.max.{kind} "
                f"({high}), which are set on the broker",
            )
    assignor = values.get("consumer.assignor")
    if assignor is not None and assignor not in broker("group.consumer.assignors"):
        raise CodedError(ErrorCode.invalid_config, f"consumer.assignor {assignor} is not in group.consumer.assignors")
