"""OffsetCommit with many partitions in a request, from several groups at once, pipelined on a few connections.

Beside it: as many records of the same size, produced as one batch to a plain topic. That is what a commit comes to
once its offsets are records, without taking a request apart, checking it and keeping what it says in memory.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Final

from .frames import NEVER, batch_of
from .load import WARM_UP_SECONDS
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .produce import Shape, produce_to_broker
from .setting import Server, Setting
from .wire import Link, Links, decoded, framed, nested, run

TOPIC: Final = "bench"
RELAXED: Final = {"log.flush.interval.messages": NEVER}
_GROUPS: Final = 8
_OFFSETS_UNDER_WAY: Final = 16_000
RECORD_SIZE: Final = 2 + 2 + len("group-0000") + 2 + len(TOPIC) + 4 + 24
"""Of the key and the value of a committed offset."""
_COMMIT: Final = (8, 8)
_FIND: Final = (10, 4)


def commit_frame(group: str, partitions: Iterable[int], offset: int) -> bytes:
    """A commit without a member: what consumers that assign themselves send."""
    partition, topic = nested(*_COMMIT, "OffsetCommitRequestPartition"), nested(*_COMMIT, "OffsetCommitRequestTopic")
    kept = tuple(
        partition(partition_index=index, committed_offset=offset + index, committed_metadata="") for index in partitions
    )
    return framed(
        *_COMMIT,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=(topic(name=TOPIC, partitions=kept),),
    )


async def find_coordinator(link: Link, group: str) -> None:
    """Look for a group, which makes the internal topic where there is none yet."""
    reply = decoded(*_FIND, await link.ask(framed(*_FIND, key_type=0, coordinator_keys=(group,))))
    if reply.coordinators[0].error_code:
        raise BenchError(f"a coordinator was not found: {reply.coordinators[0].error_code!r}")


async def commit_once(link: Link, frame: bytes) -> bytes:
    """The reply to a commit, with every offset kept."""
    reply = await link.ask(frame)
    codes = [one.error_code for topic in decoded(*_COMMIT, reply).topics for one in topic.partitions]
    if not codes or any(codes):
        raise BenchError(f"offsets were not committed: {set(codes)}")
    return reply


class _Committers:
    """Groups that commit again and again, each on its connection."""

    def __init__(self, links: Sequence[Link], frames: Sequence[bytes], window: int) -> None:
        self._sides = list(zip(links, frames, strict=True))
        self._window = window
        self.count = 0
        self._end = 0.0

    async def run(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        async with asyncio.TaskGroup() as tasks:
            for link, frame in self._sides:
                good = await commit_once(link, frame)
                for _ in range(self._window):
                    tasks.create_task(self._commit(link, frame, good))

    async def _commit(self, link: Link, frame: bytes, good: bytes) -> None:
        while time.perf_counter() < self._end:
            if await link.ask(frame) != good:
                raise BenchError("a commit was answered with an error")
            self.count += 1


async def _measure(server: Server, seconds: float, per_request: int) -> Sample:
    async with Links(server.port) as links:
        frames = [commit_frame(f"group-{number:04}", range(per_request), 1 << 40) for number in range(_GROUPS)]
        connections = [await links.open() for _ in range(_GROUPS)]
        await find_coordinator(connections[0], "group-0000")
        committers = _Committers(connections, frames, max(_OFFSETS_UNDER_WAY // per_request // _GROUPS, 1))
        await committers.run(WARM_UP_SECONDS)
        first, before, start = committers.count, server.cpu_seconds(), time.perf_counter()
        await committers.run(seconds)
        taken, cpu = time.perf_counter() - start, server.cpu_seconds() - before
    offsets = (committers.count - first) * per_request
    return _sample(offsets, taken, cpu)


def _sample(offsets: int, seconds: float, cpu: float) -> Sample:
    return {"rate": offsets / seconds, "core": offsets / cpu, CPU: cpu / offsets * 1e6}


def commit(setting: Setting, *, per_request: int, durable: bool) -> Sample:
    """One round against a fresh broker."""
    with setting.broker({} if durable else RELAXED) as server:
        server.create_topic(TOPIC, {}, per_request)
        return run(_measure(server, setting.seconds, per_request))


def produce(setting: Setting, *, per_request: int, durable: bool) -> Sample:
    """One round of the same bytes to a plain topic."""
    window = max(_OFFSETS_UNDER_WAY // per_request, 1)
    shape = Shape(batch=batch_of(per_request, RECORD_SIZE), window=window, durable=durable)
    pumped, _ = produce_to_broker(setting, shape)
    return _sample(pumped.frames * per_request, pumped.seconds, pumped.cpu_seconds)


def _work(per_request: int, *, durable: bool) -> Work:
    aim = Aim(of=Of.VALUE, bound=100_000, at_least=True)
    return Work(
        name=f"offsets-commit-{per_request}" + ("-fsync" if durable else ""),
        title=f"commit, {per_request:,} offsets per request, {'fsync' if durable else 'no fsync'}",
        against="the same records produced to a plain topic, one batch per request",
        figures=(
            Figure(key="rate", label="", unit="offsets/s"),
            Figure(key="core", label="per second of the server's CPU", unit="offsets", aim=aim),
        ),
        broker=lambda setting: commit(setting, per_request=per_request, durable=durable),
        ceiling=lambda setting: produce(setting, per_request=per_request, durable=durable),
        cpu_unit="µs/offset",
        rounds=1,
    )


def works() -> list[Work]:
    """Commits in two sizes, with and without waiting for the disk."""
    return [_work(size, durable=durable) for size in (1000, 100) for durable in (False, True)]
