"""The active controller at work: watches brokers come and go, elects leaders, grants ISRs, moves partitions.

It lives for one reign, from its election to when it is deposed, resigns, or loses its session. It begins with what the
store holds, so that it can take over in the middle of anything: what its predecessor committed counts, what it had only
decided does not.

Decisions are `election`'s. Each is committed under the controller's epoch, then told in the feed. Changes to one topic
follow one another; a decision is always taken on the state that the store has.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import structlog

from headrace.protocol.errors import CodedError, ErrorCode

from . import election
from .controller import Controller
from .election import Rules
from .feed import Feed
from .image import ClusterImage, PartitionState
from .registration import ACCOUNTED, BROKERS, Registration, decode_registration, registration_key
from .store import Create, Put, SharedStore

POLL_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)

Outcome: TypeAlias = PartitionState | CodedError


class Overseer:
    """One reign of one controller."""

    def __init__(self, *, store: SharedStore, controller: Controller, image: ClusterImage, feed: Feed) -> None:
        self._store = store
        self.controller = controller
        self.image = image
        self.feed = feed
        self._leaders = controller.leaders
        self._alive: frozenset[int] = frozenset()
        self._accounted: dict[int, int] = {}
        """The epochs of the brokers whose coming has had its consequences."""
        self._accounted_version: int | None = None
        self._settled = asyncio.Condition()

    async def run(self) -> None:
        """Rule until cancelled, or until an error says that the reign is over."""
        await self.controller.load()
        self.feed.begin()
        await self._load_accounted()
        while True:
            names, changed = await self._store.watch_children(BROKERS)
            await self._take_up(await self._registrations(names))
            await changed.wait()

    async def _registrations(self, names: Iterable[str]) -> dict[int, Registration]:
        found: dict[int, Registration] = {}
        for name in names:
            key = registration_key(int(name))
            stored = await self._store.get(key)
            if stored is not None:
                registration = decode_registration(key, stored)
                found[registration.node.id] = registration
        return found

    # Brokers

    async def _load_accounted(self) -> None:
        stored = await self._store.get(ACCOUNTED)
        if stored is not None:
            self._accounted = {int(broker): epoch for broker, epoch in json.loads(stored.value).items()}
            self._accounted_version = stored.version

    async def _save_accounted(self, epochs: dict[int, int]) -> None:
        value = json.dumps(epochs).encode()
        version = self._accounted_version
        await self.controller.commit([Create(ACCOUNTED, value) if version is None else Put(ACCOUNTED, value, version)])
        self._accounted_version = 0 if version is None else version + 1
        async with self._settled:
            self._accounted = epochs
            self._settled.notify_all()

    async def _take_up(self, found: Mapping[int, Registration]) -> None:
        """Who lives now, and what that means for partitions."""
        epochs = {broker: registration.node.epoch for broker, registration in found.items()}
        came = {broker: r for broker, r in found.items() if self._accounted.get(broker) != epochs[broker]}
        gone = self._accounted.keys() - found.keys()
        self._alive = frozenset(found)
        self.image.brokers = {broker: registration.node for broker, registration in found.items()}
        self.image.version += 1
        self.feed.brokers_changed()
        if came or gone:
            log.info("brokers changed", alive=sorted(found), came=sorted(came), gone=sorted(gone))
            await self._settle_partitions(came)
            await self._save_accounted(epochs)

    async def _settle_partitions(self, came: Mapping[int, Registration]) -> None:
        """Leaders for what the living hold. Who has come anew was gone: it is in no ISR unless it is the last."""
        alive = self._alive
        stayed = alive - came.keys()
        suspects = [broker for broker, registration in came.items() if registration.is_suspect]

        def settle(state: PartitionState, rules: Rules) -> PartitionState | None:
            after = state
            if not came.keys().isdisjoint(after.isr):
                after = election.after_change_of_brokers(after, rules, stayed) or after
            for broker in suspects:
                after = election.after_loss_of_records(after, rules, broker, alive) or after
            return election.after_change_of_brokers(after, rules, alive) or after

        await self._leaders.change_all(settle)

    # What brokers ask

    async def poll(self, broker: int, broker_epoch: int, epoch: int, version: int) -> dict[str, Any]:
        """The feed for one broker; only once the consequences of its registration are known."""
        async with self._settled:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._settled.wait_for(lambda: self._accounted.get(broker) == broker_epoch)
            except TimeoutError:
                raise CodedError(ErrorCode.stale_broker_epoch) from None
        return await self.feed.poll(broker, epoch, version, POLL_SECONDS)

    async def alter_isr(self, broker: int, broker_epoch: int, changes: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        """What leaders want their ISRs to be: the states as they then are, or why not."""
        if self._accounted.get(broker) != broker_epoch:
            raise CodedError(ErrorCode.stale_broker_epoch)
        return list(await asyncio.gather(*(self._alter_one(broker, change) for change in changes)))

    async def _alter_one(self, broker: int, change: Mapping[str, Any]) -> Outcome:
        index = int(change["partition"])
        topic = self.image.topic(change["topic"])
        if topic is None or topic.id.hex != change["topic_id"] or not 0 <= index < len(topic.partitions):
            return CodedError(ErrorCode.unknown_topic_or_partition)

        def decide(state: PartitionState, rules: Rules) -> PartitionState | None:
            if state.leader != broker:
                raise CodedError(ErrorCode.fenced_leader_epoch)
            self._check_members(change["isr"], change["broker_epochs"], state)
            epochs = {"leader_epoch": change["leader_epoch"], "partition_epoch": change["partition_epoch"]}
            return election.with_isr(state, rules, change["isr"], **epochs)

        try:
            after = await self._leaders.change_one(topic.name, index, decide)
        except CodedError as error:
            return error
        return after.partitions[index]

    def _check_members(self, isr: Sequence[int], epochs: Sequence[int], state: PartitionState) -> None:
        """Who comes into an ISR must live, and as the one who has fetched."""
        for member, epoch in zip(isr, epochs, strict=True):
            if member not in state.isr and self._accounted.get(member) != epoch:
                raise CodedError(ErrorCode.ineligible_replica, f"broker {member} is not, or no longer, the one meant")

    async def shut_down(self, broker: int, broker_epoch: int) -> int:
        """A broker wants to stop: others lead what it led. The number of partitions that only it can lead."""
        if self._accounted.get(broker) != broker_epoch:
            raise CodedError(ErrorCode.stale_broker_epoch)
        alive = self._alive - {broker}
        await self._leaders.change_all(lambda state, rules: election.on_shutdown(state, rules, broker, alive))
        return sum(state.leader == broker for topic in self.image.topics() for state in topic.partitions)

    async def restore_preferred(self, most_percent: int) -> None:
        """Let the first replicas lead again where a broker leads too few of those it should."""
        alive = self._alive
        wanted: dict[int, int] = {}
        missed: dict[int, int] = {}
        for topic in self.image.topics():
            for state in topic.partitions:
                first = state.replicas[0]
                wanted[first] = wanted.get(first, 0) + 1
                missed[first] = missed.get(first, 0) + (state.leader != first)
        due = {broker for broker, count in missed.items() if count * 100 > wanted[broker] * most_percent}
        if due & alive:
            await self._leaders.change_all(
                lambda state, _rules: election.preferred(state, alive) if state.replicas[0] in due else None
            )
