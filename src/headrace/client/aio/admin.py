"""Topics, settings and ACLs: made, changed, shown and removed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.protocol.acl import AclBinding, AclFilter, AclOperation
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..core.metadata import metadata_request
from ..core.security import (
    create_acls_request,
    delete_acls_request,
    describe_acls_request,
    read_acls,
    read_deleted,
)
from ..core.topics import BROKER as BROKER
from ..core.topics import OWN as OWN
from ..core.topics import TOPIC as TOPIC
from ..core.topics import (
    alter_configs_request,
    create_partitions_request,
    create_topic_request,
    delete_topic_request,
    describe_configs_request,
    read_results,
)
from .cluster import Cluster, checked
from .retrying import Throttled, retried

_TIMEOUT_MS: Final = 10_000


async def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
    assignments: Mapping[int, Sequence[int]] | None = None,
    validate_only: bool = False,
) -> None:
    """Make a topic; -1 stands for the cluster's default."""
    values = create_topic_request(
        name,
        timeout_ms=_TIMEOUT_MS,
        partitions=partitions,
        replication_factor=replication_factor,
        configs=configs,
        assignments=assignments,
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


async def alter_configs(
    cluster: Cluster,
    name: str,
    changes: Mapping[str, str | None],
    *,
    kind: int = TOPIC,
    validate_only: bool = False,
) -> None:
    """Set settings of a topic or a broker, and take back those that are None; no name stands for all brokers."""
    values = alter_configs_request(kind, [name], changes, validate_only=validate_only)
    answer = await _ask_owner(cluster, kind, name, ApiKey.INCREMENTAL_ALTER_CONFIGS, values)
    _check(answer, answer.responses)


async def describe_configs(cluster: Cluster, name: str, *, kind: int = TOPIC) -> list[Any]:
    """All settings of a topic or a broker, with where each comes from."""
    values = {**describe_configs_request(kind, [name]), "include_synonyms": True}
    (found,) = (await _ask_owner(cluster, kind, name, ApiKey.DESCRIBE_CONFIGS, values)).results
    return list(checked(found).configs)


async def _ask_owner(cluster: Cluster, kind: int, name: str, api_key: ApiKey, values: Mapping[str, Any]) -> Any:
    """What only one broker knows is asked of that one."""
    if kind != BROKER or not name:
        asked = cluster.ask_any if api_key is ApiKey.DESCRIBE_CONFIGS else cluster.ask_controller
        return await asked(api_key, values)

    async def attempt() -> Any:
        return checked(await (await cluster.to_node(int(name))).ask(api_key, values))

    return await retried(attempt, cluster.patience, lambda: None)


async def acls(cluster: Cluster, wanted: AclFilter) -> list[AclBinding]:
    """The rules that a filter takes, in order."""
    return sorted(read_acls(await cluster.ask_any(ApiKey.DESCRIBE_ACLS, describe_acls_request(wanted))))


async def create_acls(cluster: Cluster, rules: Sequence[AclBinding]) -> None:
    """Make rules; those that are there already stay as they are."""
    answer = await cluster.ask_controller(ApiKey.CREATE_ACLS, create_acls_request(rules))
    _check(answer, answer.results)


async def delete_acls(cluster: Cluster, wanted: AclFilter) -> list[AclBinding]:
    """Remove the rules that a filter takes; those that are gone."""
    answer = await cluster.ask_controller(ApiKey.DELETE_ACLS, delete_acls_request([wanted]))
    _check(answer, answer.filter_results)
    deleted = [each for result in answer.filter_results for each in read_deleted(result)]
    _check(answer, (match for _, match in deleted))
    return sorted(rule for rule, _ in deleted)


async def reassignments(cluster: Cluster, topics: Sequence[tuple[str, Sequence[int]]] | None) -> list[Any]:
    """The partitions that move now, of some topics or all."""
    asked = None
    if topics is not None:
        asked = [{"name": name, "partition_indexes": list(partitions)} for name, partitions in topics]
    values = {"timeout": _TIMEOUT_MS, "topics": asked}
    return list((await cluster.ask_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, values)).topics)


async def authorized_operations(cluster: Cluster, topic: str) -> list[AclOperation]:
    """What the client's user may do with a topic, by the broker's word."""
    (found,) = await _with_operations(cluster, [topic])
    return _operations(checked(found).topic_authorized_operations)


async def topic_operations(cluster: Cluster, topics: Sequence[str]) -> dict[str, list[AclOperation] | None]:
    """The same for some topics: nothing where the user may not even know of one, None where there is none."""
    operations: dict[str, list[AclOperation] | None] = {}
    for found in await _with_operations(cluster, topics):
        if found.error_code is ErrorCode.topic_authorization_failed:
            operations[found.name] = []
        elif found.error_code is ErrorCode.unknown_topic_or_partition:
            operations[found.name] = None
        else:
            operations[found.name] = _operations(checked(found).topic_authorized_operations)
    return operations


async def cluster_operations(cluster: Cluster) -> list[AclOperation]:
    """What the client's user may do with the cluster, by the broker's word."""
    values = {"include_cluster_authorized_operations": True}
    return _operations(checked(await cluster.ask_any(ApiKey.DESCRIBE_CLUSTER, values)).cluster_authorized_operations)


async def _with_operations(cluster: Cluster, topics: Sequence[str]) -> Sequence[Any]:
    values = {**metadata_request(topics), "include_topic_authorized_operations": True}
    found: Sequence[Any] = (await cluster.ask_any(ApiKey.METADATA, values)).topics
    return found


def _operations(bits: int) -> list[AclOperation]:
    return [operation for operation in AclOperation if operation > AclOperation.ANY and int(bits) & 1 << operation]


async def may_write(cluster: Cluster, topic: str) -> bool:
    """Whether the client's user may write to a topic, by the broker's word."""
    return AclOperation.WRITE in await authorized_operations(cluster, topic)


async def describe_cluster(cluster: Cluster) -> Any:
    """The brokers, the controller and the cluster's id."""
    return await cluster.ask_any(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": False})


async def _each(cluster: Cluster, api_key: ApiKey, values: Mapping[str, Any], results: str) -> None:
    answer = await cluster.ask_controller(api_key, values)
    _check(answer, getattr(answer, results))


def _check(answer: Any, results: Iterable[Any]) -> None:
    """`CodedError` for the first result of an answer that is an error."""
    for code, message in read_results(results):
        if code is ErrorCode.throttling_quota_exceeded:
            raise Throttled(answer.throttle_time.total_seconds())
        if code is not ErrorCode.none:
            raise CodedError(code, message)
