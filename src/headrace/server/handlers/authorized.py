"""What a principal may do, as the bit sets of the `authorized_operations` fields. Without ACLs: everything."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from headrace.protocol.errors import ErrorCode

NOT_ASKED: Final = -(2**31)
"""The value of the field where the client did not ask."""


class AclOperation(IntEnum):
    """Kafka's operations; each is the number of its bit."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


def _bits(*operations: AclOperation) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS: Final = _bits(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
GROUP_OPERATIONS: Final = _bits(
    AclOperation.READ,
    AclOperation.DELETE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
)
CLUSTER_OPERATIONS: Final = _bits(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.DESCRIBE_CONFIGS,
    AclOperation.ALTER_CONFIGS,
    AclOperation.IDEMPOTENT_WRITE,
)


def with_operations(group: Mapping[str, Any], operations: int) -> dict[str, Any]:
    """A group's description with what may be done with it, which is told of groups that are described only."""
    told = operations if group["error_code"] is ErrorCode.none else NOT_ASKED
    return {**group, "authorized_operations": told}
