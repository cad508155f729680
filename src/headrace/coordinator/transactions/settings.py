"""The rules that a broker has for transactions, out of its settings."""

from dataclasses import dataclass

from headrace.config import BrokerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """See `transaction.*` and `transactional.*` in docs/configuration.md."""

    topic_partitions: int
    topic_replication_factor: int
    topic_min_isr: int
    topic_segment_bytes: int
    max_timeout_ms: int
    expiration_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> "TransactionSettings":
        return cls(
            topic_partitions=config["transaction.state.log.num.partitions"],
            topic_replication_factor=1 if config.lone else config["transaction.state.log.replication.factor"],
            topic_min_isr=1 if config.lone else config["transaction.state.log.min.isr"],
            topic_segment_bytes=config["transaction.state.log.segment.bytes"],
            max_timeout_ms=config["transaction.max.timeout.ms"],
            expiration_ms=config["transactional.id.expiration.ms"],
        )
