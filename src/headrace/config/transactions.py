"""The settings of a broker that concern transactions."""

from typing import Final

from .setting import Setting, Type, ValueRule, at_least


def _transaction(name: str, default: str, rule: ValueRule, doc: str, importance: str = "medium") -> Setting:
    return Setting(name=name, type=Type.INT, default=default, rule=rule, doc=doc, importance=importance)


TRANSACTION_SETTINGS: Final = (
    _transaction(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "10000",
        at_least(1),
        "How often transactions are looked for that have lasted longer than their timeout, and are aborted.",
        "low",
    ),
    _transaction(
        "transaction.max.timeout.ms",
        "900000",
        at_least(1),
        "The longest timeout that a producer can ask for; readers of committed records may have to wait that long.",
    ),
    _transaction(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "3600000",
        at_least(1),
        "How often transactional ids are looked for that have expired.",
        "low",
    ),
    _transaction(
        "transaction.state.log.min.isr",
        "2",
        at_least(1),
        "min.insync.replicas of the internal topic that keeps transactions. A lone broker has one.",
        "high",
    ),
    _transaction(
        "transaction.state.log.num.partitions",
        "50",
        at_least(1),
        "The partitions of the internal topic that keeps transactions. Not to be changed once it exists.",
        "high",
    ),
    _transaction(
        "transaction.state.log.replication.factor",
        "3",
        at_least(1),
        "The replicas of the internal topic that keeps transactions. A lone broker has one. With one it is made with "
        "flush.messages=1.",
        "high",
    ),
    _transaction(
        "transaction.state.log.segment.bytes",
        "104857600",
        at_least(14),
        "The size of a file of the internal topic that keeps transactions: small ones are loaded and compacted fast.",
        "high",
    ),
    _transaction(
        "transactional.id.expiration.ms",
        "604800000",
        at_least(1),
        "How long a transactional id is remembered after its last transaction has ended.",
        "high",
    ),
)
