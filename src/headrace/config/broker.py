"""The settings of a broker: the table. Half of it are the defaults of topics, made from the topic table."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from .audit import AUDIT_SETTINGS
from .authorization import AUTHORIZATION_SETTINGS
from .cluster import CLUSTER_SETTINGS
from .connection_caps import are_caps
from .groups import GROUP_SETTINGS
from .listeners import LISTENER_SETTINGS
from .metrics import METRICS_SETTINGS
from .no_effect import NO_EFFECT_SETTINGS
from .sasl import SASL_SETTINGS
from .setting import MAX_INT, Setting, Type, ValueRule, at_least, only
from .share import SHARE_SETTINGS
from .tls import TLS_SETTINGS
from .topic import TOPIC_SETTINGS
from .transactions import TRANSACTION_SETTINGS
from .zookeeper import ZOOKEEPER_SETTINGS

_FALLBACKS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "log.roll.ms": (("log.roll.hours", 3_600_000),),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", 3_600_000),),
    "log.flush.interval.ms": (("log.flush.scheduler.interval.ms", 1),),
    "log.message.timestamp.before.max.ms": (("log.message.timestamp.difference.max.ms", 1),),
    "log.message.timestamp.after.max.ms": (("log.message.timestamp.difference.max.ms", 1),),
}


_ONE_DIRECTORY: Final = ValueRule(
    holds=lambda value: bool(value) and "," not in str(value),
    words="one directory: a broker keeps all its logs in one place, start a broker for each disk",
)


def _broker(
    name: str, kind: Type, default: str | None, rule: ValueRule | None, doc: str, importance: str = "medium"
) -> Setting:
    return Setting(name=name, type=kind, default=default, rule=rule, doc=doc, importance=importance)


def _dynamic(
    name: str, kind: Type, default: str | None, rule: ValueRule | None, doc: str, importance: str = "medium"
) -> Setting:
    return replace(_broker(name, kind, default, rule, doc, importance), dynamic=True)


_OWN: Final = (
    *LISTENER_SETTINGS,
    *ZOOKEEPER_SETTINGS,
    *AUTHORIZATION_SETTINGS,
    *NO_EFFECT_SETTINGS,
    *SASL_SETTINGS,
    *TLS_SETTINGS,
    *AUDIT_SETTINGS,
    Setting(
        name="node.id",
        type=Type.INT,
        default="1",
        rule=at_least(0),
        doc="The number by which the cluster knows this broker.",
        importance="high",
        fallbacks=(("broker.id", 1),),
    ),
    replace(
        _broker("broker.id", Type.INT, "1", at_least(0), "Kafka's older name of node.id, which tools still look for."),
        fallbacks=(("node.id", 1),),
    ),
    _broker(
        "broker.rack",
        Type.STRING,
        None,
        None,
        "Where this broker stands. Replicas of a partition are spread over racks, and consumers read from their own.",
    ),
    Setting(
        name="log.dirs",
        type=Type.STRING,
        default="data",
        rule=_ONE_DIRECTORY,
        doc="The directory that holds the logs and, for a lone broker, the metadata.",
        importance="high",
        fallbacks=(("log.dir", 1),),
    ),
    _broker("log.dir", Type.STRING, None, _ONE_DIRECTORY, "Kafka's older name of log.dirs."),
    _broker(
        "auto.create.topics.enable",
        Type.BOOLEAN,
        "true",
        None,
        "Whether a topic that a client asks for and that does not exist is created.",
        "high",
    ),
    _broker("delete.topic.enable", Type.BOOLEAN, "true", None, "Whether topics can be deleted.", "high"),
    _broker(
        "num.partitions", Type.INT, "1", at_least(1), "The partitions of a topic created without a number of them."
    ),
    _broker(
        "default.replication.factor",
        Type.INT,
        "1",
        at_least(1),
        "The replicas of a topic created without a number of them.",
    ),
    _broker(
        "socket.request.max.bytes",
        Type.INT,
        "104857600",
        at_least(1),
        "The largest request that is read; a connection that announces a larger one is closed.",
    ),
    _dynamic("max.connections", Type.INT, str(MAX_INT), at_least(1), "The most connections at one time."),
    _dynamic(
        "max.connections.per.ip",
        Type.INT,
        str(MAX_INT),
        at_least(1),
        "The most connections at one time from one address.",
    ),
    _dynamic(
        "max.connections.per.ip.overrides",
        Type.STRING,
        "",
        ValueRule(holds=are_caps, words="a list of ADDRESS:COUNT, as in 10.0.0.5:2000,[2001:db8::1]:50"),
        "Addresses with another max.connections.per.ip of their own.",
    ),
    _dynamic(
        "max.connection.creation.rate",
        Type.INT,
        str(MAX_INT),
        at_least(1),
        "How many connections a second are accepted, in the mean of quota.window.num samples. Others wait in the "
        "system's queue.",
    ),
    _dynamic(
        "headrace.max.connections.per.remote.ip",
        Type.INT,
        "1000",
        at_least(1),
        "The most connections at one time from one address that is not this machine's loopback, or one /64 of IPv6, "
        "where max.connections.per.ip allows more. An address in max.connections.per.ip.overrides has only that.",
    ),
    _dynamic(
        "headrace.connection.creation.rate.per.remote.ip",
        Type.INT,
        "50",
        at_least(1),
        "How many connections a second are taken from one address that is not this machine's loopback, or from one /64 "
        "of IPv6, in the mean of quota.window.num samples: 500 at once by default. "
        "A quota connection_creation_rate of the address goes first.",
    ),
    _dynamic(
        "queued.max.request.bytes",
        Type.LONG,
        str(512 << 20),
        ValueRule(
            holds=lambda value: isinstance(value, int) and (value == -1 or value >= 1), words="at least 1, or -1"
        ),
        "Bytes of requests that have come in part, or that wait to be served, of all connections together. Beyond it "
        "connections that need more are not read until others are done; one always goes on. -1 is no limit.",
    ),
    _broker(
        "quota.window.num",
        Type.INT,
        "11",
        at_least(1),
        "How many samples rates of clients are averaged over; a tenth of the time of all but one may be used at once.",
        "low",
    ),
    _broker("quota.window.size.seconds", Type.INT, "1", at_least(1), "How long each of these samples is.", "low"),
    _broker(
        "controller.quota.window.num",
        Type.INT,
        "11",
        at_least(1),
        "How many samples of controller_mutation_rate may be used at once.",
        "low",
    ),
    _broker(
        "controller.quota.window.size.seconds", Type.INT, "1", at_least(1), "How long each of these samples is.", "low"
    ),
    _broker(
        "connections.max.idle.ms",
        Type.LONG,
        "600000",
        at_least(1),
        "How long a connection may be silent before it is closed.",
    ),
    _broker("fetch.max.bytes", Type.INT, "57671680", at_least(1024), "The most bytes one fetch is answered with."),
    _broker(
        "max.incremental.fetch.session.cache.slots",
        Type.INT,
        "1000",
        at_least(0),
        "How many incremental fetch sessions are kept. 0 turns them off; clients then send full fetches.",
    ),
    _dynamic(
        "producer.id.expiration.ms",
        Type.INT,
        "86400000",
        at_least(1),
        "How long a partition remembers an idempotent producer that sends nothing.",
        "low",
    ),
    _dynamic(
        "headrace.idempotency.key.expiration.ms",
        Type.INT,
        "3600000",
        at_least(1),
        "How long a partition remembers an Idempotency-Key of the gateway, at most producer.id.expiration.ms. A key "
        "takes about 45 bytes of memory on each replica.",
    ),
    _dynamic(
        "headrace.clock.jump.max.ms",
        Type.LONG,
        "3600000",
        at_least(-1),
        "How far the clock may jump ahead of the time that has passed. Records, offsets, producers, transactional ids "
        "and tombstones do not expire by a clock that jumped farther, until it is back; -1 believes any clock, also "
        "one that has jumped already.",
    ),
    _dynamic(
        "headrace.max.producer.ids",
        Type.INT,
        "1000000",
        at_least(1000),
        "How many idempotent producers and idempotency keys the partitions of a broker remember together. Beyond that "
        "those that have been silent for longest are forgotten, but none with an open transaction. Each takes 45 to 80 "
        "bytes of memory.",
    ),
    _dynamic(
        "log.cleaner.dedupe.buffer.size",
        Type.LONG,
        "134217728",
        at_least(1 << 20),
        "Memory for the keys of a log that is being compacted, 192 bytes each; what does not fit waits for the next "
        "time. One batch at a time comes on top, with up to 32 MiB that it decompresses to.",
    ),
    _dynamic(
        "log.cleaner.backoff.ms",
        Type.LONG,
        "15000",
        at_least(1),
        "How often compacted logs are looked at for something to compact.",
    ),
    _broker(
        "log.retention.check.interval.ms",
        Type.LONG,
        "300000",
        at_least(1),
        "How often logs are looked at for segments to delete.",
    ),
    _broker(
        "log.retention.minutes", Type.INT, None, None, "log.retention.ms in minutes, where that is not set.", "high"
    ),
    _broker("log.retention.hours", Type.INT, None, None, "log.retention.ms in hours, where that is not set.", "high"),
    _broker("log.roll.hours", Type.INT, None, at_least(1), "log.roll.ms in hours, where that is not set.", "high"),
    _broker(
        "log.roll.jitter.hours", Type.INT, None, only(0, "0"), "log.roll.jitter.ms in hours, where that is not set."
    ),
    _broker(
        "log.flush.scheduler.interval.ms",
        Type.LONG,
        None,
        at_least(1),
        "log.flush.interval.ms, where that is not set.",
    ),
    _broker(
        "log.message.timestamp.difference.max.ms",
        Type.LONG,
        None,
        at_least(0),
        "Kafka's older name of log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms, where those "
        "are not set.",
    ),
    _broker(
        "log.flush.offset.checkpoint.interval.ms",
        Type.INT,
        "60000",
        at_least(0),
        "How often logs are synced in the background, and the offsets up to which they are written down; recovery "
        "after a crash starts there.",
    ),
    _broker(
        "num.recovery.threads.per.data.dir",
        Type.INT,
        "2",
        at_least(1),
        "Logs that are recovered at once after a crash.",
        "high",
    ),
)


def _twins() -> Iterable[Setting]:
    for topic in TOPIC_SETTINGS.values():
        if topic.broker_name is not None:
            yield Setting(
                name=topic.broker_name,
                type=topic.type,
                default=topic.default,
                rule=topic.rule,
                doc=f"The default of the topic setting {topic.name}. {topic.doc}",
                importance=topic.importance,
                dynamic=True,
                fallbacks=_FALLBACKS.get(topic.broker_name, ()),
            )


BROKER_SETTINGS: Final[dict[str, Setting]] = {
    setting.name: setting
    for setting in sorted(
        (
            *_OWN,
            *CLUSTER_SETTINGS,
            *GROUP_SETTINGS,
            *METRICS_SETTINGS,
            *SHARE_SETTINGS,
            *TRANSACTION_SETTINGS,
            *_twins(),
        ),
        key=lambda setting: setting.name,
    )
}
"""The settings of a broker by name."""
