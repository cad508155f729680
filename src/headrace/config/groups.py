"""The settings of a broker that concern groups and their offsets."""

from typing import Final

from .setting import MAX_INT, Rule, Setting, Type, at_least, between, one_of, some_of


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
        "The replicas of the internal topic of groups; as many as there are brokers, where those are fewer.",
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
