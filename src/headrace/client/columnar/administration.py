"""Topics made by the columnar client: on demand, as producers do, or with settings of its own."""

from collections.abc import Mapping
from typing import Any

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode

from .cluster import Cluster
from .model import UnknownTopic
from .retry import PASSING, TryAgain, refused


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


def create_topic(cluster: Cluster, name: str, *, partitions: int, configs: Mapping[str, str]) -> None:
    """Make a topic with as many replicas as the brokers have by default, unless it is there."""
    values = {
        "topics": [
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": -1,
                "assignments": [],
                "configs": [{"name": key, "value": value} for key, value in configs.items()],
            }
        ],
        "timeout": cluster.settings["request.timeout.ms"],
        "validate_only": False,
    }

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
