"""All partitions this broker holds: opened and closed as the cluster's metadata says, found by name or by id.

What is wrong with a log is looked after here as well, as it decides who leads; chores over all logs are `maintenance`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from math import inf
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, TypeVar, cast

import structlog

from headrace.cluster.alter_partition import AlteredPartition
from headrace.cluster.election import LogEnd
from headrace.cluster.image import NO_LEADER, PartitionState, Topic
from headrace.cluster.log_faults import FaultKind, FaultyLog
from headrace.cluster.log_settings import intake_settings, log_settings
from headrace.config import BrokerConfig
from headrace.net.clock import Clock
from headrace.net.summaries import Summaries
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition
from headrace.storage.condition import Health
from headrace.storage.disk import StorageError, parent_of
from headrace.storage.flusher import Flusher
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.storage.settings import LogSettings

from .follower_session import FollowerSession
from .isr import IsrChange, IsrKeeper
from .log_maintenance import LogMaintenance
from .opening import Opened, Openings, RunInBackground
from .partition import Partition
from .replica_fetch_state import Key
from .sync_proofs import SyncProofs
from .traffic import GoneTraffic
from .transactions import TransactionMarker, TransactionVerifier, check_operator_marker

UNKNOWN_EPOCH = -1
"""The partition epoch of a state that any other replaces."""
NO_PARTITIONS: dict[int, Partition] = {}
ENOUGH_SPACE = 64 * 1024 * 1024
"""Free bytes that a disk must have before logs that were full are written to again; less where it is small."""

LONGEST_SHORTAGE_PAUSE = 5.0
"""Where only descriptors are short: they may come back at any time, and to ask costs one system call."""
RECOVERY_THREADS = "num.recovery.threads.per.data.dir"

logger = structlog.get_logger(__name__)

T = TypeVar("T")


Dispose = Callable[[str, Sequence[int]], object]
"""What is done with the logs of a topic, by their partitions, that are not served any more."""
ReportFaults = Callable[[AbstractSet[FaultyLog]], Awaitable[None]]
"""Tells the controller all logs that this broker cannot serve now."""
_FAULTS: Final = {Health.REFETCHING: FaultKind.LOST, Health.FULL: FaultKind.FULL, Health.FAILED: FaultKind.FAILED}


FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


class Backoff:
    """When to try something again: after a second, then after twice as long each time, up to a minute.

    After a minute in which nothing was tried it begins anew. What is tried before it is due, because of news from the
    controller, changes nothing: news may come all the time, and would put the next try off for as long as they do.
    """

    __slots__ = ("_due", "_pause", "is_fault")

    def __init__(self) -> None:
        self.is_fault = True
        """Whether something is broken, and not only short for a while."""
        self._due = -inf
        self._pause = FIRST_PAUSE

    def is_due(self, now: float) -> bool:
        return now >= self._due

    def wait(self, now: float, longest: float = LONGEST_PAUSE) -> None:
        """Note a try, and when the next one is due."""
        if not self.is_due(now):
            return
        if now > self._due + LONGEST_PAUSE:
            self._pause = FIRST_PAUSE
        self._due = now + min(self._pause, longest)
        self._pause = min(2 * self._pause, longest)


class LogFault(NamedTuple):
    """A log here that cannot be written."""

    name: str
    is_full: bool
    """Whether it only lacks space; else it is broken, or could not be opened."""
    reason: str


class Following(Protocol):
    """The replica fetchers, as the partitions that are led elsewhere are given to them."""

    def follow(self, key: Key, partition: Partition, leader: int) -> None: ...
    def leave(self, key: Key) -> None: ...


class Leadership(Protocol):
    """Notified of the partitions that this broker leads: coordinators, whose state is in some of them."""

    def leads(self, partition: Partition) -> None: ...
    def leads_no_more(self, partition: Partition) -> None: ...


MARKER_SECONDS = 30.0
"""How long a marker waits for followers; then its coordinator is to write another."""

TransactionEnded = Callable[[Partition, int, bool, int], None]
"""Called with a partition, a producer's id, whether its transaction was committed, and the offset of its marker."""


class ReplicaManager:
    """The partitions of this broker."""

    def __init__(
        self,
        *,
        broker_id: int,
        config: BrokerConfig,
        clock: Clock,
        logs: LogManager,
        flusher: Flusher,
        run_in_background: RunInBackground | None = None,
        retention_clock: Clock | None = None,
    ) -> None:
        """`retention_clock` is what logs expire by, if that is another."""
        self.broker_id = broker_id
        self.clock = clock
        self._config = config
        self._logs = logs
        self._flusher = flusher
        self.maintenance = LogMaintenance(
            self.hosted,
            config=config,
            clock=clock,
            retention_clock=retention_clock or clock,
            logs=logs,
            flusher=flusher,
            run_in_background=run_in_background,
        )
        self._sync_proofs = SyncProofs(logs.synced_logs, self, self.maintenance.off_loop)
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._names: dict[bytes, str] = {}
        self.awaited: dict[Key, dict[FollowerSession, None]] = {}
        """Followers that have asked for partitions which are not led here yet."""
        self.following: Following | None = None
        """None where there is nobody to follow: on a lone broker."""
        self.isr: IsrKeeper | None = None
        self.report_faults: ReportFaults | None = None
        self.leadership: Leadership | None = None
        self.verifier: TransactionVerifier | None = None
        """The transaction coordinator; without one no transactional batch is taken."""
        self.on_transaction_end: TransactionEnded | None = None
        """Told of every marker that is committed on a partition led here."""
        self.is_known: Callable[[str, int], bool] | None = None
        """Whether a partition exists somewhere in the cluster."""
        self.storage_quotas: dict[str, int] = {}
        """Bytes that topics with partitions here may hold, by name, where a setting says."""
        self._topics: dict[str, Topic] = {}
        """The topics with partitions here, as they were applied last."""
        self.gone_traffic = GoneTraffic()
        self.leader_elections = 0
        """How often this broker has become the leader of a partition."""
        self.isr_shrinks = self.isr_expands = 0
        """Replicas that left ISRs of partitions led here, or came into them."""
        self._untaken: dict[TopicPartition, Backoff] = {}
        """Partitions that this broker should hold, and could not open or take up the role in; when to try again."""
        self._space = Backoff()
        """When to see next whether full logs can go on."""
        self._run_in_background = run_in_background
        """None where logs are opened and synced at once, on the caller's thread."""
        self._openings: Openings | None = None
        if run_in_background is not None:
            self._openings = Openings(
                run_in_background, clock, at_once=lambda: int(config[RECOVERY_THREADS]), opened=self._take_opened
            )
        self._being_opened: dict[TopicPartition, Topic | Dispose] = {}
        """Of each log that is being opened: the newest state of its topic, or how it is to be disposed of."""
        self._held_back: set[TopicPartition] = set()
        """Logs that were being opened when this broker stepped down: their roles wait for a later word."""
        self._summaries = Summaries(logger)
        """Roles and ISRs that have changed, to be told together."""

    @property
    def log_directory(self) -> str:
        return self._logs.data_directory

    def disk_usage(self) -> tuple[int, int]:
        """Total and usable bytes of the disk that holds the logs."""
        return self._logs.total_bytes(), self._logs.free_bytes()

    def partition(self, topic: str, index: int) -> Partition:
        """The partition, or the `CodedError` that a client should get."""
        found = self._by_name.get(topic, NO_PARTITIONS).get(index)
        if found is None:
            raise CodedError(self._absence(topic, index), f"no partition {index} of topic {topic!r} here")
        return found

    def _absence(self, topic: str, index: int) -> ErrorCode:
        """Why a partition is not here: it is being opened or cannot be, it is on other brokers, or nowhere."""
        if (topic, index) in self._being_opened:
            return ErrorCode.not_leader_or_follower
        if (topic, index) in self._untaken:
            return ErrorCode.kafka_storage_error
        exists = self.is_known is not None and self.is_known(topic, index)
        return ErrorCode.not_leader_or_follower if exists else ErrorCode.unknown_topic_or_partition

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition:
        """The partition of the topic with that id, or the `CodedError` that says why not."""
        name = self._names.get(topic_id)
        if name is None:
            raise CodedError(ErrorCode.unknown_topic_id)
        return self.partition(name, index)

    def log_end(self, topic_id: bytes, index: int, leader_epoch: int) -> LogEnd | None:
        """How far a partition's log reaches; None while that is not known, or may change.

        It does not change where this broker knows of the leader epoch, or a later one, and follows nobody. Of a durable
        topic what is not synced does not count yet.
        """
        try:
            partition = self.partition_by_id(topic_id, index)
        except CodedError:
            return None
        is_still = partition.leader_epoch >= leader_epoch and partition.state.leader == NO_LEADER
        if not partition.may_lead or not is_still or not partition.is_settled:
            return None
        offset, latest_epoch = partition.position
        return LogEnd(partition.log.last_record_epoch(), offset, latest_epoch)

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of a topic that is held here, by its id."""
        return self._names.get(topic_id)

    def partitions_of(self, topic: str) -> Iterable[Partition]:
        """Those of a topic that are here."""
        return self._by_name.get(topic, {}).values()

    def hosted(self) -> Iterator[Partition]:
        for partitions in self._by_name.values():
            yield from partitions.values()

    def read_failed(self, error: StorageError) -> None:
        """A file of a log could not be read for an answer: the log fails, and others lead what it cannot serve."""
        directory = parent_of(error.path)
        for partition in self.hosted():
            if partition.log.directory == directory and not error.is_busy:
                logger.error("a log cannot be read", log=partition.log.name, reason=str(error))
                partition.log.fail(error)

    # As the cluster says

    def apply_topic(self, topic: Topic, changed: Iterable[int] | None = None) -> None:
        """Hold what the topic's new state says, in all partitions or only in those that have changed.

        One partition that fails does not keep the others from it; the first failure is raised in the end.
        """
        held = self._by_name.setdefault(topic.name, {})
        self._names[topic.id.bytes] = topic.name
        self._topics[topic.name] = topic
        settings = log_settings(topic, self._config)
        rules = intake_settings(topic, self._config)
        if rules.storage_quota >= 0:
            self.storage_quotas[topic.name] = rules.storage_quota
        else:
            self.storage_quotas.pop(topic.name, None)
        moved_away: list[Partition] = []
        unlisted: list[Partition] = []
        failure: Exception | None = None
        for index in range(len(topic.partitions)) if changed is None else changed:
            state = topic.partitions[index]
            partition = held.get(index)
            if self.broker_id not in state.replicas:
                self._let_go(TopicPartition(topic.name, index), self._logs.set_aside)
                if partition is not None and partition.state.partition_epoch == UNKNOWN_EPOCH:
                    unlisted.append(partition)
                elif partition is not None and state.partition_epoch >= partition.state.partition_epoch:
                    moved_away.append(partition)
                continue
            try:
                if partition is None:
                    self._open(topic, index, settings)
                else:
                    partition.configure(
                        self._sync_proofs.settings(TopicPartition(topic.name, index), topic.id, settings), rules
                    )
                    self._assume(partition, state)
                    self._tell_followers(partition)
            except (CodedError, StorageError, OSError) as error:
                failure = failure or error
                self._note_failure(topic, index, error)
        self._note_deleted(moved_away, "the partition has moved to other brokers")
        self._drop(topic, moved_away, self._logs.delete)
        self._set_unlisted_aside(topic, unlisted)
        if failure is not None:
            raise failure

    def _set_unlisted_aside(self, topic: Topic, partitions: Sequence[Partition]) -> None:
        """Logs that an older state of the cluster does not know to be here may be the best there are."""
        self._drop(topic, partitions, self._logs.set_aside)
        for partition in partitions:
            reason = "the metadata store was set back, and does not place it here"
            logger.error("a log is set aside", topic=topic.name, partition=partition.index, reason=reason)

    def _note_failure(self, topic: Topic, index: int, error: Exception) -> None:
        """A partition could not be taken up: it is tried again. Where only descriptors are short, nothing is broken."""
        backoff = self._untaken.setdefault(TopicPartition(topic.name, index), Backoff())
        backoff.is_fault = not (isinstance(error, StorageError) and error.is_busy)
        backoff.wait(self.clock.monotonic(), LONGEST_PAUSE if backoff.is_fault else LONGEST_SHORTAGE_PAUSE)

    def _open(self, topic: Topic, index: int, settings: LogSettings) -> None:
        """Open a log now, or off the loop where it has to be read for that."""
        key = TopicPartition(topic.name, index)
        if key in self._being_opened:
            self._being_opened[key] = topic
            self._held_back.discard(key)
            return
        known = self._logs.get(topic.name, index)
        if known is not None:
            self._serve(topic, index, known)
            return
        replicated = len(topic.partitions[index].replicas) > 1
        settings = self._sync_proofs.settings(key, topic.id, settings)
        closed = self._logs.find(topic.name, index, topic.id, settings, replicated=replicated)
        if self._openings is None or closed.opens_at_once:
            self._serve(topic, index, self._logs.adopt(closed, closed.open()))
        else:
            self._being_opened[key] = topic
            self._openings.begin(closed, first=topic.internal)

    def _take_opened(self, opened: Opened) -> None:
        """A log that was opened off the loop is there: serve it, or what has come in its place meanwhile."""
        key = opened.log.key
        awaited = self._being_opened.pop(key)
        try:
            if not isinstance(awaited, Topic):
                awaited(key.topic, [key.partition])
            elif awaited.id != opened.log.topic_id:
                self.apply_topic(awaited, [key.partition])
            elif opened.state is None:
                raise opened.error or RuntimeError("a log was neither opened nor not")
            else:
                self._serve(awaited, key.partition, self._logs.adopt(opened.log, opened.state))
        except (CodedError, StorageError, OSError) as error:
            logger.error("log cannot be opened", log=opened.log.directory, reason=str(error))
            if isinstance(awaited, Topic):
                self._note_failure(awaited, key.partition, error)

    def _serve(self, topic: Topic, index: int, log: Log) -> None:
        """Hold a partition whose log is open."""
        state = topic.partitions[index]
        settings = log_settings(topic, self._config)
        log.configure(self._sync_proofs.settings(TopicPartition(topic.name, index), topic.id, settings))
        for finding in log.findings:
            logger.warning("log found not as it was", log=log.name, finding=finding)
        partition = Partition(
            topic=topic.name,
            topic_id=topic.id.bytes,
            index=index,
            state=state,
            log=log,
            rules=intake_settings(topic, self._config),
            flusher=self._flusher,
            internal=topic.internal,
            high_watermark=self._logs.high_watermark(topic.name, index),
        )
        if (topic.name, index) in self._held_back:
            self._held_back.discard((topic.name, index))
            partition.follow(state)
        else:
            self._take_role(partition, state)
        self._untaken.pop(TopicPartition(topic.name, index), None)
        self._by_name.setdefault(topic.name, {})[index] = partition
        self._tell_followers(partition)

    def _tell_followers(self, partition: Partition) -> None:
        """Let followers ask again that asked before this broker had taken the partition up."""
        key = (partition.topic_id, partition.index)
        for session in self.awaited.pop(key, ()):
            session.led(key)

    def _let_go(self, key: TopicPartition, dispose: Dispose) -> None:
        """This broker is not to hold a partition that it may not even have opened yet."""
        self._untaken.pop(key, None)
        if key in self._being_opened:
            self._being_opened[key] = dispose

    def _assume(self, partition: Partition, state: PartitionState) -> None:
        """Take up a newer state; an older one, which another way was faster with, is passed over."""
        if state.partition_epoch > partition.state.partition_epoch:
            self._take_role(partition, state)

    def _take_role(self, partition: Partition, state: PartitionState) -> None:
        key = (partition.topic_id, partition.index)
        led_before = partition.is_leader
        epoch_before = partition.leader_epoch
        if not state.counts_on(self.broker_id):
            partition.log.condition.refetched()
        before = partition.state
        if state.leader == self.broker_id and self._may_lead(partition):
            if self.following is not None:
                self.following.leave(key)
            partition.lead(self.broker_id, state, self.clock.monotonic())
            self._note_isr(partition, before)
            if not (led_before and epoch_before == state.leader_epoch):
                self.leader_elections += 1
                self._summaries.add("became leader", partition.log.name)
                if self.leadership is not None:
                    self.leadership.leads(partition)
            return
        partition.follow(state)
        if led_before or before is state or before.leader != state.leader:
            self._note_following(partition, led_before)
        if led_before and self.leadership is not None:
            self.leadership.leads_no_more(partition)
        if self.following is not None:
            if state.leader in (NO_LEADER, self.broker_id) or not partition.may_follow:
                self.following.leave(key)
            else:
                self.following.follow(key, partition, state.leader)

    def _note_following(self, partition: Partition, led_before: bool) -> None:
        leader = partition.state.leader
        if leader == NO_LEADER:
            self._summaries.add("partition offline", partition.log.name, level="error", reason="it has no leader")
        elif leader != self.broker_id:
            self._summaries.add("became follower", partition.log.name, leader=leader)
        elif led_before:
            health = partition.log.health.value
            self._summaries.add("leadership given up", partition.log.name, level="warning", log_health=health)

    def _note_isr(self, partition: Partition, before: PartitionState) -> None:
        """Tell of an ISR that has changed since the last state that was known here."""
        isr = partition.state.isr
        if before.isr == isr or before.partition_epoch == UNKNOWN_EPOCH:
            return
        left = [replica for replica in before.isr if replica not in isr]
        self.isr_shrinks += len(left)
        if left:
            self._summaries.add("ISR shrunk", partition.log.name, level="warning", left=_listed(left))
        joined = [replica for replica in isr if replica not in before.isr]
        self.isr_expands += len(joined)
        if joined:
            self._summaries.add("ISR expanded", partition.log.name, joined=_listed(joined))

    def _note_deleted(self, partitions: Iterable[Partition], reason: str) -> None:
        for partition in partitions:
            log = partition.log
            self._logs.summaries.add("log deleted", log.name, reason=reason, sums={"bytes": log.size_bytes})

    def write_summaries(self) -> None:
        """Log what has happened to partitions and their logs since the last call."""
        self._summaries.write()
        self._logs.summaries.write()

    def _may_lead(self, partition: Partition) -> bool:
        """A broker whose log has lost records refuses to lead and reports it; a lone broker leads all the same."""
        return self.following is None or partition.may_lead

    def step_down(self) -> None:
        """Stop leading all partitions until newer metadata says otherwise: this broker may have been fenced."""
        for partition in self.hosted():
            if partition.is_leader:
                partition.follow(partition.state)
                if self.leadership is not None:
                    self.leadership.leads_no_more(partition)
        self._untaken.clear()
        self._held_back |= self._being_opened.keys()

    def forget_states(self) -> None:
        """Take any state for a newer one, and until one comes lead and follow nobody: what is known is of another
        history than what the cluster will say.
        """
        self.step_down()
        for partition in self.hosted():
            partition.follow(replace(partition.state, leader=NO_LEADER, partition_epoch=UNKNOWN_EPOCH))
            if self.following is not None:
                self.following.leave((partition.topic_id, partition.index))
        for key, awaited in self._being_opened.items():
            if isinstance(awaited, Topic):
                self._being_opened[key] = _with_unknown_state(awaited, key.partition)

    def apply_state(self, change: IsrChange, granted: AlteredPartition) -> None:
        """The controller's answer to an AlterPartition request, which may come before the news of it.

        Where the controller goes by another least ISR the news of that come first, and bring the state as well.
        """
        try:
            partition = self.partition_by_id(change.topic_id, change.partition)
        except CodedError:
            return
        state = granted.state
        if granted.least_isr != partition.rules.min_insync_replicas:
            return
        if state.partition_epoch > partition.state.partition_epoch and state.leader_epoch == partition.leader_epoch:
            if partition.is_leader:
                before = partition.state
                partition.lead(self.broker_id, state, self.clock.monotonic())
                self._note_isr(partition, before)
        elif partition.followers is not None and state.partition_epoch == partition.state.partition_epoch:
            partition.followers.requested_isr = None
            partition.move_high_watermark()

    def remove_topic(self, topic: Topic) -> None:
        """Stop serving a topic and delete its logs."""
        self._note_deleted(self._by_name.get(topic.name, NO_PARTITIONS).values(), "topic deleted")
        self._remove(topic, self._logs.delete)

    def set_topic_aside(self, topic: Topic) -> None:
        """Stop serving a topic and give its logs other names."""
        self._remove(topic, self._logs.set_aside)

    def _remove(self, topic: Topic, dispose: Dispose) -> None:
        self._names.pop(topic.id.bytes, None)  # first: files may refuse to go, and the name may soon be another topic's
        held = list(self._by_name.get(topic.name, {}).values())
        self._drop(topic, held, dispose, ErrorCode.unknown_topic_or_partition)
        self._by_name.pop(topic.name, None)
        self._topics.pop(topic.name, None)
        self.storage_quotas.pop(topic.name, None)
        self.gone_traffic.topic_left(topic.name)
        for index in range(len(topic.partitions)):
            self._let_go(TopicPartition(topic.name, index), dispose)
        for key in [key for key in self._untaken if key.topic == topic.name]:
            del self._untaken[key]

    def _drop(
        self,
        topic: Topic,
        partitions: Sequence[Partition],
        dispose: Dispose,
        code: ErrorCode = ErrorCode.not_leader_or_follower,
    ) -> None:
        """Have these partitions no more. Those who wait there are told `code`: what was moved away may be elsewhere."""
        if not partitions:
            return
        held = self._by_name[topic.name]
        for partition in partitions:
            self.gone_traffic.partition_left(topic.name, partition)
            if self.following is not None:
                self.following.leave((topic.id.bytes, partition.index))
            if partition.is_leader and self.leadership is not None:
                self.leadership.leads_no_more(partition)
            partition.is_leader = False
            partition.retire(code)
            del held[partition.index]
            self._sync_proofs.left(TopicPartition(topic.name, partition.index))
        dispose(topic.name, [partition.index for partition in partitions])

    # Followers

    def propose_isr(self, partition: Partition, isr: frozenset[int]) -> None:
        """Ask the controller for another ISR."""
        if self.isr is not None:
            self.isr.propose(partition, isr)

    async def look_after_followers(self) -> None:
        """Shrink ISRs by the followers that lag, and time out requests that have waited too long."""
        now = self.clock.monotonic()
        longest = int(self._config["replica.lag.time.max.ms"]) / 1000

        def look_after(partition: Partition) -> None:
            if partition.followers is not None:
                partition.drop_laggards(now, longest, partial(self.propose_isr, partition))
                partition.expire(now)

        await self.maintenance.for_each("followers", look_after)

    async def look_after_logs(self) -> None:
        """Let every partition's role follow the health of its log, and report to the controller what is not well.

        What passes is tried again: partitions that could not be opened, logs that were full.
        """
        now = self.clock.monotonic()
        self.write_summaries()
        await self._retry(now)
        self._free(now)
        await self._refetch_lost()
        broken = [key for key, backoff in self._untaken.items() if backoff.is_fault and self._is_absent(*key)]
        faulty = [self._fault(*key, FaultKind.FAILED) for key in broken]
        for key in list(self._logs.faulty):
            partition = self._by_name.get(key.topic, NO_PARTITIONS).get(key.partition)
            if partition is None:
                del self._logs.faulty[key]
                continue
            self._heed_health(partition)
            if (fault := _FAULTS.get(partition.log.health)) is not None:
                faulty.append(self._fault(*key, fault))
            else:
                del self._logs.faulty[key]
        if self.report_faults is not None:
            await self.report_faults(frozenset(faulty))

    def log_faults(self) -> list[LogFault]:
        """The logs that take no writes now, and why."""
        broken = [key for key, backoff in self._untaken.items() if backoff.is_fault and self._is_absent(*key)]
        faults = [LogFault(f"{name}-{index}", False, "it cannot be opened") for name, index in broken]
        for key in self._logs.faulty:
            log = self._logs.get(*key)
            if log is not None and log.health in (Health.FULL, Health.FAILED):
                condition = log.condition
                faults.append(LogFault(log.name, condition.is_full or condition.is_reopenable, log.offline or ""))
        return faults

    @property
    def sync_under_way(self) -> object | None:
        """Of the logs whose acknowledgements wait for it: the same object until it has ended."""
        return self._flusher.round

    @property
    def recovering(self) -> int:
        """How many logs are being opened."""
        return len(self._being_opened)

    @property
    def recovery_progress(self) -> tuple[int, int]:
        """Logs, and bytes of them, that were checked in the latest recovery."""
        return (0, 0) if self._openings is None else self._openings.progress

    def _is_absent(self, topic: str, index: int) -> bool:
        return index not in self._by_name.get(topic, NO_PARTITIONS)

    def _fault(self, topic: str, index: int, fault: FaultKind) -> FaultyLog:
        return FaultyLog(topic, self._topics[topic].id.hex, index, fault.value)

    async def _retry(self, now: float) -> None:
        """Try again to hold what could not be opened, or to take up the role in what is open."""
        for key in [key for key, backoff in self._untaken.items() if backoff.is_due(now)]:
            if key not in self._untaken:
                continue
            topic, index = self._topics[key.topic], key.partition
            partition = self._by_name[topic.name].get(index)
            try:
                if partition is None:
                    self.apply_topic(topic, [index])
                else:
                    self._take_role(partition, topic.partitions[index])
                    del self._untaken[key]
            except (CodedError, StorageError, OSError) as error:
                logger.warning("partition cannot be held yet", topic=topic.name, partition=index, reason=str(error))
                if partition is not None:
                    self._untaken[key].wait(now)
            await asyncio.sleep(0)

    def _free(self, now: float) -> None:
        """Let full logs go on once there is space: more than a little, so that they are not full again at once."""
        found = ((key, self._logs.get(*key)) for key in self._logs.faulty)
        conditions = ((key, log.condition) for key, log in found if log is not None)
        waiting = [(key, condition) for key, condition in conditions if condition.is_full or condition.is_reopenable]
        if not waiting or not self._space.is_due(now) or self._logs.free_bytes() < self._enough_space():
            return
        self._space.wait(now)
        for key, condition in waiting:
            condition.revive()
            if condition.is_reopenable:
                self._reopen(*key)

    async def _refetch_lost(self) -> None:
        """Begin anew where a directory was removed, once others are known to hold what was in it, and one leads."""
        for key in list(self._logs.faulty):
            log = self._logs.get(*key)
            partition = self._by_name.get(key.topic, NO_PARTITIONS).get(key.partition)
            if log is None or partition is None or not log.condition.is_lost or self.following is None:
                continue
            if partition.state.leader not in (NO_LEADER, self.broker_id):
                try:
                    await self.refetch(*key)
                except (CodedError, StorageError, OSError) as error:
                    logger.warning("log cannot begin anew yet", log=log.name, reason=str(error))

    async def refetch(self, name: str, index: int, *, start_empty: bool = False) -> None:
        """Set a failed log aside and begin an empty one, which fetches everything from the leader before it counts.

        Refused where no other replica is in sync, unless it may `start_empty`: then what only this log held is lost.
        """
        topic = self._topics.get(name)
        held = self._by_name.get(name, NO_PARTITIONS).get(index)
        if topic is None or (held is None and (name, index) not in self._untaken):
            raise CodedError(self._absence(name, index), f"no partition {index} of topic {name!r} here, or not yet")
        if held is not None and held.log.health is not Health.FAILED:
            raise CodedError(ErrorCode.invalid_request, f"{held.log.name} is {held.log.health.value}, not failed")
        state = topic.partitions[index] if held is None else held.state
        if not start_empty and not frozenset(state.isr) - {self.broker_id}:
            raise CodedError(
                ErrorCode.not_enough_replicas, f"no other replica of {name}-{index} is in sync: nobody could be asked"
            )
        replicated = len(state.replicas) > 1

        def begin_anew(*_: object) -> None:
            aside = self._logs.begin_anew(name, index, topic.id, refetching=replicated)
            logger.warning("log begins anew", topic=name, partition=index, set_aside=aside)

        self._untaken[TopicPartition(name, index)] = Backoff()
        self._drop(topic, [held], begin_anew) if held is not None else begin_anew()
        await self._retry(self.clock.monotonic())

    def _enough_space(self) -> int:
        return min(ENOUGH_SPACE, self._logs.total_bytes() // 20)

    def _reopen(self, name: str, index: int) -> None:
        """Let go of a partition whose log broke off in the middle of a change, and open it anew.

        Not before another leads, or nobody, where there are others: it must not lead again in the same epoch.
        """
        topic = self._topics[name]
        partition = self._by_name[name].get(index)
        if partition is None or (self.following is not None and partition.state.leader == self.broker_id):
            return
        state = max(partition.state, topic.partitions[index], key=attrgetter("partition_epoch"))
        partitions = (*topic.partitions[:index], state, *topic.partitions[index + 1 :])
        self._topics[name] = replace(topic, partitions=partitions)
        self._drop(topic, [partition], lambda *_: self._logs.unload(name, index, partition.high_watermark))
        self._untaken[TopicPartition(name, index)] = Backoff()

    def _heed_health(self, partition: Partition) -> None:
        """Step down where the log may not lead; only the controller makes it lead again, in a new epoch."""
        if partition.is_leader:
            is_settled = self._may_lead(partition)
        else:
            has_leader = partition.state.leader not in (NO_LEADER, self.broker_id)
            is_settled = partition.is_followed is (has_leader and partition.may_follow)
        if not is_settled:
            log = partition.log
            try:
                self._take_role(partition, partition.state)
            except (CodedError, StorageError, OSError) as error:
                logger.error("role cannot be taken up", log=log.name, reason=str(error))
                self._untaken.setdefault(TopicPartition(partition.topic, partition.index), Backoff())

    async def delete_records(self, partition: Partition, offset: int, timeout: float) -> int:
        """Drop everything below an offset; the low watermark, once that holds for the whole ISR, or `CodedError`."""
        known: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: CodedError | None) -> None:
            if known.done():
                return
            known.set_result(None) if error is None else known.set_exception(error)

        partition.delete_below(offset, done, self.clock.monotonic() + timeout)
        await known
        return partition.low_watermark

    # Transactions

    async def append_marker(self, topic: str, index: int, marker: TransactionMarker) -> ErrorCode:
        """End a transaction on a partition that this broker leads; returns once that is committed, or why it is not.

        To be repeated until it is `none`, or INVALID_PRODUCER_EPOCH (the producer is in a later transaction here: this
        one has been ended), or TRANSACTION_COORDINATOR_FENCED (a later coordinator has written here).
        """
        try:
            partition = self.partition(topic, index)
            appended = partition.append_marker(marker, now_ms=self.clock.now_ms())
        except CodedError as error:
            return error.code
        known: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def committed(error: CodedError | None) -> None:
            """Others are told even where who asked for the marker waits no longer."""
            if error is None:
                self._ended(partition, marker, appended.last_offset)
            if not known.done():
                known.set_result(ErrorCode.none if error is None else error.code)

        if partition.is_acknowledged(appended.last_offset + 1, acks=-1):
            committed(None)
        else:
            deadline = self.clock.monotonic() + MARKER_SECONDS
            partition.commits.wait(appended.last_offset + 1, committed, deadline)
        return await known

    async def abort_hanging(self, topic: str, index: int, marker: TransactionMarker) -> ErrorCode:
        """End a transaction that no coordinator knows of, for an operator; as `append_marker`."""
        try:
            producer = self.partition(topic, index).log.producers().get(marker.producer_id)
            if not check_operator_marker(producer, marker):
                return ErrorCode.none
        except CodedError as error:
            return error.code
        return await self.append_marker(topic, index, marker)

    def _ended(self, partition: Partition, marker: TransactionMarker, offset: int) -> None:
        partition.log.last_stable_offset(partition.high_watermark)
        if self.on_transaction_end is not None:
            self.on_transaction_end(partition, marker.producer_id, marker.committed, offset)

    def set_strays_aside(self) -> list[str]:
        """Give logs of topics that the metadata does not know other names; those. Once, at the end of the start."""
        self._sync_proofs.all_are_held()
        return self._logs.set_strays_aside(but=self._untaken.keys() | self._being_opened.keys())

    async def opened(self, seconds: float) -> None:
        """Returns when every log is open, or cannot be, or after so many seconds."""
        if self._openings is not None:
            await self._openings.wait(seconds)

    def report_recovery(self) -> None:
        """Log how far the opening of logs has come, if it takes long."""
        if self._openings is not None:
            self._openings.report()

    def stop_opening(self) -> None:
        """Give up what is being opened: the broker stops."""
        if self._openings is not None:
            self._openings.close()

    # Logs that are proven to be synced, as their `PartitionHolder`

    async def prove_synced(self) -> None:
        """Write down which logs have synced everything that they acknowledged, where that has changed."""
        await self._sync_proofs.settle()

    def held(self, key: TopicPartition) -> Partition | None:
        return self._by_name.get(key.topic, NO_PARTITIONS).get(key.partition)

    def is_awaited(self, key: TopicPartition) -> bool:
        return key in self._being_opened or key in self._untaken

    def is_durable_topic(self, topic: str) -> bool:
        return log_settings(self._topics[topic], self._config).flush_messages <= 1

    def configure(self, partition: Partition) -> None:
        topic = self._topics[partition.topic]
        partition.configure(log_settings(topic, self._config), intake_settings(topic, self._config))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run work on a thread that would take too long on the loop; its result."""
        run = self._run_in_background
        return work() if run is None else cast(T, await run(work))

    def close(self) -> None:
        """Sync and close every log, so that the next start need not recover it."""
        self.stop_opening()
        for partition in self.hosted():
            partition.retire(ErrorCode.not_leader_or_follower)
        self.write_summaries()
        self._logs.close(self.maintenance.high_watermarks())


def _listed(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _with_unknown_state(topic: Topic, index: int) -> Topic:
    state = replace(topic.partitions[index], leader=NO_LEADER, partition_epoch=UNKNOWN_EPOCH)
    return replace(topic, partitions=(*topic.partitions[:index], state, *topic.partitions[index + 1 :]))
