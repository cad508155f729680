"""Topics made by the columnar client: on demand, as producers do, or to keep its own state in."""

from typing import Any, Final

from headrace.client.errors import ClientError
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode

from .cluster import Cluster
from .model import UnknownTopic
from .retry import PASSING, TryAgain, refused

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
    values = {
        "topics": [{"name": name, "topic_id": None}],
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }

    def attempt() -> None:
        with cluster.any_channel() as channel:
            channel.ask(ApiKey.METADATA, values)

    cluster.retried(attempt)
    cluster.describe([name], max_age=0.0)


class TopicNotMade(ClientError):
    """A topic is not there, and cannot be made; the message is the reason."""


def require_compacted_topic(cluster: Cluster, name: str, *, segment_bytes: int) -> None:
    """Return when a topic is there that keeps the last record of each key; it is made now if it is not.

    One partition, on three brokers, or on as many as there are. `TopicNotMade` where it cannot be.
    """
    try:
        cluster.describe([name])
    except UnknownTopic:
        try:
            _create_compacted(cluster, name, segment_bytes)
        except ClientError as error:
            raise TopicNotMade(error.message, error.code) from error
        cluster.describe([name], max_age=0.0)


def _create_compacted(cluster: Cluster, name: str, segment_bytes: int) -> None:
    replicas = min(_REPLICAS, len(cluster.brokers()))
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.1",
        "segment.bytes": str(segment_bytes),
        "min.insync.replicas": str(max(1, replicas - 1)),
    }
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": replicas,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    values = {"topics": [topic], "timeout": cluster.settings["request.timeout.ms"], "validate_only": False}

    def attempt() -> None:
        for node in cluster.brokers():
            with cluster.channel_to(node) as channel:
                result = channel.ask(ApiKey.CREATE_TOPICS, values).topics[0]
            # Of brokers without a quorum of their own, only the controller makes topics.
            if result.error_code is not ErrorCode.not_controller:
                break
        _check(name, result)

    cluster.retried(attempt)


def _check(name: str, result: Any) -> None:
    code = result.error_code
    if code in (ErrorCode.none, ErrorCode.topic_already_exists):
        return
    error = refused(code, f"topic '{name}' cannot be made", getattr(result, "error_message", None))
    raise TryAgain(error) if code in PASSING or code is ErrorCode.not_controller else error
