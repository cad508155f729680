"""What Produce does for a transaction before anything is appended: the coordinator is asked whether it is open.

A batch that begins a transaction on its partition has to be part of one that the coordinator knows to be open, else a
late one could begin what nobody ends (KIP-890). Up to v11 the producer has told the coordinator before, and it is only
asked; from v12 on the question itself adds the partition. Batches of a transaction that has begun here already are not
asked about. Nothing else of the connection is served meanwhile, so that a producer's batches keep their order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from headrace.protocol.batch import HEADER_SIZE, TRANSACTIONAL_BIT, BatchHeader, read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.produce import FIRST_WITH_IDS, ProduceRequest, TopicRecords
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.transactions import TransactionVerifier, Verification

FIRST_WITH_ABORTABLE: Final = 11
FIRST_ADDING: Final = 12
_TRY_AGAIN: Final = frozenset(  # the coordinator may not know yet of a partition that is led here
    {
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.operation_not_attempted,
    }
)


_PASSING: Final = frozenset({ErrorCode.not_enough_replicas, ErrorCode.concurrent_transactions})
"""What a producer is told that is to send its batch again."""


class Beginning(NamedTuple):
    """A batch that would begin a transaction on its partition."""

    partition: Partition
    header: BatchHeader
    verification: Verification


class Verified:
    """The transaction coordinator's verdict on the partitions of a produce request."""

    __slots__ = ("_codes", "_verifications")

    def __init__(
        self,
        verifications: Mapping[TopicPartition, Verification],
        codes: Mapping[TopicPartition, ErrorCode],
    ) -> None:
        self._verifications = verifications
        self._codes = codes

    def of(self, partition: Partition) -> Verification | None:
        """What a transaction may begin with there; None where it needs nothing, `CodedError` where it may not."""
        if not self._verifications:
            return None
        key = TopicPartition(partition.topic, partition.index)
        code = self._codes.get(key, ErrorCode.none)
        if code is not ErrorCode.none:
            raise CodedError(code, f"the transaction coordinator refuses {key.topic}-{key.partition}: {code.name}")
        return self._verifications.get(key)


NOTHING_TO_VERIFY: Final = Verified({}, {})


def is_transactional(produce: ProduceRequest) -> bool:
    """Whether any batch of a request is part of a transaction."""
    return any(
        records is not None and len(records) >= HEADER_SIZE and read_header(records).attributes & TRANSACTIONAL_BIT
        for topic in produce.topics
        for _, records in topic.partitions
    )


def beginnings(
    replicas: ReplicaManager, produce: ProduceRequest, version: int, may_write: Callable[[str], bool]
) -> list[Beginning]:
    """The batches of a request that the coordinator has to be asked about. Whatever else is wrong shows later."""
    return [found for topic in produce.topics for found in _of_topic(replicas, topic, version, may_write)]


def _of_topic(
    replicas: ReplicaManager, topic: TopicRecords, version: int, may_write: Callable[[str], bool]
) -> Iterator[Beginning]:
    name = replicas.name_of(topic.id or b"") if version >= FIRST_WITH_IDS else topic.name
    if name is not None and not may_write(name):
        return
    for index, records in topic.partitions:
        if name is None or records is None or len(records) < HEADER_SIZE:
            continue
        header = read_header(records)
        if not header.attributes & TRANSACTIONAL_BIT or header.producer_id < 0:
            continue
        try:
            partition = replicas.partition(name, index)
            if not partition.is_internal and partition.needs_verification(header):
                verification = partition.verifications.begin(
                    header.producer_id, header.producer_epoch, header.base_sequence
                )
                yield Beginning(partition, header, verification)
        except CodedError:
            continue


async def ask(
    verifier: TransactionVerifier, transactional_id: str, starts: Sequence[Beginning], version: int
) -> Verified:
    """Ask the coordinator about all of them; one question where they are of one producer, as they should be."""
    by_producer: dict[tuple[int, int], list[TopicPartition]] = {}
    verifications: dict[TopicPartition, Verification] = {}
    for partition, header, verification in starts:
        key = TopicPartition(partition.topic, partition.index)
        by_producer.setdefault((header.producer_id, header.producer_epoch), []).append(key)
        verifications[key] = verification
    codes: dict[TopicPartition, ErrorCode] = {}
    ids = {partition.topic: UUID(bytes=partition.topic_id) for partition, _, _ in starts}
    add = version >= FIRST_ADDING
    for (producer_id, epoch), partitions in by_producer.items():
        answered = await verifier.verify(transactional_id, producer_id, epoch, partitions, ids, add=add)
        for key in partitions:
            codes[key] = code_for_version(answered.get(key, ErrorCode.invalid_txn_state), version)
    for partition, header, _ in starts:
        code = codes[TopicPartition(partition.topic, partition.index)]
        if code in _PASSING:
            partition.verifications.postpone(header.producer_id)
        elif code is not ErrorCode.none:
            partition.verifications.end(header.producer_id)
    return Verified(verifications, codes)


def code_for_version(code: ErrorCode, version: int) -> ErrorCode:
    """What a producer is told where the coordinator answered that: one that its version knows, and does the right thing
    with. NOT_ENOUGH_REPLICAS makes any of them try again."""
    if code in _TRY_AGAIN or (code is ErrorCode.concurrent_transactions and version < FIRST_ADDING):
        return ErrorCode.not_enough_replicas
    if code is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if code is ErrorCode.transaction_abortable and version < FIRST_WITH_ABORTABLE:
        return ErrorCode.invalid_txn_state
    return code
