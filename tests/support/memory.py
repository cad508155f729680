"""A metadata store in memory, for a broker in virtual time."""

from collections.abc import Sequence

from headrace.cluster.store import (
    ANY_VERSION,
    AlreadyExists,
    Check,
    Create,
    Delete,
    Entries,
    NotFound,
    Operation,
    Put,
    VersionConflict,
    Versioned,
)


class MemoryStore:
    """Keeps everything; fails nothing."""

    def __init__(self) -> None:
        self._values: dict[str, Versioned] = {}

    async def get(self, key: str) -> Versioned | None:
        return self._values.get(key)

    async def list(self, prefix: str) -> Entries:
        return sorted((key, value) for key, value in self._values.items() if key.startswith(prefix))

    async def commit(self, operations: Sequence[Operation]) -> None:
        values = dict(self._values)
        for operation in operations:
            self._do(values, operation)
        self._values = values

    async def close(self) -> None:
        """Nothing to let go."""

    def _do(self, values: dict[str, Versioned], operation: Operation) -> None:
        key, found = operation.key, values.get(operation.key)
        if isinstance(operation, Create):
            if found is not None:
                raise AlreadyExists(key)
            values[key] = Versioned(operation.value, 0)
            return
        if found is None:
            raise NotFound(key)
        if operation.expected_version not in (ANY_VERSION, found.version):
            raise VersionConflict(key)
        if isinstance(operation, Put):
            values[key] = Versioned(operation.value, found.version + 1)
        elif isinstance(operation, Delete):
            del values[key]
        else:
            assert isinstance(operation, Check)
