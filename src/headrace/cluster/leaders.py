"""Changes of many partitions' states, and those that an operator asks for: elections and moves."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from headrace.config import BrokerConfig, effective_topic
from headrace.protocol.errors import CodedError, ErrorCode

from . import election
from .election import Recovery, Rules
from .image import ClusterImage, PartitionState, Topic
from .log_faults import LogFaults
from .placement import check_assignments

TOPICS_AT_ONCE: Final = 2_000
PARTITIONS_AT_ONCE: Final = 20_000
"""Looked at, and where they change written, before others have a turn."""
_NOBODY: Final = frozenset[int]()

Offline: TypeAlias = frozenset[int]
NextState: TypeAlias = Callable[[PartitionState, Rules, Offline], PartitionState | None]
"""From a partition's state to its next one, or None. The third argument are brokers that live and cannot serve it, as
their disk has failed them: to this partition they are dead."""
Exceptions: TypeAlias = Mapping[UUID, Mapping[int, NextState]]
"""Decisions on partitions of which more is known, by topic id and index."""
_NO_EXCEPTIONS: Final[Exceptions] = {}
ChangePartitions: TypeAlias = Callable[
    [str, Callable[[Topic], Mapping[int, PartitionState]]],
    Awaitable[Topic],
]
"""`MetadataWriter.change_partitions`."""


def rules_of(topic: Topic, config: BrokerConfig) -> Rules:
    """What a topic's settings say about its leaders, made once for all topics with the same ones."""
    return config.remember(("rules", *sorted(topic.configs.items())), lambda: _rules(topic, config))


def _rules(topic: Topic, config: BrokerConfig) -> Rules:
    values: Mapping[str, Any] = effective_topic(topic.configs, config)
    return Rules(
        min_insync_replicas=int(values["min.insync.replicas"]),
        recovery=Recovery.AGGRESSIVE
        if values["unclean.leader.election.enable"]
        else Recovery(values["unclean.recovery.strategy"]),
    )


class _PendingChange(NamedTuple):
    """A change of one partition that waits for its topic's turn."""

    partition: int
    decide: NextState
    done: "asyncio.Future[Topic]"


class _Decided:
    """The outcomes of one decision. Equal states are decided once: a cluster has very many, nearly all alike."""

    def __init__(self, decide: NextState, rules: Rules) -> None:
        self._decide = decide
        self._rules = rules
        self._equal: dict[PartitionState, PartitionState] = {}
        self._same: dict[int, tuple[PartitionState, PartitionState]] = {}
        """By identity, which is found ten times faster than by value; a state that is kept here keeps its identity."""

    def changes(
        self, states: Iterable[tuple[int, PartitionState]], offline_of: Callable[[int], Offline | None] | None = None
    ) -> dict[int, PartitionState]:
        """The next states, by index, of those that have any."""
        same = self._same
        changes: dict[int, PartitionState] = {}
        for index, state in states:
            offline = None if offline_of is None else offline_of(index)
            if offline:
                after = self._decide(state, self._rules, offline) or state
            else:
                pair = same.get(id(state))
                after = self._after(state) if pair is None else pair[1]
            if after is not state:
                changes[index] = after
        return changes

    def _after(self, state: PartitionState) -> PartitionState:
        """The next state; the same object where it stays as it is."""
        after = self._equal.get(state)
        if after is None:
            after = self._equal[state] = self._decide(state, self._rules, _NOBODY) or state
        if after == state:
            after = state
        self._same[id(state)] = (state, after)
        return after


class Leaders:
    """Lets decisions of `election` change partitions."""

    def __init__(self, change: ChangePartitions, image: ClusterImage, config: BrokerConfig) -> None:
        self._change = change
        self._image = image
        self._config = config
        self.faults = LogFaults()
        self.leaving: set[int] = set()
        """Who is about to stop: alive, and not to be given anything more to lead."""
        self._pending: dict[str, list[_PendingChange]] = {}
        """By topic: what is decided when the topic's turn comes, and then stored at once."""
        self._carrying: set[asyncio.Task[None]] = set()

    def rules(self, topic: Topic) -> Rules:
        """What a topic's settings say about its leaders."""
        return rules_of(topic, self._config)

    async def change_all(self, decide: NextState, exceptions: Exceptions = _NO_EXCEPTIONS) -> None:
        """Let a decision change every partition it wants to change; others have their turns between.

        `exceptions` are partitions of which another decides.
        """
        known: dict[tuple[NextState, Rules], _Decided] = {}

        def decided(decide: NextState, rules: Rules) -> _Decided:
            found = known.get((decide, rules))
            if found is None:
                found = known[decide, rules] = _Decided(decide, rules)
            return found

        def changes(topic: Topic) -> dict[int, PartitionState]:
            rules, states = self.rules(topic), topic.partitions
            offline_of = (lambda index: self._offline(topic, index, states[index])) if self.faults else None
            others = exceptions.get(topic.id)
            if others is None:
                return decided(decide, rules).changes(enumerate(states), offline_of)
            by_decision: dict[NextState, list[tuple[int, PartitionState]]] = {}
            for index, state in enumerate(states):
                by_decision.setdefault(others.get(index, decide), []).append((index, state))
            changes: dict[int, PartitionState] = {}
            for each, indexed in by_decision.items():
                changes |= decided(each, rules).changes(indexed, offline_of)
            return changes

        for topics in portions(list(self._image.topics())):
            current = (self._image.topic(topic.name) for topic in topics)
            names = [topic.name for topic in current if topic is not None and changes(topic)]
            await asyncio.gather(*(self._change_topic_if_there(name, changes) for name in names))
            await asyncio.sleep(0)

    async def _change_topic_if_there(self, name: str, changes: Callable[[Topic], Mapping[int, PartitionState]]) -> None:
        try:
            await self._change(name, changes)
        except CodedError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise

    async def change_one(self, name: str, index: int, decide: NextState) -> Topic:
        """Let a decision change one partition. Those of one topic that wait for its turn are stored as one change.

        A record holds a thousand partitions: to write it once for each of them would take a thousand times as long.
        """
        done: asyncio.Future[Topic] = asyncio.get_running_loop().create_future()
        change = _PendingChange(index, decide, done)
        if name in self._pending:
            self._pending[name].append(change)
        else:
            self._pending[name] = [change]
            task = asyncio.create_task(self._carry(name))
            self._carrying.add(task)
            task.add_done_callback(self._carrying.discard)
        return await done

    async def _carry(self, name: str) -> None:
        """Carry out the pending changes of a topic when its turn comes."""
        pending: list[_PendingChange] = []

        def changes(topic: Topic) -> Mapping[int, PartitionState]:
            nonlocal pending
            pending = self._pending.pop(name)
            return self._granted(topic, pending)

        try:
            topic = await self._change(name, changes)
        except BaseException as error:
            _fail(pending or self._pending.pop(name, []), error)
            if not isinstance(error, Exception):
                raise
            return
        for change in pending:
            if not change.done.done():
                change.done.set_result(topic)

    def _granted(self, topic: Topic, pending: Sequence[_PendingChange]) -> Mapping[int, PartitionState]:
        """The next states by the pending changes, each applied to what those before it left; refusals are answered."""
        rules = self.rules(topic)
        states: dict[int, PartitionState] = {}
        for change in pending:
            try:
                before = states.get(change.partition) or _state_of(topic, change.partition)
                after = change.decide(before, rules, self._offline(topic, change.partition, before))
            except Exception as error:
                _fail([change], error)
            else:
                if after is not None:
                    states[change.partition] = after
        return states

    def _offline(self, topic: Topic, index: int, state: PartitionState) -> Offline:
        return self.faults.offline((topic.id, index), state, self._image.brokers.keys())

    async def change_if_there(self, name: str, index: int, decide: NextState) -> None:
        """The same, unless the topic is gone."""
        try:
            await self.change_one(name, index, decide)
        except CodedError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise

    async def elect(self, name: str, index: int) -> None:
        """Let the preferred replica lead; `CodedError` where there is no need, or it cannot."""
        alive = self._image.brokers.keys()

        def decide(state: PartitionState, _rules: Rules, offline: Offline) -> PartitionState:
            after = election.preferred(state, alive - offline - self.leaving)
            if after is not None:
                return after
            if state.leader == state.replicas[0]:
                raise CodedError(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
            raise CodedError(
                ErrorCode.preferred_leader_not_available,
                f"Failed to elect leader: broker {state.replicas[0]} is not alive, or not in sync",
            )

        await self.change_one(name, index, decide)

    async def reassign(self, name: str, index: int, target: Sequence[int] | None) -> None:
        """Let a partition be held by these brokers from now on, or undo the move that is under way."""

        def decide(state: PartitionState, rules: Rules, _offline: Offline) -> PartitionState | None:
            if target is not None:
                (wanted,) = check_assignments([target], self._image.brokers, replication_factor=len(target))
                return election.reassigned(state, wanted, rules)
            after = election.cancelled(state, rules)
            if after is None:
                raise CodedError(ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress.")
            return after

        await self.change_one(name, index, decide)

    def moving(self) -> Iterable[tuple[Topic, int, PartitionState]]:
        """The partitions that are on their way to other brokers."""
        for topic in self._image.topics():
            for index, state in enumerate(topic.partitions):
                if state.adding or state.removing:
                    yield topic, index, state


def portions(topics: Sequence[Topic]) -> Iterable[list[Topic]]:
    """Topics in portions that are small enough to be looked at before others have a turn."""
    portion: list[Topic] = []
    partitions = 0
    for topic in topics:
        portion.append(topic)
        partitions += len(topic.partitions)
        if len(portion) >= TOPICS_AT_ONCE or partitions >= PARTITIONS_AT_ONCE:
            yield portion
            portion, partitions = [], 0
    if portion:
        yield portion


def _state_of(topic: Topic, index: int) -> PartitionState:
    if not 0 <= index < len(topic.partitions):
        raise CodedError(ErrorCode.unknown_topic_or_partition, f"topic {topic.name} has no partition {index}")
    return topic.partitions[index]


def _fail(pending: Iterable[_PendingChange], error: BaseException) -> None:
    for change in pending:
        if not change.done.done():
            change.done.set_exception(error) if isinstance(error, Exception) else change.done.cancel()
