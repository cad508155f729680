"""Consumers of v2: each reads as a member of its group, once it subscribes, or partitions that it names itself.

An instance lives in the gateway that made it, in the name of its caller, until it is deleted or nobody has asked for it
for `consumer.instance.timeout.ms`.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.client.aio import groups
from headrace.client.aio.client import Client
from headrace.client.aio.fetching import list_offsets
from headrace.client.aio.member import MemberSettings
from headrace.client.aio.reader import RESETS, FetchedRecord, Reader
from headrace.client.core.groups import CommittedOffset
from headrace.client.core.offsets import EARLIEST, LATEST
from headrace.protocol.errors import ErrorCode
from headrace.protocol.patterns import MOST_STEPS, PatternError, pattern
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.problem import Problem

from ..consumers import Consumer, Handout, not_assigned
from ..names import is_own, require_messages
from ..read_routes import require_partition
from .failures import Refusal
from .media import ValueFormat

SESSION_MS: Final = 30_000
_LONGEST_MS: Final = 3_600_000
_MOST_PATTERN_STEPS: Final = 50 * MOST_STEPS
"""For one look at all topics: about a second, with others served in between."""
_ILLEGAL_STATE: Final = 40903


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """How an instance reads."""

    group: str
    name: str
    form: ValueFormat
    reset: str
    auto_commit: bool
    least_bytes: int
    wait_ms: int
    """How long a request for records waits where it does not say."""
    idle_ms: int
    refresh_ms: int
    """How often the topics that match a pattern are looked for."""


class SelfAssigned:
    """Partitions that a caller has named itself: its group only keeps the offsets."""

    def __init__(
        self, client: Client, group: str, positions: dict[TopicPartition, int], reset: str, *, auto_commit: bool
    ) -> None:
        self._client = client
        self._group = group
        self._auto_commit = auto_commit
        self._handout = Handout(Reader(client.cluster, positions, reset=reset))

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """What it reads, and the next offset of each."""
        return self._handout.positions

    async def poll(self, most: int, wait_ms: int, most_bytes: int | None, least_bytes: int) -> list[FetchedRecord]:
        """The next records; none when the time is over."""
        if self._auto_commit:
            await self.commit(None)
        return await self._handout.take(most, wait_ms, most_bytes, least_bytes)

    def give_back(self, found: list[FetchedRecord]) -> None:
        """Have the next poll give these again."""
        self._handout.give_back(found)

    def seek(self, offsets: dict[TopicPartition, int]) -> None:
        """Go on elsewhere."""
        self._handout.seek(offsets)

    async def commit(self, offsets: dict[TopicPartition, CommittedOffset] | None) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets, or what was handed out; what was refused."""
        wanted = dict(self._handout.taken) if offsets is None else offsets
        if not wanted:
            return {}
        refused = await groups.commit(self._client.cluster, self._group, wanted)
        self._handout.committed({place: offset for place, offset in wanted.items() if place not in refused})
        return refused

    async def close(self) -> None:
        """Commit what was handed out, where that is wanted."""
        self._handout.is_over = True
        if self._auto_commit:
            await asyncio.gather(self.commit(None), return_exceptions=True)


class Instance:
    """One consumer, from its creation to its end."""

    def __init__(self, client: Client, settings: InstanceSettings) -> None:
        self.client = client
        self.settings = settings
        self.id = settings.name
        self.group = settings.group
        self.topics: tuple[str, ...] = ()
        """What it subscribes to, also by a pattern."""
        self._pattern = ""
        self._looked_at = 0.0
        self._source: Consumer | SelfAssigned | None = None
        self._changing = asyncio.Lock()
        self._requests = 0
        self._last_used = self._now()
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        return not self._requests and self._now() - self._last_used > self.settings.idle_ms / 1000

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that it reads now."""
        self._last_used = self._now()
        return [] if self._source is None else sorted(self._source.positions)

    # What it reads

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Read topics as a member of the group."""
        async with self._changing:
            self._require_open()
            if self._pattern or isinstance(self._source, SelfAssigned):
                raise _exclusive()
            for topic in topics:
                require_messages(topic)
            await self._join(tuple(sorted(set(topics))))

    async def subscribe_pattern(self, pattern: str) -> None:
        """Read the topics whose names match, also those that come later."""
        async with self._changing:
            self._require_open()
            if (self.topics and not self._pattern) or isinstance(self._source, SelfAssigned):
                raise _exclusive()
            topics = await self._matching(pattern)
            self._pattern = pattern
            await self._join(topics)

    async def unsubscribe(self) -> None:
        """Leave the group, and read nothing."""
        async with self._changing:
            self.topics, self._pattern = (), ""
            await self._replace(None)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, from where the group is; none of them end that."""
        async with self._changing:
            self._require_open()
            if isinstance(self._source, Consumer):
                raise _exclusive()
            positions = await self._starts(sorted(set(partitions)))
            settings = self.settings
            await self._replace(
                SelfAssigned(self.client, self.group, positions, settings.reset, auto_commit=settings.auto_commit)
                if positions
                else None
            )

    # Reading

    async def poll(self, most: int, wait_ms: int | None, most_bytes: int | None) -> list[FetchedRecord]:
        """The next records; none where nothing is subscribed to yet or came in time."""
        self._requests += 1
        try:
            if self._pattern and self._now() - self._looked_at > self.settings.refresh_ms / 1000:
                await self._look_again()
            wait = self.settings.wait_ms if wait_ms is None else wait_ms
            if self._source is None:
                raise Refusal(409, _ILLEGAL_STATE, "Illegal state: the consumer has no subscription and no assignment")
            return await self._source.poll(most, wait, most_bytes, self.settings.least_bytes)
        finally:
            self._requests -= 1
            self._last_used = self._now()

    def give_back(self, found: list[FetchedRecord]) -> None:
        """Have the next poll give these again: they could not be shown."""
        if self._source is not None and all(
            (topic, partition) in self._source.positions for topic, partition, _ in found
        ):
            self._source.give_back(found)

    async def commit(self, offsets: dict[TopicPartition, CommittedOffset] | None) -> dict[TopicPartition, ErrorCode]:
        """Commit offsets, or all that was read; what was refused."""
        self._last_used = self._now()
        if self._source is not None:
            return await self._source.commit(offsets)
        return await groups.commit(self.client.cluster, self.group, offsets) if offsets else {}

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        """What the group has committed of these."""
        self._last_used = self._now()
        return await groups.committed(self.client.cluster, self.group, partitions)

    def seek(self, offsets: dict[TopicPartition, int]) -> None:
        """Go on elsewhere."""
        self._last_used = self._now()
        if self._source is not None:
            self._source.seek(offsets)
        elif offsets:
            raise not_assigned(next(iter(offsets)))

    async def seek_to_end(self, partitions: Iterable[TopicPartition], *, is_beginning: bool) -> None:
        """Go on at one of the ends."""
        wanted = set(partitions)
        for place in wanted - set(self.assignment):
            raise not_assigned(place)
        self.seek(await self._at(wanted, EARLIEST if is_beginning else LATEST))

    async def close(self) -> None:
        """Leave the group."""
        self._is_closed = True
        async with self._changing:
            await self._replace(None)

    async def _join(self, topics: tuple[str, ...]) -> None:
        if topics == self.topics and self._source is not None:
            return
        self.topics = topics
        settings = MemberSettings(group=self.group, topics=topics, session_ms=SESSION_MS, reset=self.settings.reset)
        auto_commit = self.settings.auto_commit
        await self._replace(None)
        self._source = Consumer(self.client, settings, idle_ms=_LONGEST_MS, auto_commit=auto_commit)

    async def _replace(self, source: SelfAssigned | None) -> None:
        self._last_used = self._now()
        former, self._source = self._source, source
        if former is not None:
            await former.close()

    async def _look_again(self) -> None:
        async with self._changing:
            if self._pattern and not self._is_closed:
                await self._join(await self._matching(self._pattern))

    async def _matching(self, text: str) -> tuple[str, ...]:
        self._looked_at = self._now()
        matching, steps = [], 0
        try:
            wanted = pattern(text, of_ascii=True)
            for topic in (await self.client.cluster.metadata(None)).topics:
                name = str(topic.name)
                if not topic.is_internal and not is_own(name) and wanted.matches(name):
                    matching.append(name)
                cost = wanted.cost(name)
                if (steps + cost) // MOST_STEPS != steps // MOST_STEPS:
                    await asyncio.sleep(0)
                steps += cost
                if steps > _MOST_PATTERN_STEPS:
                    raise PatternError("it is too large for so many topics")
        except PatternError as error:
            raise Refusal(422, 422, f"topic_pattern is no pattern that is taken here: {error}") from None
        return tuple(sorted(matching))

    async def _starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where to begin: after what is committed, or where `reset` says."""
        for topic, partition in partitions:
            await require_partition(self.client, topic, partition)
        found = await groups.committed(self.client.cluster, self.group, partitions) if partitions else {}
        positions = {place: committed.offset for place, committed in found.items()}
        return positions | await self._at(set(partitions) - set(positions), RESETS[self.settings.reset])

    async def _at(self, partitions: set[TopicPartition], when: int) -> dict[TopicPartition, int]:
        found = {}
        for topic in {place.topic for place in partitions}:
            asked = {place.partition: when for place in partitions if place.topic == topic}
            for partition, (offset, _) in (await list_offsets(self.client.cluster, topic, asked)).items():
                found[TopicPartition(topic, partition)] = offset
        return found

    def _require_open(self) -> None:
        if self._is_closed:
            raise Problem(404, "Consumer instance not found.", code="unknown-consumer")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _exclusive() -> Refusal:
    return Refusal(
        409,
        _ILLEGAL_STATE,
        "Illegal state: Subscription to topics, partitions and pattern are mutually exclusive",
    )
