"""Topics made, changed and removed, and settings: requests, and what was refused."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.protocol.errors import ErrorCode

TOPIC, BROKER = 2, 4
"""Kinds of what has settings."""
OWN: Final = 1
"""The source of a setting that was given to the topic itself."""
_SET, _DELETE = 0, 1


def create_topic_request(
    name: str,
    *,
    timeout_ms: int,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
    assignments: Mapping[int, Iterable[int]] | None = None,
    validate_only: bool = False,
) -> dict[str, Any]:
    """CreateTopics for one topic; -1 stands for the cluster's default. `assignments` are the brokers of each partition,
    and leave no other number to choose."""
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication_factor,
        "assignments": [
            {"partition_index": partition, "broker_ids": list(brokers)}
            for partition, brokers in (assignments or {}).items()
        ],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }
    return {"topics": [topic], "timeout": timeout_ms, "validate_only": validate_only}


def delete_topic_request(name: str, *, timeout_ms: int) -> dict[str, Any]:
    """DeleteTopics for one topic."""
    return {"topic_names": [name], "timeout": timeout_ms}


def create_partitions_request(name: str, total: int, *, timeout_ms: int) -> dict[str, Any]:
    """CreatePartitions: let a topic grow to so many."""
    topic = {"name": name, "count": total, "assignments": None}
    return {"topics": [topic], "timeout": timeout_ms, "validate_only": False}


def alter_configs_request(
    kind: int, names: Iterable[str], changes: Mapping[str, str | None], *, validate_only: bool = False
) -> dict[str, Any]:
    """IncrementalAlterConfigs: set settings of topics or brokers, and take back those that are None."""
    configs = [
        {"name": key, "config_operation": _DELETE if value is None else _SET, "value": value}
        for key, value in changes.items()
    ]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs} for name in names]
    return {"resources": resources, "validate_only": validate_only}


def describe_configs_request(kind: int, names: Iterable[str], settings: list[str] | None = None) -> dict[str, Any]:
    """DescribeConfigs: these settings, or all, of topics or brokers."""
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": settings} for name in names]
    return {"resources": resources, "include_synonyms": False, "include_documentation": False}


def read_results(results: Iterable[Any]) -> list[tuple[ErrorCode, str]]:
    """The code and the broker's message of each topic or resource of an answer."""
    return [(result.error_code, getattr(result, "error_message", None) or "") for result in results]
