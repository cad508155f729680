"""Topics and their settings, made, changed and removed."""

from collections.abc import Mapping
from typing import Any, Final

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..core.metadata import metadata_request
from ..core.security import Operation
from ..core.topics import OWN as OWN
from ..core.topics import (
    TOPIC,
    alter_configs_request,
    create_partitions_request,
    create_topic_request,
    delete_topic_request,
    describe_configs_request,
    read_results,
)
from .cluster import Cluster, checked
from .retrying import Throttled

_TIMEOUT_MS: Final = 10_000


async def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> None:
    """Make a topic; -1 stands for the cluster's default."""
    values = create_topic_request(
        name,
        timeout_ms=_TIMEOUT_MS,
        partitions=partitions,
        replication_factor=replication_factor,
        configs=configs,
        validate_only=validate_only,
    )
    await _each(cluster, ApiKey.CREATE_TOPICS, values, "topics")
    cluster.forget(name)


async def delete_topic(cluster: Cluster, name: str) -> None:
    """Remove a topic with all that is in it."""
    await _each(cluster, ApiKey.DELETE_TOPICS, delete_topic_request(name, timeout_ms=_TIMEOUT_MS), "responses")
    cluster.forget(name)


async def create_partitions(cluster: Cluster, name: str, total: int) -> None:
    """Let a topic grow to so many partitions."""
    values = create_partitions_request(name, total, timeout_ms=_TIMEOUT_MS)
    await _each(cluster, ApiKey.CREATE_PARTITIONS, values, "results")
    cluster.forget(name)


async def alter_configs(cluster: Cluster, name: str, changes: Mapping[str, str | None]) -> None:
    """Set settings of a topic, and take back those that are None."""
    values = alter_configs_request(TOPIC, [name], changes)
    await _each(cluster, ApiKey.INCREMENTAL_ALTER_CONFIGS, values, "responses")


async def describe_configs(cluster: Cluster, name: str) -> list[Any]:
    """All settings of a topic, with where each comes from."""
    values = describe_configs_request(TOPIC, [name])

    (found,) = (await cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, values)).results
    return list(checked(found).configs)


async def may_write(cluster: Cluster, topic: str) -> bool:
    """Whether the client's user may write to a topic, by the broker's word."""
    values = {**metadata_request([topic]), "include_topic_authorized_operations": True}
    (found,) = (await cluster.ask_any(ApiKey.METADATA, values)).topics
    return bool(checked(found).topic_authorized_operations & 1 << Operation.WRITE)


async def describe_cluster(cluster: Cluster) -> Any:
    """The brokers, the controller and the cluster's id."""
    return await cluster.ask_any(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False})


async def _each(cluster: Cluster, api_key: ApiKey, values: Mapping[str, Any], results: str) -> None:
    answer = await cluster.ask_controller(api_key, values)
    for code, message in read_results(getattr(answer, results)):
        if code is ErrorCode.throttling_quota_exceeded:
            raise Throttled(answer.throttle_time.total_seconds())
        if code is not ErrorCode.none:
            raise CodedError(code, message)
