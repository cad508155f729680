"""200 groups with 2,000 members, a connection each: one large group rebalances while the others send heartbeats.

The large group has 100 members over 1,000 partitions, of the classic protocol or of the new one; of the others one
half speaks this and one half that, at the intervals that clients have by default. A member joins, then it leaves
again; the time runs from that until every member has its part of the new assignment, and every partition one owner.
How soon members hear that something changed is a matter of their interval, so those of the large group beat ten times
a second: what is left is what the broker takes. A heartbeat's delay counts from when it was due.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from statistics import median
from typing import Final

from .commits import find_coordinator
from .members import SESSION_MS, ClassicMember, ConsumerMember, Heartbeats, Member
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .setting import Server, Setting
from .wire import Link, Links, run

_GROUPS: Final = 200
_MEMBERS: Final = 2000
_LARGE: Final = 100
_LARGE_TOPIC: Final = "large"
_LARGE_PARTITIONS: Final = 1000
_SMALL_TOPIC: Final = "small"
_SMALL_PARTITIONS: Final = 12
_CLASSIC_INTERVAL: Final = 3.0
_CONSUMER_INTERVAL: Final = 5.0
_LARGE_INTERVAL: Final = 0.1
_TIMES: Final = 3
_LOOK_SECONDS: Final = 0.002
_PATIENCE_SECONDS: Final = 60.0
_REST_SECONDS: Final = 3.0

MakeMember = Callable[[Link, str, int], Member]
"""A member for a connection, a group and a number."""


def _classic(link: Link, group: str, _: int, *, topic: str, partitions: int) -> Member:
    return ClassicMember(link, group, topic, partitions)


def _consumer(link: Link, group: str, number: int, *, topic: str, partitions: int) -> Member:  # noqa: ARG001
    return ConsumerMember(link, group, topic, f"{group}-{number:012}")


def is_settled(members: Sequence[Member], partitions: int, after: int) -> bool:
    """Whether all members are in one epoch, later than a former one, and every partition has one owner."""
    epoch = members[0].epoch
    if epoch <= after or any(member.epoch != epoch for member in members):
        return False
    owned = sum(len(member.owned) for member in members)
    return owned == partitions and len(set(chain.from_iterable(member.owned for member in members))) == partitions


async def _settle(members: Sequence[Member], partitions: int, after: int) -> None:
    deadline = time.perf_counter() + _PATIENCE_SECONDS
    while not is_settled(members, partitions, after):
        if time.perf_counter() > deadline:
            raise BenchError(f"a group of {len(members)} did not settle in {_PATIENCE_SECONDS:.0f} s")
        await asyncio.sleep(_LOOK_SECONDS)


async def _make_group(links: Links, group: str, size: int, make: MakeMember) -> list[Member]:
    members = [make(await links.open(), group, number) for number in range(size)]
    await asyncio.gather(*(member.join() for member in members))
    return members


async def _make_small(links: Links, group: str, size: int, make: MakeMember) -> list[Member]:
    members = await _make_group(links, group, size, make)
    while not is_settled(members, _SMALL_PARTITIONS, 0):
        await asyncio.gather(*(member.beat() for member in members))
    return members


def _sizes() -> Iterator[int]:
    others, groups = _MEMBERS - _LARGE, _GROUPS - 1
    return (others * (n + 1) // groups - others * n // groups for n in range(groups))


class _Large:
    """The group that rebalances."""

    def __init__(self, links: Links, make: MakeMember, beats: Heartbeats, tasks: asyncio.TaskGroup) -> None:
        self._links = links
        self._make = make
        self._beats = beats
        self._tasks = tasks
        self._members: list[Member] = []

    async def gather(self) -> None:
        """All members but the one that comes and goes."""
        self._members = await _make_group(self._links, "large", _LARGE - 1, self._make)
        self._beats.start(self._tasks, self._members, _LARGE_INTERVAL)
        await _settle(self._members, _LARGE_PARTITIONS, 0)

    async def join(self) -> float:
        """Seconds from a member's first request until the group has settled with it."""
        link = await self._links.open()
        member = self._make(link, "large", _LARGE + len(self._members))
        before, start = self._members[0].epoch, time.perf_counter()
        self._members.append(member)
        await member.join()
        self._beats.start(self._tasks, [member], _LARGE_INTERVAL)
        await _settle(self._members, _LARGE_PARTITIONS, before)
        return time.perf_counter() - start

    async def leave(self) -> float:
        """Seconds from a member's farewell until the group has settled without it."""
        member = self._members.pop()
        await self._beats.stop([member])
        before, start = self._members[0].epoch, time.perf_counter()
        await member.leave()
        await _settle(self._members, _LARGE_PARTITIONS, before)
        return time.perf_counter() - start


async def _measure(server: Server, make: MakeMember) -> Sample:
    kinds = [partial(kind, topic=_SMALL_TOPIC, partitions=_SMALL_PARTITIONS) for kind in (_classic, _consumer)]
    async with Links(server.port) as links:
        await find_coordinator(await links.open(), "large")
        small = await asyncio.gather(
            *(_make_small(links, f"small-{n:03}", size, kinds[n % 2]) for n, size in enumerate(_sizes()))
        )
        async with asyncio.TaskGroup() as tasks:
            others, own = Heartbeats(), Heartbeats()
            others.start(tasks, list(chain.from_iterable(small[::2])), _CLASSIC_INTERVAL)
            others.start(tasks, list(chain.from_iterable(small[1::2])), _CONSUMER_INTERVAL)
            large = _Large(links, make, own, tasks)
            await large.gather()
            sample = await _rounds(server, large, others)
            await others.stop(others.members)
            await own.stop(own.members)
    return sample


async def _rounds(server: Server, large: _Large, others: Heartbeats) -> Sample:
    rest = time.perf_counter()
    await asyncio.sleep(_REST_SECONDS)
    start, before = time.perf_counter(), server.cpu_seconds()
    joins, leaves = [], []
    for _ in range(_TIMES):
        joins.append(await large.join())
        leaves.append(await large.leave())
    end, cpu = time.perf_counter(), server.cpu_seconds() - before
    at_rest, delays = others.between(rest, start), others.between(start, end)
    if not delays:
        raise BenchError("no heartbeat was due during the rebalances")
    return {
        "join": median(joins) * 1e3,
        "leave": median(leaves) * 1e3,
        "p99": delays[len(delays) * 99 // 100] * 1e3,
        "max": delays[-1] * 1e3,
        "rest": at_rest[len(at_rest) * 99 // 100] * 1e3,
        CPU: cpu / (2 * _TIMES) * 1e3,
    }


def rebalance(setting: Setting, make: Callable[..., Member]) -> Sample:
    """One round against a fresh broker."""
    with setting.broker() as server:
        server.create_topic(_LARGE_TOPIC, {}, _LARGE_PARTITIONS)
        server.create_topic(_SMALL_TOPIC, {}, _SMALL_PARTITIONS)
        return run(_measure(server, partial(make, topic=_LARGE_TOPIC, partitions=_LARGE_PARTITIONS)))


def _work(name: str, words: str, make: Callable[..., Member]) -> Work:
    soon = Aim(of=Of.VALUE, bound=1000, at_least=False)
    in_time = Aim(of=Of.VALUE, bound=SESSION_MS / 10, at_least=False)
    return Work(
        name=name,
        title=f"rebalance of {_LARGE} members, {_LARGE_PARTITIONS:,} partitions, {words} protocol",
        against="",
        figures=(
            Figure(key="join", label="one joins", unit="ms", aim=soon),
            Figure(key="leave", label="one leaves", unit="ms", aim=soon),
            Figure(
                key="max", label=f"heartbeats of {_MEMBERS - _LARGE:,} others meanwhile, worst", unit="ms", aim=in_time
            ),
            Figure(key="p99", label="heartbeats of the others meanwhile, p99", unit="ms"),
            Figure(key="rest", label="heartbeats of the others at rest, p99", unit="ms"),
        ),
        broker=partial(rebalance, make=make),
        cpu_unit="ms/rebalance",
        rounds=1,
    )


def works() -> list[Work]:
    return [_work("groups-classic", "classic", _classic), _work("groups-consumer", "new", _consumer)]
