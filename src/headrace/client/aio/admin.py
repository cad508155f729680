"""Topics and their settings, made, changed and removed."""

from collections.abc import Mapping
from typing import Any, Final

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from .cluster import Cluster, checked
from .retrying import retried

_TOPIC: Final = 2
_SET, _DELETE = 0, 1
_TIMEOUT_MS: Final = 10_000
OWN: Final = 1
"""The source of a setting that was given to the topic itself."""


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
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }
    values = {"topics": [topic], "timeout": _TIMEOUT_MS, "validate_only": validate_only}
    await _each(cluster, ApiKey.CREATE_TOPICS, values, "topics")
    cluster.forget(name)


async def delete_topic(cluster: Cluster, name: str) -> None:
    """Remove a topic with all that is in it."""
    await _each(cluster, ApiKey.DELETE_TOPICS, {"topic_names": [name], "timeout": _TIMEOUT_MS}, "responses")
    cluster.forget(name)


async def create_partitions(cluster: Cluster, name: str, total: int) -> None:
    """Let a topic grow to so many partitions."""
    topic = {"name": name, "count": total, "assignments": None}
    values = {"topics": [topic], "timeout": _TIMEOUT_MS, "validate_only": False}
    await _each(cluster, ApiKey.CREATE_PARTITIONS, values, "results")
    cluster.forget(name)


async def alter_configs(cluster: Cluster, name: str, changes: Mapping[str, str | None]) -> None:
    """Set settings of a topic, and take back those that are None."""
    configs = [
        {"name": key, "config_operation": _DELETE if value is None else _SET, "value": value}
        for key, value in changes.items()
    ]
    resource = {"resource_type": _TOPIC, "resource_name": name, "configs": configs}
    values = {"resources": [resource], "validate_only": False}
    await _each(cluster, ApiKey.INCREMENTAL_ALTER_CONFIGS, values, "responses")


async def describe_configs(cluster: Cluster, name: str) -> list[Any]:
    """All settings of a topic, with where each comes from."""
    resource = {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": None}
    values = {"resources": [resource], "include_synonyms": False, "include_documentation": False}

    async def attempt() -> list[Any]:
        (found,) = (await (await cluster.any()).ask(ApiKey.DESCRIBE_CONFIGS, values)).results
        return list(checked(found).configs)

    return await retried(attempt, cluster.patience, lambda: None)


async def describe_cluster(cluster: Cluster) -> Any:
    """The brokers, the controller and the cluster's id."""
    return await cluster.ask_any(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False})


async def _each(cluster: Cluster, api_key: ApiKey, values: Mapping[str, Any], results: str) -> None:
    answer = await cluster.ask_controller(api_key, values)
    for result in getattr(answer, results):
        if result.error_code is not ErrorCode.none:
            raise CodedError(result.error_code, result.error_message or "")
