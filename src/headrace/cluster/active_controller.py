"""The active controller at work: watches brokers come and go, elects leaders, grants ISRs, moves partitions.

It lives for one controller epoch, from its election until it is fenced, resigns, or loses its session. It begins with
what the store holds, so that it can take over in the middle of anything: what its predecessor committed counts, what it
had only decided does not. Nobody is served before every partition has been looked at once.

Decisions are `election`'s. Each is committed under the controller's epoch, then told in the feed. Changes to one topic
follow one another; a decision is always taken on the state that the store has.
"""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from random import Random
from typing import Any, Final
from uuid import UUID

import structlog

from headrace.net.clock import Clock
from headrace.net.summaries import Summaries
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.levels import FIRST

from . import election
from .alter_partition import AlteredPartition, AlterPartitionResult
from .election import Rules
from .feature_level import LevelUpdate, Speaker, load_level, update_level
from .feed import Feed, FeedPosition
from .image import NO_LEADER, ClusterImage, PartitionState, Topic
from .leaders import NextState, Offline
from .lineage import Lineage, load_lineage
from .log_faults import FaultKind, FaultyLog, LogKey
from .metadata_writer import MetadataWriter
from .recovery import AskEnds, LogRecovery
from .registration import ACCOUNTED, BROKERS, DataLoss, Registration, decode_registration, registration_key
from .store import Create, Put, SharedStore

POLL_SECONDS: Final = 5.0
LISTEN_SECONDS: Final = 1.0
SILENCE_SECONDS: Final = 3 * POLL_SECONDS
"""How long a controller may be out of reach for everyone else."""

_EARLIEST_SECOND: Final = 1_600_000_000
"""September 2020: leader epochs have 31 bits, which last until 2088."""

log = structlog.get_logger(__name__)


_DECIDED: Final = frozenset(
    {
        ErrorCode.fenced_leader_epoch,
        ErrorCode.ineligible_replica,
        ErrorCode.invalid_request,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Errors that refuse an AlterPartition request for good. With any other its outcome is unknown."""


class ActiveController:
    """The controller of the cluster for one controller epoch."""

    def __init__(
        self,
        *,
        broker_id: int,
        store: SharedStore,
        writer: MetadataWriter,
        image: ClusterImage,
        feed: Feed,
        ask_ends: AskEnds,
        rng: Random,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._rng = rng
        self._clock = clock
        self._store = store
        self.writer = writer
        writer.first_leader_epoch = self._first_leader_epoch
        self.image = image
        self.feed = feed
        self.is_ready = False
        """Whether every partition has been looked at in this controller epoch."""
        self._leaders = writer.leaders
        self._alive: frozenset[int] = frozenset()
        self._accounted: dict[int, int] = {}
        """The epochs of the brokers whose coming has had its consequences."""
        self._accounted_version: int | None = None
        self._lineage = Lineage()
        self._level = FIRST
        """The cluster's feature level."""
        self._admitting = asyncio.Lock()
        """Held while it is decided who lives, and which level all of them speak."""
        self._refused: set[tuple[int, int]] = set()
        """Registrations, by broker and epoch, of who does not speak it."""
        self._settled = asyncio.Event()
        """Set when brokers were accounted for, and when this controller has resigned."""
        self._is_over = False
        self._requested: dict[int, tuple[int, int]] = {}
        """Of each broker the latest request for ISRs: its epoch and number."""
        self._reported: dict[int, tuple[int, int]] = {}
        """Of each broker the latest report of faulty logs: its epoch and number."""
        self._unsettled: dict[int, set[LogKey]] = {}
        """Of each broker the logs whose health has changed, as long as that has not had its consequences."""
        self._is_heard = False
        """Whether another broker has asked since that was last looked at."""
        self._summaries = Summaries(log)
        writer.on_new_states = self._note_states
        self.recovery = LogRecovery(self._leaders, image, ask_ends, self._accounted_alive)

    async def run(self) -> None:
        """Be the controller until cancelled, or until an error says that this controller is fenced."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_brokers())
            tasks.create_task(self._listen())
            tasks.create_task(self.recovery.run())

    async def _listen(self) -> None:
        """Resign when other brokers live and none of them is heard of: another controller may be reachable.

        Time in which this process did not run does not count.
        """
        loop = asyncio.get_running_loop()
        silence, looked_at = 0.0, loop.time()
        while silence < SILENCE_SECONDS:
            await asyncio.sleep(LISTEN_SECONDS)
            now = loop.time()
            is_alone = self._alive <= {self._broker_id}
            silence = 0.0 if self._is_heard or is_alone else silence + min(now - looked_at, 2 * LISTEN_SECONDS)
            self._is_heard, looked_at = False, now
            self._summaries.write()
        raise CodedError(ErrorCode.not_controller, f"no other broker was heard of for {silence:.0f} s")

    async def _follow_brokers(self) -> None:
        await self.writer.load()
        self.feed.begin()
        await self._load_accounted()
        self._lineage = await load_lineage(self._store)
        self._level = await load_level(self._store)
        while True:
            names, changed = await self._store.watch_children(BROKERS)
            async with self._admitting:
                await self._take_up(self._speaking(await self._registrations(names)))
            await changed.wait()

    def close(self) -> None:
        """This controller has resigned or is fenced: whoever waits is notified."""
        self._is_over = True
        self.feed.close()
        self._settled.set()

    async def _registrations(self, names: Iterable[str]) -> dict[int, Registration]:
        registrations: dict[int, Registration] = {}
        for name in names:
            key = registration_key(int(name))
            stored = await self._store.get(key)
            if stored is not None:
                registration = decode_registration(key, stored)
                registrations[registration.node.id] = registration
        return registrations

    def _speaking(self, registrations: Mapping[int, Registration]) -> dict[int, Registration]:
        """Those who speak the cluster's feature level. A broker of before there were levels does not look at it."""
        for broker, registration in registrations.items():
            key = (broker, registration.node.epoch)
            if self._level not in registration.levels and key not in self._refused:
                self._refused.add(key)
                log.error(
                    "a broker does not speak the cluster's feature level and is no member; start a later release of it",
                    broker=broker,
                    version=registration.version or "unknown",
                    speaks=str(registration.levels),
                    level=self._level,
                )
        return {broker: r for broker, r in registrations.items() if self._level in r.levels}

    async def update_level(self, to: int | None, *, dry_run: bool) -> LevelUpdate:
        """Raise the cluster's feature level, if every registered broker speaks it; `CodedError` where one does not."""
        async with self._admitting:
            entries = await self._store.list(f"{BROKERS}/")
            found = [decode_registration(key, stored) for key, stored in entries]
            speakers = {r.node.id: Speaker(r.levels, r.version) for r in found}
            update = await update_level(self._store, self.writer.commit, speakers, to, dry_run=dry_run)
            if not dry_run and update.after != self._level:
                self._level = update.after
                log.info("feature level raised", level=self._level)
                self.feed.brokers_changed()  # nothing has changed of them, but everyone who waits gets an answer
        return update

    # Brokers

    async def _load_accounted(self) -> None:
        stored = await self._store.get(ACCOUNTED)
        if stored is not None:
            self._accounted = {int(broker): epoch for broker, epoch in json.loads(stored.value).items()}
            self._accounted_version = stored.version

    async def _save_accounted(self, epochs: dict[int, int]) -> None:
        if epochs == self._accounted:
            return
        value = json.dumps(epochs).encode()
        version = self._accounted_version
        await self.writer.commit([Create(ACCOUNTED, value) if version is None else Put(ACCOUNTED, value, version)])
        self._accounted_version = 0 if version is None else version + 1
        self._accounted = epochs

    async def _take_up(self, registrations: Mapping[int, Registration]) -> None:
        """Take the registered brokers in, and elect leaders as that demands."""
        epochs = {broker: registration.node.epoch for broker, registration in registrations.items()}
        came = {broker: r for broker, r in registrations.items() if self._accounted.get(broker) != epochs[broker]}
        gone = self._accounted.keys() - registrations.keys()
        self._alive = frozenset(registrations)
        self.image.brokers = {broker: registration.node for broker, registration in registrations.items()}
        self.image.version += 1
        self.feed.brokers_changed()
        if came or gone or not self.is_ready:
            self._report_brokers(registrations, came, gone)
            self._forgive(gone.union(came))
            await self._heed_set_back(came.values())
            await self._settle_partitions(came)
            await self._save_accounted(epochs)
            self.is_ready = True
            self._settled.set()
            self.recovery.look()
            self._summaries.write()

    def _report_brokers(
        self, registered: Iterable[int], came: Mapping[int, Registration], gone: AbstractSet[int]
    ) -> None:
        alive = sorted(registered)
        left = gone & self._leaders.leaving
        if gone - left:
            log.warning("brokers lost", brokers=sorted(gone - left), alive=alive, reason="their sessions have ended")
        if left:
            log.info("brokers stopped", brokers=sorted(left), alive=alive)
        if came:
            log.info("brokers registered", brokers=sorted(came), alive=alive)

    def _note_states(self, topic: Topic, states: Mapping[int, PartitionState]) -> None:
        """Collect elections for the log: there may be thousands at once."""
        for index, state in states.items():
            was_led_by = topic.partitions[index].leader
            if was_led_by == state.leader:
                continue
            name = f"{topic.name}-{index}"
            if state.leader == NO_LEADER:
                self._summaries.add("partition offline", name, level="error", was_led_by=was_led_by)
            else:
                self._summaries.add("leader elected", name, leader=state.leader, was_led_by=was_led_by)

    def _forgive(self, renewed: Iterable[int]) -> None:
        """Forget what brokers reported that are gone, or registered again."""
        gone = frozenset(renewed)
        self._leaders.leaving.difference_update(gone)
        self._leaders.faults.forget(gone)
        for broker in gone:
            self._unsettled.pop(broker, None)

    async def _heed_set_back(self, came: Iterable[Registration]) -> None:
        """Where a broker has seen a newer store than this one, do not rely on what the store says of partitions."""
        witnesses = sorted(r.node.id for r in came if r.saw_set_back and self._lineage.is_news(r.lineage))
        if not witnesses:
            return
        log.error(
            "the metadata store was set back: nobody leads a partition before all its replicas have told how far their "
            "logs reach; changes of topics and settings since then are lost",
            seen_by=witnesses,
        )
        await self._leaders.change_all(lambda state, _rules, _offline: election.after_set_back(state))
        await self.writer.skip_producer_ids()
        operation, lineage = self._lineage.extension(self._rng)
        await self.writer.commit([operation])
        self._lineage = lineage

    def _first_leader_epoch(self) -> int:
        """The first leader epoch of an added partition: above all that logs know of it.

        Where the store was set back, the partition may have been there before: brokers still hold its logs, and how far
        its leader epochs had come nobody knows any more. They never came as far as there are seconds.
        """
        if not self._lineage.was_set_back:
            return 0
        known = max((state.leader_epoch for topic in self.image.topics() for state in topic.partitions), default=0)
        return max(known + 1, self._clock.now_ms() // 1000 - _EARLIEST_SECOND)

    async def _settle_partitions(self, came: Mapping[int, Registration]) -> None:
        """Leaders for what the living hold. Who has come anew was gone: it is in no ISR unless it is the last."""
        alive = self._alive
        stayed = alive - came.keys()
        emptied = frozenset(broker for broker, r in came.items() if r.loss is DataLoss.EVERYTHING)
        losers = frozenset(broker for broker, r in came.items() if r.loss is not DataLoss.NOTHING or r.saw_set_back)

        def without(lost: frozenset[int]) -> NextState:
            def settle(state: PartitionState, rules: Rules, offline: Offline) -> PartitionState | None:
                after = state
                if not came.keys().isdisjoint(after.isr):
                    after = election.after_change_of_brokers(after, rules, stayed - offline) or after
                after = election.after_loss_of_records(after, rules, lost, alive - offline, emptied) or after
                return election.after_change_of_brokers(after, rules, alive - offline) or after

            return settle

        proofs = _synced_on([r for broker, r in came.items() if broker in losers - emptied])
        decisions = {brokers: without(losers - brokers) for brokers in {*proofs.values()}}
        exceptions: dict[UUID, dict[int, NextState]] = {}
        for (topic_id, index), brokers in proofs.items():
            exceptions.setdefault(topic_id, {})[index] = decisions[brokers]
        await self._leaders.change_all(without(losers), exceptions)

    def _accounted_alive(self) -> dict[int, int]:
        return {broker: epoch for broker, epoch in self._accounted.items() if broker in self._alive}

    async def settled(self, topic: Topic) -> Topic:
        """A topic that is new, once it has leaders that live: one may have died while the topic was made."""
        dead = [index for index, state in enumerate(topic.partitions) if state.leader not in self._alive]
        changes = (self._leaders.change_one(topic.name, index, self._settle_one) for index in dead)
        *_, settled = [topic, *await asyncio.gather(*changes)]
        return settled

    def _settle_one(self, state: PartitionState, rules: Rules, offline: Offline) -> PartitionState | None:
        return election.after_change_of_brokers(state, rules, self._alive - offline)

    # What brokers ask

    def hear(self, broker: int) -> None:
        """A broker has sent a request: this controller is reachable."""
        self._is_heard = self._is_heard or broker != self._broker_id

    async def poll(self, broker: int, broker_epoch: int, position: FeedPosition) -> dict[str, Any]:
        """The feed for one broker; only once the consequences of its registration are known."""
        self.hear(broker)
        try:
            async with asyncio.timeout(POLL_SECONDS):
                while not self._knows(broker, broker_epoch):
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            raise CodedError(ErrorCode.stale_broker_epoch) from None
        return await self.feed.poll(broker, position, POLL_SECONDS) | {
            "lineage": self._lineage.latest,
            "level": self._level,
        }

    def _knows(self, broker: int, broker_epoch: int) -> bool:
        if self._is_over:
            raise CodedError(ErrorCode.not_controller, "this broker is no longer the controller")
        return self.is_ready and self._accounted.get(broker) == broker_epoch

    def _require_known(self, broker: int, broker_epoch: int) -> None:
        if not self._knows(broker, broker_epoch):
            raise CodedError(ErrorCode.stale_broker_epoch)

    async def alter_isr(
        self, broker: int, broker_epoch: int, number: int, changes: Sequence[Mapping[str, Any]]
    ) -> list[AlterPartitionResult]:
        """Carry out AlterPartition requests: the resulting states, or why not.

        A broker numbers its requests. One that comes after a later one was given up by who sent it, who may have
        been told since that nothing came of it: it must not be granted any more.
        """
        self._require_known(broker, broker_epoch)
        _require_later(self._requested, broker, (broker_epoch, number))
        return list(await asyncio.gather(*(self._alter_one(broker, change) for change in changes)))

    async def _alter_one(self, broker: int, change: Mapping[str, Any]) -> AlterPartitionResult:
        index = int(change["partition"])
        topic = self.image.topic(change["topic"])
        if topic is None or topic.id.hex != change["topic_id"] or not 0 <= index < len(topic.partitions):
            return CodedError(ErrorCode.unknown_topic_or_partition)
        key = (topic.id, index)

        def decide(state: PartitionState, rules: Rules, offline: Offline) -> PartitionState | None:
            if state.leader != broker:
                raise CodedError(ErrorCode.fenced_leader_epoch)
            least = min(rules.min_insync_replicas, change["least_isr"])
            after = election.with_isr(
                state,
                replace(rules, min_insync_replicas=least),
                change["isr"],
                leader_epoch=change["leader_epoch"],
                partition_epoch=change["partition_epoch"],
            )
            if after is not None:
                self._check_members(change["isr"], change["broker_epochs"], state, offline)
                after = self._relieved(key, after, rules)
            return after

        try:
            topic = await self._leaders.change_one(topic.name, index, decide)
        except CodedError as error:
            if error.code in _DECIDED:
                return error
            if error.code is not ErrorCode.invalid_update_version:
                raise
        return self._granted(topic.name, index)

    def _relieved(self, key: LogKey, state: PartitionState, rules: Rules) -> PartitionState:
        """Led by another where the leader's disk is full and one has come into the ISR that has space."""
        offline = self._leaders.faults.offline(key, state, self._alive)
        after = election.after_change_of_brokers(state, rules, self._alive - offline) if offline else None
        return state if after is None else after

    def _granted(self, name: str, index: int) -> AlterPartitionResult:
        topic = self.image.topic(name)
        if topic is None:
            return CodedError(ErrorCode.unknown_topic_or_partition)
        return AlteredPartition(topic.partitions[index], self._leaders.rules(topic).min_insync_replicas)

    def _check_members(
        self, isr: Sequence[int], epochs: Sequence[int], state: PartitionState, offline: Offline
    ) -> None:
        """A broker joins an ISR only if registered, with the epoch that it fetched with, and not shutting down."""
        barred = self._leaders.leaving | offline
        for member, epoch in zip(isr, epochs, strict=True):
            is_alive = member in self._alive and self._accounted.get(member) == epoch
            if member not in state.isr and (not is_alive or member in barred):
                raise CodedError(ErrorCode.ineligible_replica, f"broker {member} is not, or no longer, the one meant")

    async def shut_down(self, broker: int, broker_epoch: int) -> int:
        """A broker wants to stop: others lead what it led. The number of partitions that it still leads and that others
        who live, and stay, could lead once they are in sync.
        """
        self._require_known(broker, broker_epoch)
        self._leaders.leaving.add(broker)
        staying = self._alive - self._leaders.leaving
        await self._leaders.change_all(
            lambda state, rules, offline: election.on_shutdown(state, rules, broker, staying - offline)
        )
        led = (s for topic in self.image.topics() for s in topic.partitions if s.leader == broker)
        return sum(not staying.isdisjoint(state.replicas) for state in led)

    async def report_logs(self, broker: int, broker_epoch: int, number: int, logs: Sequence[FaultyLog]) -> None:
        """All logs that a broker cannot serve: it leaves their ISRs and leads none of them as long as it reports them.

        Returns once that is stored. A log that an earlier report named and this one does not is well again.
        """
        self._require_known(broker, broker_epoch)
        _require_later(self._reported, broker, (broker_epoch, number))
        faults = {(UUID(hex=entry.topic_id), entry.partition): FaultKind(entry.fault) for entry in logs}
        before = self._leaders.faults.of(broker)
        for entry in logs:
            if before.get((UUID(hex=entry.topic_id), entry.partition)) is not FaultKind(entry.fault):
                name = f"{entry.topic}-{entry.partition}"
                self._summaries.add("log cannot be served", name, level="warning", broker=broker, fault=entry.fault)
        unsettled = self._unsettled.setdefault(broker, set())
        unsettled |= faults.keys() | before.keys()
        self._leaders.faults.replace(broker, faults)
        lost = {key for key, fault in faults.items() if fault is FaultKind.LOST}
        await asyncio.gather(*(self._settle_log(broker, key, is_lost=key in lost) for key in list(unsettled)))
        unsettled.clear()
        self.recovery.look()

    async def _settle_log(self, broker: int, key: LogKey, *, is_lost: bool) -> None:
        topic = self.image.topic_by_id(key[0])
        if topic is None or not 0 <= key[1] < len(topic.partitions):
            return

        def settle(state: PartitionState, rules: Rules, offline: Offline) -> PartitionState | None:
            alive = self._alive - offline
            after = (is_lost and election.after_loss_of_log(state, rules, broker, alive)) or state
            after = election.after_change_of_brokers(after, rules, alive) or after
            return None if after == state else after

        await self._leaders.change_if_there(topic.name, key[1], settle)

    async def restore_preferred(self, most_percent: int) -> None:
        """Let the first replicas lead again where a broker leads too few of those it should."""
        staying = self._alive - self._leaders.leaving
        preferred: dict[int, int] = {}
        missed: dict[int, int] = {}
        for topic in self.image.topics():
            for state in topic.partitions:
                first = state.replicas[0]
                preferred[first] = preferred.get(first, 0) + 1
                missed[first] = missed.get(first, 0) + (state.leader != first)
        due = {broker for broker, count in missed.items() if count * 100 > preferred[broker] * most_percent}

        def restore(state: PartitionState, _rules: Rules, offline: Offline) -> PartitionState | None:
            return election.preferred(state, staying - offline) if state.replicas[0] in due else None

        if due & staying:
            await self._leaders.change_all(restore)


def _synced_on(registrations: Sequence[Registration]) -> dict[LogKey, frozenset[int]]:
    """By partition: the brokers whose logs have lost nothing acknowledged, as all of it was synced."""
    alone = {r.node.id: frozenset({r.node.id}) for r in registrations}
    found: dict[LogKey, frozenset[int]] = {}
    for registration in registrations:
        broker = alone[registration.node.id]
        for key in registration.synced:
            found[key] = found[key] | broker if key in found else broker
    return found


def _require_later(latest: dict[int, tuple[int, int]], broker: int, number: tuple[int, int]) -> None:
    """Refuse a request that comes after a later one of the same broker, which had given it up by then."""
    if latest.get(broker, (-1, -1)) >= number:
        raise CodedError(ErrorCode.invalid_update_version, "a later request has come before this one")
    latest[broker] = number
