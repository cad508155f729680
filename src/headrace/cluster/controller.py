"""The controller as handlers and coordinators use it, wherever it runs."""

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from headrace.config import AlterConfigOp
from headrace.protocol.errors import CodedError

from .entries import EntryKind, EntryValues
from .image import Topic
from .metadata_writer import DecideEntry, Quorum, TopicSpec


class Controller(Protocol):
    """Changes the cluster. `MetadataWriter` does it itself; in a cluster another broker may have to.

    Every call raises `CodedError` with what the client is to be told, NOT_CONTROLLER where it should ask another.
    """

    async def create_topic(self, spec: TopicSpec, *, validate_only: bool = False) -> Topic: ...

    async def delete_topic(self, name: str, topic_id: UUID | None = None) -> Topic: ...

    async def create_partitions(
        self, name: str, total: int, assignments: Sequence[Sequence[int]] | None = None, *, validate_only: bool = False
    ) -> Topic: ...

    async def alter_topic_configs(
        self, name: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Topic: ...

    async def alter_broker_configs(
        self, broker: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Mapping[str, str]: ...

    async def alter_group_configs(
        self, group_id: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Mapping[str, str]: ...

    async def alter_client_metrics(
        self, name: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Mapping[str, str]: ...

    async def change_entries(
        self, kind: EntryKind, changes: Mapping[str, DecideEntry], *, validate_only: bool = False
    ) -> Mapping[str, EntryValues]:
        """Change entries by name: each as is decided on what it is now. What they are then; without values, gone.

        Nothing is changed where one decision raises. Very many are more than one commit: all before a failure count.
        """
        ...

    async def describe_quorum(self) -> Quorum: ...

    async def elect(self, name: str, index: int) -> None: ...

    async def elect_uncleanly(
        self, partitions: Sequence[tuple[str, int]], position: int | None = None
    ) -> list[CodedError | None]:
        """Let partitions be led that nobody leads: by the replica at that position, else by the longest living log.

        For each what was in the way, if anything was.
        """
        ...

    async def reassign(self, name: str, index: int, target: Sequence[int] | None) -> None: ...

    async def allocate_producer_id(self) -> int: ...
