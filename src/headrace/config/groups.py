"""The settings of a broker that concern groups and their offsets, and those that a group can have itself."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from headrace.protocol.errors import CodedError, ErrorCode

from .names import nearest, shown
from .setting import MAX_INT, ConfigError, Setting, Type, ValueRule, at_least, between, one_of, some_of
from .share import LETTER_TOPICS_PREFIX, is_letter_topic, is_offset_reset


class Values(Protocol):
    """Settings of a broker in force, by Kafka's names: a `BrokerConfig`, or a dictionary."""

    def __getitem__(self, name: str, /) -> Any: ...


def _group(name: str, kind: Type, default: str, rule: ValueRule, doc: str, importance: str = "medium") -> Setting:
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


def _own(name: str, kind: Type, default: str, rule: ValueRule | None, broker_name: str | None, doc: str) -> Setting:
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
        _own(
            "errors.deadletterqueue.copy.record.enable",
            Type.BOOLEAN,
            "false",
            None,
            None,
            "Whether dead letters of the share group have the whole record (key, value, headers), and not only the "
            "place that it was at.",
        ),
        _own(
            "errors.deadletterqueue.topic.name",
            Type.STRING,
            "",
            ValueRule(holds=is_letter_topic, words="empty, or the name of a topic that does not begin with __"),
            None,
            "The topic for the dead letters of the share group: what a member rejects, or was delivered too often. It "
            "takes them with errors.deadletterqueue.group.enable=true. Without one such records are given up.",
        ),
        _own(
            "headrace.share.key.interval.ms",
            Type.INT,
            "0",
            at_least(0),
            None,
            "The least time between two deliveries of records with the same key to the share group: 100 are ten a "
            "second of each key. Records without a key do not wait.",
        ),
        _own(
            "headrace.share.order",
            Type.STRING,
            "none",
            one_of("none", "key"),
            None,
            "With key, no record is delivered to the share group before all earlier ones of its partition with the "
            "same key are accepted or given up. Records without a key do not wait.",
        ),
        _own(
            "headrace.share.priority.enable",
            Type.BOOLEAN,
            "false",
            None,
            None,
            "Whether records with a higher priority are delivered to the share group first: a header headrace.priority "
            "of 0 to 9, 4 without one. They are chosen among the 2000 that follow the group's place in a partition.",
        ),
        _own(
            "headrace.share.retry.backoff.max.ms",
            Type.INT,
            "60000",
            at_least(0),
            None,
            "How long a record of the share group waits at most until it is delivered again.",
        ),
        _own(
            "headrace.share.retry.backoff.ms",
            Type.INT,
            "0",
            at_least(0),
            None,
            "How long a record of the share group that was released, or whose lock has expired, waits after its first "
            "delivery until it is delivered again; after each further delivery twice as long.",
        ),
        _own(
            "share.auto.offset.reset",
            Type.STRING,
            "latest",
            ValueRule(
                holds=is_offset_reset, words="earliest, latest, or by_duration: and a duration, as by_duration:PT12H"
            ),
            None,
            "Where a share group begins in a partition that it comes to for the first time.",
        ),
        _own(
            "share.delivery.count.limit",
            Type.INT,
            "5",
            at_least(2),
            "group.share.delivery.count.limit",
            "How often a record is delivered to the share group at most, before it is given up.",
        ),
        _own(
            "share.heartbeat.interval.ms",
            Type.INT,
            "5000",
            at_least(1),
            "group.share.heartbeat.interval.ms",
            "How often members of the share group are told to send a heartbeat.",
        ),
        _own(
            "share.isolation.level",
            Type.STRING,
            "read_uncommitted",
            one_of("read_committed", "read_uncommitted"),
            None,
            "Whether the share group gets records of transactions once they are committed only.",
        ),
        _own(
            "share.partition.max.record.locks",
            Type.INT,
            "2000",
            at_least(100),
            "group.share.partition.max.record.locks",
            "How many records of a partition the members of the share group may have out at a time.",
        ),
        _own(
            "share.record.lock.duration.ms",
            Type.INT,
            "30000",
            at_least(1_000),
            "group.share.record.lock.duration.ms",
            "How long a record is a member's own before it is delivered again, unless it says what became of it.",
        ),
        _own(
            "share.renew.acknowledge.enable",
            Type.BOOLEAN,
            "true",
            None,
            None,
            "Whether members of the share group may renew the locks of records that they are still at work with.",
        ),
        _own(
            "share.session.timeout.ms",
            Type.INT,
            "45000",
            at_least(1),
            "group.share.session.timeout.ms",
            "How long a member of the share group may be silent before it is taken out.",
        ),
    )
}
"""What can be set on a group, by name."""
_BOUNDED: Final = frozenset(
    {
        "consumer.heartbeat.interval.ms",
        "consumer.session.timeout.ms",
        "share.delivery.count.limit",
        "share.heartbeat.interval.ms",
        "share.partition.max.record.locks",
        "share.record.lock.duration.ms",
        "share.session.timeout.ms",
    }
)
"""Those that the broker bounds, by settings with `min` and `max` in the middle of their names."""


def _bounds(name: str) -> tuple[str, str]:
    """The settings of the broker that hold one of a group within bounds."""
    kind, _, rest = name.partition(".")
    return f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"


def group_setting(name: str) -> Setting:
    """The setting of that name that a group can have; INVALID_CONFIG when there is none."""
    setting = OWN_GROUP_SETTINGS.get(name)
    if setting is None:
        raise CodedError(
            ErrorCode.invalid_config, f"Unknown group config name: {shown(name)}{nearest(name, OWN_GROUP_SETTINGS)}"
        )
    return setting


def group_value(name: str, given: Mapping[str, str], broker: Values) -> Any:
    """The value in force of a group's setting: its own within the bounds that the broker has set, else the broker's."""
    setting = OWN_GROUP_SETTINGS[name]
    text = given.get(name)
    if text is None:
        return setting.parse(setting.default or "") if setting.broker_name is None else broker[setting.broker_name]
    value = setting.parse(text)
    if name not in _BOUNDED:
        return value
    lowest, highest = _bounds(name)
    return min(max(value, broker[lowest]), broker[highest])


def validate_group_overrides(overrides: Mapping[str, str], broker: Callable[[str], Any]) -> None:
    """Raises `CodedError` (INVALID_CONFIG) unless a group may have these, within the bounds that the broker has set."""
    try:
        values: dict[str, Any] = {name: group_setting(name).parse(text) for name, text in overrides.items()}
    except ConfigError as error:
        raise CodedError(ErrorCode.invalid_config, str(error)) from None
    for name in sorted(_BOUNDED & values.keys()):
        lowest, highest = _bounds(name)
        if not broker(lowest) <= values[name] <= broker(highest):
            raise CodedError(
                ErrorCode.invalid_config,
                f"{name} must be between {lowest} ({broker(lowest)}) and {highest} ({broker(highest)}), which are set "
                "on the broker",
            )
    letters, prefix = values.get("errors.deadletterqueue.topic.name"), broker(LETTER_TOPICS_PREFIX) or ""
    if letters and not letters.startswith(prefix):
        raise CodedError(
            ErrorCode.invalid_config,
            f"errors.deadletterqueue.topic.name {letters} must begin with '{prefix}', which is set on the broker "
            f"({LETTER_TOPICS_PREFIX})",
        )
    assignor = values.get("consumer.assignor")
    if assignor is not None and assignor not in broker("group.consumer.assignors"):
        raise CodedError(ErrorCode.invalid_config, f"consumer.assignor {assignor} is not in group.consumer.assignors")
