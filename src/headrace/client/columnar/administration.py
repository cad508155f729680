"""Topics made by the columnar client: on demand, as producers do, or to keep its own state in."""

from collections.abc import Mapping
from typing import Final

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode

from ..core.metadata import metadata_request
from ..core.topics import create_topic_request, read_results
from ..errors import ClientError, UnknownTopic
from .cluster import Cluster
from .retry import refused_or_again

_REPLICAS: Final = 3


def require_topic(cluster: Cluster, name: str) -> None:
    """Return when the topic is there: a broker with `auto.create.topics.enable` makes it now, as for any producer.

    `UnknownTopic` when it is not there and is not made.
    """
    try:
        cluster.describe([name])
        return
    except UnknownTopic:
        pass
    cluster.with_any(lambda channel: channel.ask(ApiKey.METADATA, metadata_request([name], create=True)))
    cluster.describe([name], max_age=0.0)


class TopicNotMade(ClientError):
    """A topic is not there, and cannot be made; the message is the reason."""


def require_compacted_topic(cluster: Cluster, name: str, *, segment_bytes: int) -> None:
    """Return when a topic is there that keeps the last record of each key; it is made now if it is not.

    One partition, on three brokers, or on as many as there are. `TopicNotMade` where it cannot be.
    """
    _require(
        cluster,
        name,
        {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": str(segment_bytes)},
    )


def require_bounded_topic(
    cluster: Cluster, name: str, *, segment_bytes: int, retention_bytes: int, retention_ms: int
) -> None:
    """The same for a topic that forgets its oldest records, by size and age."""
    _require(
        cluster,
        name,
        {
            "cleanup.policy": "delete",
            "segment.bytes": str(segment_bytes),
            "retention.bytes": str(retention_bytes),
            "retention.ms": str(retention_ms),
        },
    )


def _require(cluster: Cluster, name: str, configs: Mapping[str, str]) -> None:
    try:
        cluster.describe([name])
    except UnknownTopic:
        try:
            _create(cluster, name, configs)
        except ClientError as error:
            raise TopicNotMade(error.message, error.code) from error
        cluster.describe([name], max_age=0.0)


def _create(cluster: Cluster, name: str, given: Mapping[str, str]) -> None:
    replicas = min(_REPLICAS, len(cluster.brokers()))
    configs = {**given, "min.insync.replicas": str(max(1, replicas - 1))}
    timeout_ms = cluster.settings["request.timeout.ms"]
    values = create_topic_request(
        name, timeout_ms=timeout_ms, partitions=1, replication_factor=replicas, configs=configs
    )

    def attempt() -> None:
        for node in cluster.brokers():
            with cluster.channel_to(node) as channel:
                ((code, message),) = read_results(channel.ask(ApiKey.CREATE_TOPICS, values).topics)
            # Of brokers without a quorum of their own, only the controller makes topics.
            if code is not ErrorCode.not_controller:
                break
        if code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            raise refused_or_again(code, f"topic '{name}' cannot be made", message or None)

    cluster.retried(attempt)
