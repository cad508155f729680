"""The settings of a broker that concern share groups."""

import re
from typing import Final

from .setting import Setting, Type, ValueRule, at_least, between, some_of

TAKES_LETTERS: Final = "errors.deadletterqueue.group.enable"
"""The setting of a topic that takes dead letters."""
LETTER_TOPICS_PREFIX: Final = "errors.deadletterqueue.topic.name.prefix"
LETTER_TOPICS_CREATED: Final = "errors.deadletterqueue.auto.create.topics.enable"
BY_DURATION: Final = "by_duration:"
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_DURATION: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d{1,9}))?S)?)?", re.IGNORECASE)


def duration_ms(text: str) -> int | None:
    """The milliseconds of a duration as ISO 8601 writes it, in days and less (`P1DT12H`); None where it is none."""
    match = _DURATION.fullmatch(text)
    if match is None or text[-1] in "PTpt":
        return None
    days, hours, minutes, seconds, fraction = (part or "0" for part in match.groups())
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 1000 + int(fraction.ljust(9, "0")) // 1_000_000


def is_offset_reset(value: object) -> bool:
    """Whether a text says where a share group begins."""
    text = str(value)
    is_duration = text.startswith(BY_DURATION) and duration_ms(text.removeprefix(BY_DURATION)) is not None
    return text in ("earliest", "latest") or is_duration


def is_letter_topic(value: object) -> bool:
    """Whether a text names a topic that may have dead letters, or none at all."""
    text = str(value)
    is_name = _TOPIC.fullmatch(text) is not None and text not in (".", "..") and not text.startswith("__")
    return not text or is_name


def _share(name: str, kind: Type, default: str, rule: ValueRule, doc: str, importance: str = "medium") -> Setting:
    return Setting(name=name, type=kind, default=default, rule=rule, doc=doc, importance=importance)


SHARE_SETTINGS: Final = (
    Setting(
        name=LETTER_TOPICS_CREATED,
        type=Type.BOOLEAN,
        default="false",
        rule=None,
        doc="Whether a topic that a share group names for its dead letters is created when the first one is there.",
        importance="medium",
    ),
    Setting(
        name=LETTER_TOPICS_PREFIX,
        type=Type.STRING,
        default="dlq.",
        rule=None,
        doc="How the names of topics begin that share groups may name for their dead letters. Empty allows all names.",
        importance="medium",
    ),
    _share(
        "group.share.assignors",
        Type.LIST,
        "simple",
        some_of("simple"),
        "The assignor of share groups, which shares the partitions of topics out evenly among the members that read "
        "them; with more members than partitions several members read one.",
    ),
    _share(
        "group.share.delivery.count.limit",
        Type.INT,
        "5",
        between(2, 10),
        "How often a record is delivered to a share group at most, before it is given up.",
    ),
    _share(
        "group.share.heartbeat.interval.ms",
        Type.INT,
        "5000",
        at_least(1),
        "How often members of share groups are told to send a heartbeat.",
    ),
    _share(
        "group.share.max.delivery.count.limit",
        Type.INT,
        "10",
        between(2, 25),
        "The highest limit of deliveries that a share group can be given.",
    ),
    _share(
        "group.share.max.heartbeat.interval.ms",
        Type.INT,
        "15000",
        at_least(1),
        "The longest heartbeat interval that a share group can be given.",
    ),
    _share(
        "group.share.max.partition.max.record.locks",
        Type.INT,
        "10000",
        between(100, 20000),
        "The most record locks that a share group can be given.",
    ),
    _share(
        "group.share.max.record.lock.duration.ms",
        Type.INT,
        "60000",
        between(30_000, 3_600_000),
        "The longest time that a share group can be given for its record locks.",
    ),
    _share(
        "group.share.max.session.timeout.ms",
        Type.INT,
        "60000",
        at_least(1),
        "The longest session timeout that a share group can be given.",
    ),
    _share(
        "group.share.max.share.sessions",
        Type.INT,
        "2000",
        at_least(1),
        "The most share sessions of one broker: each member of a share group has one with each broker it fetches from.",
    ),
    _share("group.share.max.size", Type.INT, "200", between(1, 1000), "The most members of one share group."),
    _share(
        "group.share.min.delivery.count.limit",
        Type.INT,
        "2",
        between(2, 5),
        "The lowest limit of deliveries that a share group can be given.",
    ),
    _share(
        "group.share.min.heartbeat.interval.ms",
        Type.INT,
        "5000",
        at_least(1),
        "The shortest heartbeat interval that a share group can be given.",
    ),
    _share(
        "group.share.min.partition.max.record.locks",
        Type.INT,
        "100",
        between(100, 2000),
        "The fewest record locks that a share group can be given.",
    ),
    _share(
        "group.share.min.record.lock.duration.ms",
        Type.INT,
        "15000",
        between(1_000, 30_000),
        "The shortest time that a share group can be given for its record locks.",
    ),
    _share(
        "group.share.min.session.timeout.ms",
        Type.INT,
        "45000",
        at_least(1),
        "The shortest session timeout that a share group can be given.",
    ),
    _share(
        "group.share.partition.max.record.locks",
        Type.INT,
        "2000",
        between(100, 10_000),
        "How many records of a partition the members of a share group may have out at a time.",
    ),
    _share(
        "group.share.record.lock.duration.ms",
        Type.INT,
        "30000",
        between(1_000, 3_600_000),
        "How long a record is a member's own before it is delivered again, unless the member says what became of it.",
    ),
    _share(
        "group.share.session.timeout.ms",
        Type.INT,
        "45000",
        at_least(1),
        "How long a member of a share group may be silent before it is taken out.",
    ),
    _share(
        "share.coordinator.snapshot.update.records.per.snapshot",
        Type.INT,
        "500",
        between(0, 500),
        "How many changes of a share group's state in a partition are written between two snapshots of all of it.",
    ),
    _share(
        "share.coordinator.state.topic.min.isr",
        Type.SHORT,
        "2",
        at_least(1),
        "min.insync.replicas of the internal topic that keeps the state of share groups. A lone broker has one.",
        "high",
    ),
    _share(
        "share.coordinator.state.topic.num.partitions",
        Type.INT,
        "50",
        at_least(1),
        "The partitions of the internal topic that keeps the state of share groups. Not to be changed once it exists.",
        "high",
    ),
    _share(
        "share.coordinator.state.topic.prune.interval.ms",
        Type.INT,
        "300000",
        at_least(1),
        "How often that topic is looked at for what a later snapshot has replaced, which is deleted.",
        "low",
    ),
    _share(
        "share.coordinator.state.topic.replication.factor",
        Type.SHORT,
        "3",
        at_least(1),
        "The replicas of the internal topic that keeps the state of share groups. A lone broker has one. With one it "
        "is made with flush.messages=1.",
        "high",
    ),
    _share(
        "share.coordinator.state.topic.segment.bytes",
        Type.INT,
        "104857600",
        at_least(14),
        "The size of a file of the internal topic that keeps the state of share groups: small ones are deleted sooner.",
        "high",
    ),
    _share(
        "share.coordinator.write.timeout.ms",
        Type.INT,
        "5000",
        at_least(1),
        "How long a change of the state of share groups waits for the replicas before it is tried again.",
        "high",
    ),
)
