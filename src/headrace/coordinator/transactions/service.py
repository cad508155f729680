"""The transaction coordinator of one broker: finds the shard of a transactional id, decides, writes, answers.

It is asked by clients, by brokers that verify what they append (`transactions.verifier`), and by the clock: what has
lasted too long is aborted, ids that nobody uses are forgotten.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import structlog

from headrace.cluster.controller import Controller
from headrace.cluster.image import BrokerNode, ClusterImage
from headrace.cluster.metadata_writer import TopicSpec
from headrace.config import BrokerConfig
from headrace.coordinator.patterns import matcher
from headrace.coordinator.runtime.runtime import Runtime
from headrace.coordinator.runtime.timers import Scheduler
from headrace.net.clock import Clock
from headrace.net.pacing import paced
from headrace.net.peers import Peers, PeerUnreachable
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.patterns import Pattern, PatternError
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.transactions import EPOCH_BUMPING, TransactionMarker

from . import decisions
from .decisions import WANTS_ID, ProducerIdAndEpoch, TxnOutcome
from .markers import AppendMarker, Job, MarkerSender
from .model import TransactionMetadata
from .records import TRANSACTION_TOPIC, check_id
from .shard import TransactionShard
from .states import PREPARED, TransactionState

log = structlog.get_logger(__name__)

SETTLE_SECONDS: Final = 0.1
"""How long a request waits for the transaction before it to be ended; after that it is CONCURRENT_TRANSACTIONS."""
_IDS_PER_SLICE: Final = 500
OLDER, NEWER = 0, EPOCH_BUMPING
"""The two protocols, by the transaction.version that their producers go by."""

NO_IDS: Final[Mapping[str, UUID]] = {}
Codes = Mapping[TopicPartition, ErrorCode]
STATES: Final = {state.value: state for state in TransactionState}
ANY_DURATION: Final = -1
_TO_BE_ENDED: Final = tuple(state.value for state in (TransactionState.ONGOING, *PREPARED))
Open = set[tuple[int, TopicPartition]]
"""Producer ids, and the partitions that their transactions are open on."""
_LIST_VERSION: Final = 1
_DESCRIBE_VERSION: Final = 0
Decide = Callable[[TransactionMetadata | None, int | None], TxnOutcome]
"""From what is known, and a new producer id if one was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """See `transaction.*` and `transactional.*` in docs/configuration.md."""

    topic_partitions: int
    topic_replication_factor: int
    topic_min_isr: int
    topic_segment_bytes: int
    max_timeout_ms: int
    expiration_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> "TransactionSettings":
        return cls(
            topic_partitions=config["transaction.state.log.num.partitions"],
            topic_replication_factor=1 if config.lone else config["transaction.state.log.replication.factor"],
            topic_min_isr=1 if config.lone else config["transaction.state.log.min.isr"],
            topic_segment_bytes=config["transaction.state.log.segment.bytes"],
            max_timeout_ms=config["transaction.max.timeout.ms"],
            expiration_ms=config["transactional.id.expiration.ms"],
        )


class LateRequest(Exception):
    """A request on a connection that its client has given up: it must not be carried out."""


class TransactionCoordinator:
    """Coordinates the transactions of the transactional ids of the shards that this broker leads."""

    def __init__(
        self,
        *,
        broker_id: int,
        settings: TransactionSettings,
        image: ClusterImage,
        controller: Controller,
        replicas: ReplicaManager,
        clock: Clock,
        scheduler: Scheduler,
        append_marker: AppendMarker,
        peers: Peers | None = None,
    ) -> None:
        self.settings = settings
        self._broker_id = broker_id
        self._peers = peers
        self._image = image
        self._controller = controller
        self._clock = clock
        self.runtime = Runtime(
            _topic(settings),
            image=image,
            controller=controller,
            replicas=replicas,
            clock=clock,
            make=lambda partition: TransactionShard(partition, clock, scheduler, self._send_markers),
            loaded=_log_loaded,
        )
        self._markers = MarkerSender(
            broker_id=broker_id, image=image, append=append_marker, peers=peers, spawn=self.runtime.spawn
        )

    # Life

    def start(self) -> None:
        """Begin to load what is here."""
        self.runtime.start()

    async def close(self) -> None:
        """Coordinate nothing any more, and send no more markers: who leads the shards next goes on with them."""
        await self.runtime.close()

    def leads(self, partition: Partition) -> None:
        """See `replication.Leadership`."""
        self.runtime.leads(partition)

    def leads_no_more(self, partition: Partition) -> None:
        """See `replication.Leadership`."""
        self.runtime.leads_no_more(partition)

    def topic_deleted(self, name: str) -> None:
        """A topic was deleted: if it was the internal one nobody has a transactional id any more."""
        if name == TRANSACTION_TOPIC:
            self.runtime.close_shards()

    async def find(self, transactional_id: str) -> BrokerNode:
        """The coordinator of a transactional id."""
        check_id(transactional_id)
        return await self.runtime.find(transactional_id)

    # Requests

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch | None
    ) -> TxnOutcome:
        """InitProducerId with a transactional id."""
        check_id(transactional_id)
        if not 0 < timeout_ms <= self.settings.max_timeout_ms:
            raise CodedError(
                ErrorCode.invalid_transaction_timeout,
                f"transaction.timeout.ms is {timeout_ms}; transaction.max.timeout.ms is {self.settings.max_timeout_ms}",
            )
        return await self._decide(
            transactional_id,
            lambda known, new_id: decisions.init(
                known, transactional_id, expected, timeout_ms, self._clock.now_ms(), new_id
            ),
        )

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        topic_ids: Mapping[str, UUID] = NO_IDS,
        *,
        version: int = OLDER,
        connection: int = 0,
    ) -> Codes:
        """Make partitions part of the transaction, which they begin if there is none: all of them or none.

        A partition that is not known here, by the id of its topic where that is given, cannot be added, whoever asks:
        its marker could not be sent.
        """
        check_id(transactional_id)
        requested = frozenset(partitions)
        if version < NEWER:
            self._check_not_late(transactional_id, producer, connection)
        missing: set[TopicPartition] = set()

        def decide(known: TransactionMetadata | None, _: int | None) -> TxnOutcome:
            missing.clear()
            missing.update(self._unknown(requested, topic_ids))
            if missing:
                return TxnOutcome(self._code_of_unknown())
            return decisions.add(known, producer, requested, self._topic_ids(requested), self._clock.now_ms(), version)

        code = (await self._decide(transactional_id, decide)).code
        others = ErrorCode.operation_not_attempted if missing else code
        return {partition: code if partition in missing else others for partition in requested}

    def _unknown(self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID]) -> list[TopicPartition]:
        counts: dict[str, int] = {}
        for name in {name for name, _ in partitions}:
            topic = self._image.topic(name)
            is_known = topic is not None and topic_ids.get(name, topic.id) == topic.id
            counts[name] = len(topic.partitions) if topic is not None and is_known else 0
        return [where for where in partitions if not 0 <= where.partition < counts[where.topic]]

    def _code_of_unknown(self) -> ErrorCode:
        """While this broker does not know all of its cluster it cannot say of anything that it does not exist."""
        whole = self._image.is_whole
        return ErrorCode.unknown_topic_or_partition if whole else ErrorCode.coordinator_load_in_progress

    def _topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, UUID]:
        topics = [self._image.topic(name) for name in {name for name, _ in partitions}]
        return {topic.name: topic.id for topic in topics if topic is not None}

    async def verify(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
        topic_ids: Mapping[str, UUID] = NO_IDS,
    ) -> Codes:
        """Of each partition whether it is part of the producer's open transaction."""
        check_id(transactional_id)
        shard = self.runtime.shard(transactional_id)
        shard.check_not_fenced(transactional_id)
        codes = decisions.verify(shard.get(transactional_id), producer, partitions, topic_ids)
        await shard.id_committed(transactional_id)
        return codes

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        version: int = OLDER,
        connection: int = 0,
    ) -> TxnOutcome:
        """EndTxn: the answer comes when the outcome is committed, markers are written after it."""
        check_id(transactional_id)
        if version < NEWER:
            self._check_not_late(transactional_id, producer, connection)
        outcome = await self._decide(
            transactional_id,
            lambda known, new_id: decisions.end(known, producer, committed, self._clock.now_ms(), version, new_id),
            waits=False,
        )
        if outcome.code is ErrorCode.none:
            self._note_end(transactional_id, producer, connection)
        return outcome

    def _check_not_late(self, transactional_id: str, producer: ProducerIdAndEpoch, connection: int) -> None:
        """Producers of the older protocol use an epoch for many transactions, so that a request that was held up
        somewhere could end, or begin, one that it was not meant for (KAFKA-17754). But who gives up on a request closes
        its connection: what comes on an older connection than the last end of a transaction came on was given up.
        """
        entry = self.runtime.shard(transactional_id).entries.get(transactional_id)
        if entry is None or entry.ended_by is None:
            return
        *ended, newest = entry.ended_by
        if ended == [*producer] and connection < newest and not entry.transaction.is_prepared:
            raise LateRequest(f"a request for transactional id {transactional_id!r} comes too late")

    def _note_end(self, transactional_id: str, producer: ProducerIdAndEpoch, connection: int) -> None:
        entry = self.runtime.shard(transactional_id).entries.get(transactional_id)
        if entry is not None:
            entry.ended_by = (*producer, connection)

    async def _decide(self, transactional_id: str, decide: Decide, *, waits: bool = True) -> TxnOutcome:
        """Decide, write, and return the outcome once it is committed.

        Between the look at what is known and the write of what follows nothing else happens. Where the transaction
        before is still being ended, a request that `waits` is decided anew when that is done, if that is soon.
        """
        new_id: int | None = None
        while True:
            shard = self.runtime.shard(transactional_id)
            shard.check_not_fenced(transactional_id)
            outcome = decide(shard.get(transactional_id), new_id)
            if outcome is WANTS_ID:
                new_id = await self._controller.allocate_producer_id()
                continue
            if outcome.write is not None:
                shard.put(outcome.write)
            await shard.id_committed(transactional_id)
            if not (waits and outcome.code is ErrorCode.concurrent_transactions):
                return outcome
            waits = False
            if not await self._settled(shard, transactional_id):
                return outcome

    async def _settled(self, shard: TransactionShard, transactional_id: str) -> bool:
        """Whether the transaction that is being ended was, within `SETTLE_SECONDS`."""
        entry = shard.entries.get(transactional_id)
        if entry is None or not entry.transaction.is_prepared:
            return entry is not None
        done, _ = await asyncio.wait([shard.settled(transactional_id)], timeout=SETTLE_SECONDS)
        return bool(done)

    # Ends

    def _send_markers(self, shard: TransactionShard, transaction: TransactionMetadata) -> None:
        """The end of a transaction is committed: write its markers, then complete it."""
        marker = TransactionMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            coordinator_epoch=shard.leader_epoch,
            committed=transaction.is_committed,
            transaction_version=EPOCH_BUMPING if transaction.bumps_epochs else 1,
        )
        name = transaction.transactional_id
        self._markers.send(
            Job(
                marker,
                transaction.partitions,
                transaction.topic_ids,
                done=lambda: self._complete(shard, transaction),
                fenced=lambda: shard.fence(name),
                is_wanted=lambda: not self.runtime.is_closed and shard.is_ending(transaction),
            )
        )

    def _complete(self, shard: TransactionShard, transaction: TransactionMetadata) -> None:
        try:
            shard.put(decisions.complete(transaction, self._clock.now_ms()))
        except CodedError as error:
            shard.give_up(error)

    async def abort_overdue(self) -> int:
        """Abort every transaction that has lasted longer than its timeout; how many there were."""
        count = 0
        async for shard, transaction in self._transactions():
            lasted_ms = shard.lasted_ms(transaction.transactional_id)
            if transaction.is_overdue(lasted_ms) and await self._abort(shard, transaction):
                log.info(
                    "a transaction has timed out", id=transaction.transactional_id, after_ms=transaction.timeout_ms
                )
                count += 1
        return count

    async def _abort(self, shard: TransactionShard, transaction: TransactionMetadata) -> bool:
        outcome = decisions.fence(transaction, self._clock.now_ms())
        try:
            if outcome is WANTS_ID:
                new_id = await self._controller.allocate_producer_id()
                outcome = decisions.fence(transaction, self._clock.now_ms(), new_id)
            if outcome.write is None or shard.get(transaction.transactional_id) is not transaction:
                return False
            shard.put(outcome.write)
        except CodedError as error:
            log.warning("a transaction could not be aborted", id=transaction.transactional_id, reason=error.message)
            return False
        return True

    async def expire(self, now_ms: int) -> int:
        """Forget the ids that by then were not used for `transactional.id.expiration.ms`; how many there were."""
        count = 0
        async for shard, transaction in self._transactions():
            if not decisions.is_expired(transaction, now_ms, self.settings.expiration_ms):
                continue
            try:
                shard.forget(transaction.transactional_id)
            except CodedError as error:
                log.warning("an id could not be forgotten", id=transaction.transactional_id, reason=error.message)
                continue
            count += 1
        return count

    async def _transactions(self) -> AsyncIterator[tuple[TransactionShard, TransactionMetadata]]:
        """Every transaction, a slice at a time; none that was changed meanwhile."""
        looked_at = 0
        self.runtime.reload_failed()
        for shard in self.runtime.active():
            for name in list(shard.entries):
                looked_at += 1
                if looked_at % _IDS_PER_SLICE == 0:
                    await asyncio.sleep(0)
                transaction = shard.get(name)
                if transaction is not None:
                    yield shard, transaction

    # Operators

    async def list_transactions(
        self,
        *,
        states: Iterable[str],
        producer_ids: Iterable[int],
        longer_than_ms: int,
        pattern: str | None,
        now_ms: int,
    ) -> list[TransactionMetadata]:
        """The transactions that every filter lets through: by state, by producer id, by how long they have lasted,
        by an expression for the whole id. A filter that names nothing lets everything through."""
        wanted_states = set(states)
        allowed = {STATES[name] for name in wanted_states if name in STATES}
        producers = set(producer_ids)
        expression = matcher(pattern) if pattern else None
        entries = [entry for shard in self.runtime.all() for entry in shard.entries.values()]
        return [
            transaction
            async for transaction in paced([entry.transaction for entry in entries])
            if (not wanted_states or transaction.state in allowed)
            and (not producers or transaction.producer_id in producers)
            and (longer_than_ms < 0 or _has_lasted(transaction, now_ms) > longer_than_ms)
            and (expression is None or _matches(expression, transaction.transactional_id))
        ]

    async def describe(self, transactional_id: str) -> TransactionMetadata:
        """A transaction as it is stored; TRANSACTIONAL_ID_NOT_FOUND where nobody has the id."""
        check_id(transactional_id)
        shard = self.runtime.shard(transactional_id)
        transaction = shard.get(transactional_id)
        await shard.id_committed(transactional_id)
        if transaction is None:
            raise CodedError(
                ErrorCode.transactional_id_not_found, f"nobody has the transactional id {transactional_id!r}"
            )
        return transaction

    async def open_partitions(self, producer_ids: Collection[int]) -> Open:
        """The partitions on which some coordinator will end a transaction of one of these producers.

        Every coordinator of the cluster is asked, as ids are not found by producer; `CodedError` unless all answer.
        """
        partitions: Open = set()
        if not producer_ids:
            return partitions
        for broker in self.runtime.leaders():
            if broker == self._broker_id:
                partitions |= await self._open_here(producer_ids)
                continue
            try:
                partitions |= await self._open_at(broker, producer_ids)
            except PeerUnreachable as error:
                raise CodedError(ErrorCode.coordinator_not_available, str(error)) from error
        return partitions

    async def _open_here(self, producer_ids: Collection[int]) -> Open:
        listed = await self.list_transactions(
            states=_TO_BE_ENDED,
            producer_ids=producer_ids,
            longer_than_ms=ANY_DURATION,
            pattern=None,
            now_ms=0,
        )
        return {(transaction.producer_id, partition) for transaction in listed for partition in transaction.partitions}

    async def _open_at(self, broker: int, producer_ids: Collection[int]) -> Open:
        filters = {
            "state_filters": _TO_BE_ENDED,
            "producer_id_filters": list(producer_ids),
            "duration_filter": ANY_DURATION,
        }
        listed = await self._ask(broker, ApiKey.LIST_TRANSACTIONS, _LIST_VERSION, filters)
        _check(listed.error_code)
        ids = [each.transactional_id for each in listed.transaction_states]
        if not ids:
            return set()
        asked = {"transactional_ids": ids}
        described = await self._ask(broker, ApiKey.DESCRIBE_TRANSACTIONS, _DESCRIBE_VERSION, asked)
        for each in described.transaction_states:
            _check(each.error_code)
        return {
            (each.producer_id, TopicPartition(topic.topic, index))
            for each in described.transaction_states
            for topic in each.topics
            for index in topic.partitions
        }

    async def _ask(self, broker: int, api: ApiKey, version: int, values: Any) -> Any:
        if self._peers is None:
            raise CodedError(ErrorCode.coordinator_not_available, f"broker {broker} cannot be asked")
        return await self._peers.ask(broker, api, version, values)


def _topic(settings: TransactionSettings) -> TopicSpec:
    return TopicSpec(
        name=TRANSACTION_TOPIC,
        partitions=settings.topic_partitions,
        replication_factor=settings.topic_replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(settings.topic_min_isr),
            "segment.bytes": str(settings.topic_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )


def _log_loaded(shards: Sequence[TransactionShard], seconds: float) -> None:
    log.info("transactions loaded", ids=sum(len(shard.entries) for shard in shards), seconds=seconds)


def _matches(expression: Pattern, transactional_id: str) -> bool:
    try:
        return expression.matches(transactional_id)
    except PatternError as error:
        raise CodedError(ErrorCode.invalid_regular_expression, str(error)) from error


def _has_lasted(transaction: TransactionMetadata, now_ms: int) -> int:
    return now_ms - transaction.start_ms if transaction.start_ms >= 0 else ANY_DURATION


def _check(code: ErrorCode) -> None:
    if code not in (ErrorCode.none, ErrorCode.transactional_id_not_found):
        raise CodedError(code)
