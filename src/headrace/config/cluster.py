"""The settings of a broker that is one of several."""

import re
from typing import Final

from .setting import MAX_LONG, Setting, Type, ValueRule, at_least, one_of

_SERVERS: Final = re.compile(r"[^,/\s:]+(:\d{1,5})?(,[^,/\s:]+(:\d{1,5})?)*(/[^\s]*)?")
_ENSEMBLE: Final = ValueRule(
    holds=lambda value: bool(_SERVERS.fullmatch(str(value))),
    words="servers like h1:2181,h2:2181,h3:2181/path, the path being where this cluster keeps its state",
)
RACK_AWARE: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def _cluster(
    name: str, kind: Type, default: str | None, rule: ValueRule | None, doc: str, importance: str = "medium"
) -> Setting:
    return Setting(name=name, type=kind, default=default, rule=rule, doc=doc, importance=importance)


def _rate(name: str, doc: str) -> Setting:
    return Setting(name=name, type=Type.LONG, default=str(MAX_LONG), rule=at_least(1), doc=doc, dynamic=True)


CLUSTER_SETTINGS: Final = (
    _cluster(
        "zookeeper.connect",
        Type.STRING,
        None,
        _ENSEMBLE,
        "The ZooKeeper servers that keep the cluster's state. Without them the broker is alone and keeps it itself.",
        "high",
    ),
    _cluster(
        "zookeeper.session.timeout.ms",
        Type.INT,
        "6000",
        at_least(500),
        "How long a broker may be silent towards ZooKeeper before others take over what it leads.",
        "high",
    ),
    _cluster(
        "replica.lag.time.max.ms",
        Type.LONG,
        "30000",
        at_least(1),
        "How long a follower may be behind before it leaves the ISR.",
        "high",
    ),
    _cluster(
        "replica.fetch.response.max.bytes",
        Type.INT,
        "10485760",
        at_least(1024),
        "About the most bytes that a leader sends a follower at once.",
    ),
    _cluster(
        "replica.selector.class",
        Type.CLASS,
        "",
        one_of("", RACK_AWARE),
        "Who serves a consumer that says where it is (client.rack): the leader (empty), or a replica in the same rack.",
    ),
    _rate(
        "leader.replication.throttled.rate",
        "The most bytes a second that this broker sends, as a leader, to replicas that are not in sync, of partitions "
        "that are named in their topics' leader.replication.throttled.replicas.",
    ),
    _rate(
        "follower.replication.throttled.rate",
        "The most bytes a second by which replicas on this broker catch up that are not in sync and are named in "
        "their topics' follower.replication.throttled.replicas.",
    ),
    _cluster(
        "auto.leader.rebalance.enable",
        Type.BOOLEAN,
        "true",
        None,
        "Whether the first replica of a partition leads it again after it was away.",
        "high",
    ),
    _cluster(
        "leader.imbalance.check.interval.seconds",
        Type.LONG,
        "300",
        at_least(1),
        "How often the controller looks whether leaders should return to the first replicas.",
    ),
    _cluster(
        "leader.imbalance.per.broker.percentage",
        Type.INT,
        "10",
        at_least(0),
        "How many of a broker's partitions others may lead before they return to it.",
    ),
    _cluster(
        "controlled.shutdown.enable",
        Type.BOOLEAN,
        "true",
        None,
        "Whether a broker that stops lets others lead first.",
    ),
)
