"""Leader recovery (KIP-966): elects where no replica is left that surely holds all that was acknowledged.

Each living replica is asked how far its log reaches; `election.recovered` and `election.led_uncleanly` decide by that.
What was told counts only for the registration of the broker that told it: one that has come anew may hold less.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import structlog

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from . import election
from .election import LogEnd, Rules
from .image import ClusterImage, PartitionState, Topic
from .leaders import Leaders, Offline, portions

RETRY_SECONDS: Final = 1.0
"""Between two questions, while some have not told: a broker that has just come has yet to open its logs."""
ASK_SECONDS: Final = 5.0
"""How long a broker may take to tell."""

log = structlog.get_logger(__name__)


class WantedLog(NamedTuple):
    """A log whose end is asked for. It does not grow any more once its broker knows of this leader epoch."""

    topic_id: UUID
    partition: int
    leader_epoch: int


AskEnds: TypeAlias = Callable[[int, Sequence[WantedLog]], Awaitable[Sequence[LogEnd | None]]]
"""Asks a broker for the ends of its logs, None for each that it cannot tell (yet). Raises OSError or `CodedError`."""


class Told(NamedTuple):
    """The end of a log, and the epoch of the broker that told it."""

    end: LogEnd
    broker_epoch: int


class LogRecovery:
    """Elects by the ends of logs."""

    def __init__(
        self, leaders: Leaders, image: ClusterImage, ask: AskEnds, alive: Callable[[], Mapping[int, int]]
    ) -> None:
        self._leaders = leaders
        self._image = image
        self._ask = ask
        self._alive = alive
        """The epochs of the brokers that live, and whose coming has had its consequences."""
        self._due = asyncio.Event()
        self._reported: tuple[int, frozenset[int]] = (0, frozenset())

    def look(self) -> None:
        """Something has changed that may leave, or find, partitions without a leader."""
        self._due.set()

    async def run(self) -> None:
        """Elect wherever the topics' settings allow it, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            leaderless = await self._leaderless()
            self._report(leaderless)
            waiting = [key for key in leaderless if self._awaits(*key)]
            while waiting:
                await self._recover(waiting)
                waiting = [key for key in waiting if self._awaits(*key)]
                if waiting and await self._is_due_within(RETRY_SECONDS):
                    break

    async def _is_due_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._due.wait()
        except TimeoutError:
            return False
        return True

    async def _leaderless(self) -> list[TopicPartition]:
        """The partitions that nobody leads. Others have their turns between: a cluster has very many."""
        leaderless: list[TopicPartition] = []
        for topics in portions(list(self._image.topics())):
            for topic in topics:
                leaderless += [
                    TopicPartition(topic.name, index)
                    for index, state in enumerate(topic.partitions)
                    if state.leader < 0
                ]
            await asyncio.sleep(0)
        return leaderless

    def _awaits(self, name: str, index: int) -> bool:
        topic = self._topic_of(name, index)
        if topic is None:
            return False
        return election.awaits_recovery(topic.partitions[index], self._leaders.rules(topic), self._alive().keys())

    def _report(self, leaderless: Sequence[TopicPartition]) -> None:
        """Say once whose return partitions wait for that nobody leads."""
        alive = self._alive().keys()
        states = [topic.partitions[index] for name, index in leaderless if (topic := self._topic_of(name, index))]
        awaited = frozenset(r for s in states for r in (*s.isr, *s.elr, *s.last_known_elr) if r not in alive)
        if (len(states), awaited) != self._reported and awaited:
            advice = "bring the brokers back, or see `headrace cluster elect --unclean --help`"
            log.error("offline partitions", partitions=len(states), waiting_for=sorted(awaited), advice=advice)
        self._reported = (len(states), awaited)

    async def _recover(self, keys: Sequence[TopicPartition]) -> None:
        told = await self.ends(keys)
        await asyncio.gather(*(self._leaders.change_if_there(*key, self._deciding(key, told[key])) for key in keys))

    def _deciding(
        self, key: TopicPartition, reported: Mapping[int, Told]
    ) -> Callable[[PartitionState, Rules, Offline], PartitionState | None]:
        def decide(state: PartitionState, rules: Rules, offline: Offline) -> PartitionState | None:
            alive, ends = self._current(reported)
            after = election.recovered(state, rules, alive - offline, ends)
            if after is not None:
                _announce(key, after.leader, state, ends)
            return after

        return decide

    def _current(self, told: Mapping[int, Told]) -> tuple[frozenset[int], dict[int, LogEnd]]:
        """Who lives, and what was told by those who are still registered as they were then."""
        alive = self._alive()
        ends = {broker: one.end for broker, one in told.items() if alive.get(broker) == one.broker_epoch}
        return frozenset(alive), ends

    async def ends(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, dict[int, Told]]:
        """How far the logs of these partitions reach, on each replica that lives and tells; one request to each."""
        alive = dict(self._alive())
        logs: dict[int, list[tuple[TopicPartition, WantedLog]]] = {}
        for name, index in keys:
            topic = self._image.topic(name)
            if topic is None or index >= len(topic.partitions):
                continue
            state = topic.partitions[index]
            for replica in state.replicas:
                if replica in alive:
                    one = WantedLog(topic.id, index, state.leader_epoch)
                    logs.setdefault(replica, []).append((TopicPartition(name, index), one))
        ends: dict[TopicPartition, dict[int, Told]] = {key: {} for key in keys}

        async def ask(broker: int) -> None:
            pairs = logs[broker]
            try:
                answers = await self._ask(broker, [one for _, one in pairs])
            except (OSError, CodedError) as error:
                log.info("a broker does not tell the ends of its logs", broker=broker, reason=str(error))
                return
            for (key, _), end in zip(pairs, answers, strict=True):
                if end is not None:
                    ends[key][broker] = Told(end, alive[broker])

        await asyncio.gather(*map(ask, logs))
        return ends

    async def elect(
        self, partitions: Sequence[tuple[str, int]], replica_position: int | None
    ) -> list[CodedError | None]:
        """Unclean elections that an operator asks for; for each what was in the way, if anything was.

        With a position each is led by the replica that stands there, else by the longest log.
        """
        keys = [TopicPartition(*each) for each in partitions]
        known = [self._topic_of(*key) for key in keys]
        told = await self.ends([key for key, topic in zip(keys, known, strict=True) if topic is not None])
        elections = (self._elect(key, told.get(key, {}), replica_position) for key in keys)
        return list(await asyncio.gather(*elections))

    def _topic_of(self, name: str, index: int) -> Topic | None:
        topic = self._image.topic(name)
        return topic if topic is not None and 0 <= index < len(topic.partitions) else None

    async def _elect(
        self, key: TopicPartition, reported: Mapping[int, Told], position: int | None
    ) -> CodedError | None:
        def decide(state: PartitionState, _rules: Rules, offline: Offline) -> PartitionState:
            alive, ends = self._current(reported)
            alive -= offline
            if state.leader in alive:
                raise CodedError(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
            replica = None if position is None else _at(state, position)
            after = election.led_uncleanly(state, alive, ends, replica)
            if after is None:
                raise CodedError(ErrorCode.eligible_leaders_not_available, _nobody(state, alive, replica))
            _announce(key, after.leader, state, ends)
            return after

        try:
            await self._leaders.change_one(*key, decide)
        except CodedError as error:
            return error
        return None


def _announce(key: TopicPartition, leader: int, state: PartitionState, ends: Mapping[int, LogEnd]) -> None:
    """An election by the ends of logs is never silent: records that were acknowledged, and not synced, may be gone."""
    log.error(
        "leader elected by the ends of logs; acknowledged records that no living log holds are lost",
        topic=key[0],
        partition=key[1],
        leader=leader,
        ends={broker: tuple(end) for broker, end in ends.items()},
        isr=state.isr,
        last_known_elr=state.last_known_elr,
    )


def _at(state: PartitionState, position: int) -> int:
    if not 0 <= position < len(state.replicas):
        raise CodedError(ErrorCode.invalid_request, f"there are {len(state.replicas)} replicas, none at {position}")
    return state.replicas[position]


def _nobody(state: PartitionState, alive: frozenset[int], replica: int | None) -> str:
    if replica is not None:
        return f"Failed to elect leader: broker {replica} is not alive, or cannot serve its log"
    living = [r for r in state.replicas if r in alive]
    if not living:
        return "Failed to elect leader: no replica is alive"
    return f"Failed to elect leader: brokers {living} have not told the ends of their logs; try again, or name one"
