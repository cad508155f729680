"""The settings of a topic: the table, and the check of what a user sets on one."""

import re
from collections.abc import Mapping
from typing import Final

from headrace.protocol.errors import CodedError, ErrorCode

from .names import nearest, shown
from .setting import MAX_LONG, ConfigError, Setting, Type, Value, ValueRule, at_least, between, one_of, only, some_of
from .share import TAKES_LETTERS

_GZIP_LEVEL: Final = ValueRule(holds=lambda value: value == -1 or value in range(1, 10), words="-1, or between 1 and 9")
_VERSION_WITH_FORMAT_2: Final = re.compile(r"(0\.11|[1-3]\.\d)(\.\d+)?(-IV\d+)?")
_FORMAT_2: Final = ValueRule(
    holds=lambda value: isinstance(value, str) and _VERSION_WITH_FORMAT_2.fullmatch(value) is not None,
    words="0.11 up to 3.x, whose record format (2) is the only one stored here; leave it out",
)
_NEVER: Final = str(MAX_LONG)
_REPLICA: Final = re.compile(r"\d+:\d+")
_REPLICAS: Final = ValueRule(
    holds=lambda value: value in ((), ("*",)) or all(_REPLICA.fullmatch(item) for item in _items(value)),
    words="partition:broker,partition:broker,… or * for all",
)


def _items(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def _topic(
    name: str,
    kind: Type,
    default: str,
    rule: ValueRule | None,
    broker_name: str,
    doc: str,
    importance: str = "medium",
    obsolete: bool = False,
) -> Setting:
    return Setting(
        name=name,
        type=kind,
        default=default,
        rule=rule,
        broker_name=broker_name or None,
        doc=doc,
        importance=importance,
        dynamic=True,
        obsolete=obsolete,
    )


_ROWS: Final = (
    _topic(
        "cleanup.policy",
        Type.LIST,
        "delete",
        some_of("compact", "delete", least=0),
        "log.cleanup.policy",
        "What happens to old records: delete drops old segments, compact keeps the latest record of each key; with "
        "neither all stay.",
    ),
    _topic(
        "compression.type",
        Type.STRING,
        "producer",
        one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "compression.type",
        "The codec in which batches are stored. producer keeps the one they arrive in and costs nothing.",
    ),
    _topic(
        "compression.gzip.level",
        Type.INT,
        "-1",
        _GZIP_LEVEL,
        "compression.gzip.level",
        "The level where compression.type is gzip: 1 is fast, 9 is small, -1 is the codec's own choice.",
    ),
    _topic(
        "compression.lz4.level",
        Type.INT,
        "9",
        between(1, 17),
        "compression.lz4.level",
        "The level where compression.type is lz4.",
    ),
    _topic(
        "compression.zstd.level",
        Type.INT,
        "3",
        between(-131072, 22),
        "compression.zstd.level",
        "The level where compression.type is zstd.",
    ),
    _topic(
        "delete.retention.ms",
        Type.LONG,
        "86400000",
        at_least(0),
        "log.cleaner.delete.retention.ms",
        "How long a compacted topic keeps delete markers, so that a reader who began at the start sees them.",
    ),
    _topic(
        TAKES_LETTERS,
        Type.BOOLEAN,
        "false",
        None,
        "",
        "Whether share groups may have their dead letters written to the topic, whoever made them reject a record.",
    ),
    _topic(
        "file.delete.delay.ms",
        Type.LONG,
        "60000",
        at_least(0),
        "log.segment.delete.delay.ms",
        "How long the files of a deleted segment stay, for readers that are still sending from them.",
    ),
    _topic(
        "flush.messages",
        Type.LONG,
        _NEVER,
        at_least(1),
        "log.flush.interval.messages",
        "After how many records the log is synced to disk before they are acknowledged. 1 syncs each group of requests "
        "and is the default of a lone broker; in a cluster replication protects the records instead.",
    ),
    _topic(
        "flush.ms",
        Type.LONG,
        _NEVER,
        at_least(0),
        "log.flush.interval.ms",
        "After how long records that were not synced yet are synced to disk.",
    ),
    _topic(
        "follower.replication.throttled.replicas",
        Type.LIST,
        "",
        _REPLICAS,
        "",
        "The replicas that, while they are not in sync, catch up no faster than follower.replication.throttled.rate.",
    ),
    _topic(
        "headrace.record.validation",
        Type.STRING,
        "frame",
        one_of("frame", "full"),
        "headrace.record.validation",
        "How compressed batches are checked when they are produced. frame looks at the codec's frame: its magic and "
        "the size it announces. full also decompresses the batch, to up to 32 MiB, and checks every record, as is "
        "always done for compacted topics and Headrace's own. Records that are not compressed are always checked.",
    ),
    _topic(
        "headrace.schema.validation",
        Type.BOOLEAN,
        "false",
        None,
        "",
        "Whether produced values must begin with the id of a schema that is registered for the subject topic-value. "
        "See docs/registry.md.",
    ),
    _topic(
        "headrace.schema.validation.key",
        Type.BOOLEAN,
        "false",
        None,
        "",
        "Whether produced keys must begin with the id of a schema that is registered for the subject topic-key.",
    ),
    _topic(
        "headrace.storage.quota.bytes",
        Type.LONG,
        "-1",
        at_least(-1),
        "",
        "Bytes that all partitions of the topic may have together, each counted once. What is produced beyond it is "
        "refused with POLICY_VIOLATION until retention has made room. -1 is no limit. See docs/quotas.md.",
    ),
    _topic(
        "index.interval.bytes",
        Type.INT,
        "4096",
        at_least(0),
        "log.index.interval.bytes",
        "How many bytes of log one index entry stands for.",
    ),
    _topic(
        "leader.replication.throttled.replicas",
        Type.LIST,
        "",
        _REPLICAS,
        "",
        "The replicas that, as leaders, send no faster than leader.replication.throttled.rate to those not in sync.",
    ),
    _topic(
        "max.compaction.lag.ms",
        Type.LONG,
        _NEVER,
        at_least(1),
        "log.cleaner.max.compaction.lag.ms",
        "The longest time a record of a compacted topic may stay uncompacted.",
    ),
    _topic(
        "max.message.bytes",
        Type.INT,
        "12582912",
        at_least(0),
        "message.max.bytes",
        "The largest record batch that is accepted, as it arrives (compressed): a message of 10 MB, by default.",
    ),
    _topic(
        "message.timestamp.type",
        Type.STRING,
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
        "Whether records keep the producer's time or get the broker's.",
    ),
    _topic(
        "message.timestamp.before.max.ms",
        Type.LONG,
        _NEVER,
        at_least(0),
        "log.message.timestamp.before.max.ms",
        "How far a record's own time may lie before the broker's; older ones are refused.",
    ),
    _topic(
        "message.timestamp.after.max.ms",
        Type.LONG,
        "3600000",
        at_least(0),
        "log.message.timestamp.after.max.ms",
        "How far a record's own time may lie after the broker's; later ones are refused.",
    ),
    _topic(
        "min.cleanable.dirty.ratio",
        Type.DOUBLE,
        "0.5",
        between(0, 1),
        "log.cleaner.min.cleanable.ratio",
        "How much of a compacted log must be uncompacted before it is compacted again.",
    ),
    _topic(
        "min.compaction.lag.ms",
        Type.LONG,
        "0",
        at_least(0),
        "log.cleaner.min.compaction.lag.ms",
        "How long a record of a compacted topic is safe from compaction.",
    ),
    _topic(
        "min.insync.replicas",
        Type.INT,
        "1",
        at_least(1),
        "min.insync.replicas",
        "How many replicas must hold a record before a producer with acks=all gets its answer; "
        "with fewer in sync its writes are refused.",
    ),
    _topic(
        "preallocate",
        Type.BOOLEAN,
        "false",
        only(False, "false: files grow as records arrive"),
        "log.preallocate",
        "Whether a new segment's file takes its full size on disk at once; it never does here.",
    ),
    _topic(
        "retention.bytes",
        Type.LONG,
        "-1",
        at_least(-1),
        "log.retention.bytes",
        "The size beyond which a partition's oldest segments are deleted. -1 is no limit.",
    ),
    _topic(
        "retention.ms",
        Type.LONG,
        "604800000",
        at_least(-1),
        "log.retention.ms",
        "The age beyond which a partition's segments are deleted. -1 keeps them for ever.",
        importance="high",
    ),
    _topic(
        "segment.bytes",
        Type.INT,
        "1073741824",
        at_least(14),
        "log.segment.bytes",
        "The size at which a new segment file is begun; whole segments are deleted or compacted.",
    ),
    _topic(
        "segment.index.bytes",
        Type.INT,
        "10485760",
        at_least(4),
        "log.index.size.max.bytes",
        "The largest size of a segment's index.",
    ),
    _topic(
        "segment.jitter.ms",
        Type.LONG,
        "0",
        only(0, "0: segments roll at segment.ms exactly"),
        "log.roll.jitter.ms",
        "A random part taken off segment.ms; none is taken here.",
    ),
    _topic(
        "segment.ms",
        Type.LONG,
        "604800000",
        at_least(1),
        "log.roll.ms",
        "The age at which a new segment file is begun even if the old one is not full.",
    ),
    _topic(
        "unclean.leader.election.enable",
        Type.BOOLEAN,
        "false",
        None,
        "unclean.leader.election.enable",
        "Whether a replica that is not in sync may lead when no other is left, which loses acknowledged records; the "
        "one whose log reaches furthest does. Counts as unclean.recovery.strategy=aggressive.",
    ),
    _topic(
        "unclean.recovery.strategy",
        Type.STRING,
        "balanced",
        one_of("none", "balanced", "aggressive"),
        "unclean.recovery.strategy",
        "Who leads when every replica that held all acknowledged records may have lost some, as when a whole site "
        "loses power. balanced: once all of them are back, the one whose log reaches furthest; aggressive: that of "
        "those which live; none: whom an operator chooses.",
    ),
    _topic(
        "message.format.version",
        Type.STRING,
        "3.0-IV1",
        _FORMAT_2,
        "",
        "Accepted for old tools. Records are always stored in format 2.",
        importance="low",
        obsolete=True,
    ),
    _topic(
        "message.downconversion.enable",
        Type.BOOLEAN,
        "true",
        None,
        "",
        "Accepted for old tools. Every client served here reads format 2, so nothing is ever converted.",
        importance="low",
        obsolete=True,
    ),
)

TOPIC_SETTINGS: Final[dict[str, Setting]] = {setting.name: setting for setting in _ROWS}
"""The settings of a topic by name."""


def topic_setting(name: str) -> Setting:
    """The topic setting of that name; `CodedError` when there is none."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        message = f"Unknown topic config name: {shown(name)}{nearest(name, TOPIC_SETTINGS)}"
        raise CodedError(ErrorCode.invalid_config, message)
    return setting


def validate_topic_overrides(overrides: Mapping[str, str]) -> None:
    """Raises `CodedError` (INVALID_CONFIG) unless every name is known, every value allowed, and all fit together."""
    values: dict[str, Value] = {}
    for name, text in overrides.items():
        try:
            values[name] = topic_setting(name).parse(text)
        except ConfigError as error:
            raise CodedError(ErrorCode.invalid_config, str(error)) from None
    _check_lags(values)


def _check_lags(values: Mapping[str, Value]) -> None:
    low = values.get("min.compaction.lag.ms", 0)
    high = values.get("max.compaction.lag.ms", MAX_LONG)
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low > high:
        raise CodedError(
            ErrorCode.invalid_config,
            f"min.compaction.lag.ms ({low}) is more than max.compaction.lag.ms ({high}); "
            "lower the first or raise the second",
        )
