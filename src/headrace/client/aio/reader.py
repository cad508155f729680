"""Reads several partitions from their positions, with one long poll."""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record
from headrace.protocol.topic_partition import TopicPartition

from ..core.codes import Remedy, remedy_of
from ..core.errors import ConnectionLost
from ..core.offsets import EARLIEST, LATEST, READ_COMMITTED
from .cluster import Cluster
from .fetching import Page, fetch_from, list_offsets
from .retrying import Pauses, passes

RESETS: Final = {"earliest": EARLIEST, "latest": LATEST}


class FetchedRecord(NamedTuple):
    """A record and where it stands."""

    topic: str
    partition: int
    record: Record


class Reader:
    """Positions in partitions that move as records are taken. `reset` is where to go on when an offset is gone.

    The order of records of a partition is kept; which partition comes first changes from call to call.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, int],
        *,
        reset: str = "earliest",
        isolation: int = READ_COMMITTED,
        max_bytes: int = 1 << 20,
    ) -> None:
        self.positions = dict(positions)
        self._cluster = cluster
        self._reset = reset
        self._isolation = isolation
        self._max_bytes = max_bytes
        self._held: dict[TopicPartition, list[Record]] = {}
        """What was fetched and not taken yet."""

    @property
    def has_more(self) -> bool:
        """Whether records are here that nobody has taken yet."""
        return any(self._held.values())

    async def take(self, most: int, wait_ms: int, most_bytes: int | None = None) -> list[FetchedRecord]:
        """Up to `most` records, with up to so many bytes of keys and values, but one at least; waits for the first."""
        if not self.has_more:
            await self._fill(wait_ms)
        taken: list[FetchedRecord] = []
        left = most_bytes
        for partition in list(self._held):
            records = self._held.pop(partition)
            count = most - len(taken)
            if left is not None:
                count, left = _fitting(records[:count], left, takes_one=not taken)
            part, rest = records[:count], records[count:]
            if part:
                self.positions[partition] = part[-1].offset + 1
                taken += [FetchedRecord(*partition, record) for record in part]
            if rest:
                self._held[partition] = rest
        return taken

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Go on from another offset."""
        self._held.pop(topic_partition, None)
        self.positions[topic_partition] = offset

    async def _fill(self, wait_ms: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        pauses = Pauses(max(wait_ms / 1000, self._cluster.patience))
        while True:
            left = max(int((deadline - loop.time()) * 1000), 0)
            try:
                if await self._fetch(left) or left == 0:
                    return
            except ConnectionLost as error:
                for topic, _ in self.positions:
                    self._cluster.forget(topic)
                await pauses.after(error)
            except CodedError as error:
                if not passes(error):
                    raise
                await pauses.after(error)

    async def _fetch(self, wait_ms: int) -> bool:
        """One round over all leaders, until one of them brings something."""
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for partition, offset in self.positions.items():
            by_node.setdefault(await self._cluster.leader(*partition), {})[partition] = offset
        if not by_node:
            await asyncio.sleep(wait_ms / 1000)
            return False
        rounds = {asyncio.ensure_future(self._fetch_from(node, each, wait_ms)) for node, each in by_node.items()}
        try:
            return await _first_true(rounds)
        finally:
            for each in rounds:
                each.cancel()
            await asyncio.gather(*rounds, return_exceptions=True)

    async def _fetch_from(self, node: int, positions: Mapping[TopicPartition, int], wait_ms: int) -> bool:
        pages = await fetch_from(self._cluster, node, positions, self._max_bytes, wait_ms, isolation=self._isolation)
        brought = False
        for partition, page in pages.items():
            if isinstance(page, Page):
                if page.records:
                    self._held[partition] = page.records
                    brought = True
                else:
                    self.positions[partition] = page.next_offset
            else:
                await self._reset_position(partition, page)
        return brought

    async def _reset_position(self, topic_partition: TopicPartition, error: CodedError) -> None:
        topic, partition = topic_partition
        if error.code is ErrorCode.offset_out_of_range:
            found = await list_offsets(self._cluster, topic, {partition: RESETS[self._reset]}, self._isolation)
            self.positions[topic_partition] = found[partition][0]
            return
        if remedy_of(error.code) is Remedy.REFRESH_METADATA:
            self._cluster.forget(topic)
        raise error


def size_of(record: Record) -> int:
    """Bytes of a record's key and value."""
    return len(record.key or b"") + len(record.value or b"")


def _fitting(records: list[Record], room: int, *, takes_one: bool) -> tuple[int, int]:
    """How many of the first records fit, and the room that they leave: none once one did not fit."""
    for count, record in enumerate(records):
        size = size_of(record)
        if size > room and not (takes_one and count == 0):
            return count, 0
        room = max(room - size, 0)
    return len(records), room


async def _first_true(rounds: set[asyncio.Task[bool]]) -> bool:
    """Whether one says yes; returns with the first that does, raises the first error."""
    pending = rounds
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if sum(each.result() for each in done):
            return True
    return False
