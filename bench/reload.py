"""A start with a million committed offsets, after compaction: how long until all are loaded, and who waits meanwhile.

Another group, whose part of the internal topic is small, goes on as if nothing was: its member sends heartbeats and
reads its offsets, and a producer writes, each every few milliseconds. A delay counts from when its request was due.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Final

from headrace.coordinator.groups.offsets.records import OFFSETS_TOPIC
from headrace.coordinator.runtime.partitions import partition_of

from .commits import RECORD_SIZE, TOPIC, commit_frame, commit_once, find_coordinator
from .frames import NEVER, batch_of, produce_frame, produced_offset
from .members import ClassicMember, Heartbeats
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .setting import Server, Setting
from .wire import Link, Links, code_of, decoded, framed, nested, run, sleep_until

_GROUPS: Final = 4000
_PARTITIONS: Final = 250
_AGAIN: Final = 1000
"""Groups that commit a second time, so that there is something to compact."""
_SHARDS: Final = 50
_OTHER: Final = "other"
_OTHER_PARTITIONS: Final = 12
_PLAIN: Final = "plain"
_LINKS: Final = 8
_WINDOW: Final = 4
_PACE_SECONDS: Final = 0.005
_LOOK_SECONDS: Final = 0.02
_PATIENCE_SECONDS: Final = 60.0
_QUIET_SECONDS: Final = 1.5
_HEARTBEAT_SECONDS: Final = 3.0
_LOADING: Final = 14
_FETCH: Final = (9, 9)
_LIST: Final = (16, 5)
_SMALL_SEGMENTS: Final = {
    "offsets.topic.segment.bytes": str(256 * 1024),
    "log.cleaner.backoff.ms": "1000",
    "log.flush.interval.messages": NEVER,
}
"""So that the offsets are written quickly, and compacted while one waits."""


def _loaded_groups() -> Iterator[str]:
    """Groups that are not in the other's part of the internal topic."""
    taken = partition_of(_OTHER, _SHARDS)
    names = (f"group-{number:04}" for number in count())
    return islice((name for name in names if partition_of(name, _SHARDS) != taken), _GROUPS)


# Before the start


async def _write(server: Server, data: Path) -> ClassicMember:
    async with Links(server.port) as links:
        first = await links.open()
        await find_coordinator(first, _OTHER)
        await commit_once(first, commit_frame(_OTHER, range(_OTHER_PARTITIONS), 0))
        other = ClassicMember(await links.open(), _OTHER, TOPIC, _PARTITIONS)
        groups = list(_loaded_groups())
        one, two = [commit_frame("group-0000", range(_PARTITIONS), offset) for offset in (1, 2)]
        good = await commit_once(first, one.replace(b"group-0000", groups[0].encode(), 1))
        requests = iter([*((group, one) for group in groups), *((group, two) for group in groups[:_AGAIN])])
        async with asyncio.TaskGroup() as tasks:
            committing = [
                tasks.create_task(_commit(link, requests, good))
                for link in [await links.open() for _ in range(_LINKS)]
                for _ in range(_WINDOW)
            ]
            await other.join()
            beats = Heartbeats()
            beats.start(tasks, [other], _HEARTBEAT_SECONDS)
            await asyncio.wait(committing)
            await _compacted(data)
            await beats.stop([other])
        return other


async def _commit(link: Link, requests: Iterator[tuple[str, bytes]], good: bytes) -> None:
    """Commit for one group after the other; their names have one length, so the request has only to be given one."""
    for group, like in requests:
        frame = like.replace(b"group-0000", group.encode(), 1)
        if await link.ask(frame) != good:
            raise BenchError("a commit was answered with an error")


async def _compacted(data: Path) -> None:
    """Wait until the internal topic is smaller than what was written to it, and stays so."""
    written = (_GROUPS + _AGAIN) * len(batch_of(_PARTITIONS, RECORD_SIZE).data)
    deadline = time.perf_counter() + _PATIENCE_SECONDS
    size, since = 0, time.perf_counter()
    while size > written * 0.95 or time.perf_counter() < since + _QUIET_SECONDS:
        if time.perf_counter() > deadline:
            raise BenchError(f"of {written} bytes of offsets {size} are left, which is not compacted")
        await asyncio.sleep(_LOOK_SECONDS * 10)
        found = _size(data)
        if found != size:
            size, since = found, time.perf_counter()


def _size(data: Path) -> int:
    total = 0
    for path in data.rglob(f"{OFFSETS_TOPIC}-*/*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


# After it


class _Probe:
    """Sends one kind of request at its pace, and keeps how late each answer came."""

    def __init__(self, request: Callable[[], Awaitable[None]]) -> None:
        self._request = request
        self.delays: list[float] = []

    async def run(self, done: asyncio.Event) -> None:
        due = time.perf_counter()
        while not done.is_set():
            await sleep_until(due)
            await self._request()
            now = time.perf_counter()
            self.delays.append(now - due)
            due = max(due + _PACE_SECONDS, now)


def _offset_fetch(group: str, partitions: int) -> bytes:
    topic = nested(*_FETCH, "OffsetFetchRequestTopics")(name=TOPIC, partition_indexes=tuple(range(partitions)))
    asked = nested(*_FETCH, "OffsetFetchRequestGroup")(group_id=group, topics=(topic,))
    return framed(*_FETCH, groups=(asked,), require_stable=False)


async def _offsets(link: Link, frame: bytes) -> list[int] | None:
    """The offsets of a group; None while it is being loaded."""
    (group,) = decoded(*_FETCH, await link.ask(frame)).groups
    if group.error_code.value == _LOADING:
        return None
    if group.error_code:
        raise BenchError(f"offsets were not fetched: {group.error_code!r}")
    return [one.committed_offset for topic in group.topics for one in topic.partitions]


async def _measure(server: Server, other: ClassicMember) -> Sample:
    start, before = time.perf_counter(), server.cpu_seconds()
    done = asyncio.Event()
    async with Links(server.port) as links:
        other.move_to(await links.open())
        fetching, producing, listing = [await links.open() for _ in range(3)]
        ask, batch = _offset_fetch(_OTHER, _OTHER_PARTITIONS), produce_frame(_PLAIN, batch_of(1, 100))

        async def fetch() -> None:
            if await _offsets(fetching, ask) != list(range(_OTHER_PARTITIONS)):
                raise BenchError("the other group's offsets are not what they were")

        async def produce() -> None:
            produced_offset(bytes(4) + await producing.ask(batch), _PLAIN)

        while await _offsets(fetching, ask) is None:
            continue
        first = time.perf_counter() - start
        probes = {"heartbeat": _Probe(other.beat), "fetch": _Probe(fetch), "produce": _Probe(produce)}
        async with asyncio.TaskGroup() as tasks:
            for probe in probes.values():
                tasks.create_task(probe.run(done))
            await _all_loaded(listing)
            loaded, cpu = time.perf_counter() - start, server.cpu_seconds() - before
            done.set()
        await _check(listing)
    worst = {key: max(probe.delays) * 1e3 for key, probe in probes.items()}
    return {"load": loaded, "first": first * 1e3, **worst, CPU: cpu / (_GROUPS * _PARTITIONS) * 1e6}


async def _all_loaded(link: Link) -> None:
    """Wait until groups can be listed, which takes all of them; those listed are few, to cost little."""
    frame = framed(*_LIST, states_filter=("Stable",), types_filter=())
    due = time.perf_counter()
    while (code := code_of(await link.ask(frame))) == _LOADING:
        await sleep_until(due := due + _LOOK_SECONDS)
    if code:
        raise BenchError(f"groups were not listed: error code {code}")


async def _check(link: Link) -> None:
    """Groups have the offsets that they committed last; some of them are asked."""
    for number, group in enumerate(_loaded_groups()):
        last = 2 if number < _AGAIN else 1
        if number % 200 == 0 and await _offsets(link, _offset_fetch(group, _PARTITIONS)) != [
            last + index for index in range(_PARTITIONS)
        ]:
            raise BenchError(f"the offsets of {group} are not those that it committed")


def reload(setting: Setting) -> Sample:
    """Write and compact with one broker, then start another one on its data."""
    with setting.directory() as data:
        with setting.running(setting.broker_command(data, _SMALL_SEGMENTS), data) as server:
            server.create_topic(TOPIC, {}, _PARTITIONS)
            server.create_topic(_PLAIN, {"flush.messages": NEVER})
            other = run(_write(server, data))
        start = time.perf_counter()
        with setting.running(setting.broker_command(data), data) as server:
            ready = time.perf_counter() - start
            return {"start": ready, **run(_measure(server, other))}


def works() -> list[Work]:
    in_time = Aim(of=Of.VALUE, bound=250, at_least=False)
    return [
        Work(
            name="offsets-load",
            title=f"load of {_GROUPS * _PARTITIONS:,} offsets",
            against="",
            figures=(
                Figure(key="load", label="", unit="s", aim=Aim(of=Of.VALUE, bound=10, at_least=False)),
                Figure(key="start", label="start until the broker is ready", unit="s"),
                Figure(key="first", label="from then to the first offsets of another group", unit="ms", aim=in_time),
                Figure(key="heartbeat", label="another group's heartbeats meanwhile, worst", unit="ms", aim=in_time),
                Figure(key="fetch", label="another group's offset fetches meanwhile, worst", unit="ms", aim=in_time),
                Figure(key="produce", label="tiny produce requests meanwhile, worst", unit="ms", aim=in_time),
            ),
            broker=reload,
            cpu_unit="µs/offset",
            rounds=1,
        )
    ]
