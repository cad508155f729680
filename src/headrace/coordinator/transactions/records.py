"""The records of `__transaction_state`, byte for byte as Kafka has them (TransactionLogKey and TransactionLogValue), so
that its tools can read the topic.

The key is a number (0) and the transactional id. Values are written as version 1, which has the previous and the next
producer id and the client's transaction version in tagged fields; version 0, without them, is read. A null value
means that the id is forgotten.

One thing is ours: each topic of a transaction carries its id in a tagged field of a number that Kafka does not use.
Kafka's readers pass over tagged fields that they do not know; records without it are read as they are.
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final
from uuid import UUID

from headrace.coordinator.runtime.fields import (
    LONGEST_ID,
    BadRecord,
    FieldReader,
    i32s,
    plain_text,
    write_compact_text,
    write_tags,
)
from headrace.protocol.encode import write_uvarint
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from .model import NO_ID, TransactionMetadata
from .states import TransactionState

TRANSACTION_TOPIC: Final = "__transaction_state"
KEY: Final = 0
VERSION: Final = 1

_FIRST_FLEXIBLE: Final = 1
_HEAD: Final = Struct(">qhib")
_TIMES: Final = Struct(">qq")
_I16: Final = Struct(">h")
_I64: Final = Struct(">q")
_PREVIOUS, _NEXT, _CLIENT_VERSION = 0, 1, 2
_TOPIC_ID: Final = 1_000
"""The tagged field of a topic that holds its id."""
_UUID_BYTES: Final = 16
_CODES: Final = {
    TransactionState.EMPTY: 0,
    TransactionState.ONGOING: 1,
    TransactionState.PREPARE_COMMIT: 2,
    TransactionState.PREPARE_ABORT: 3,
    TransactionState.COMPLETE_COMMIT: 4,
    TransactionState.COMPLETE_ABORT: 5,
    TransactionState.DEAD: 6,
    TransactionState.PREPARE_EPOCH_FENCE: 7,
}
_STATES: Final = {code: state for state, code in _CODES.items()}


def check_id(transactional_id: str) -> None:
    """Refuse a transactional id that is empty or too long."""
    if not transactional_id:
        raise CodedError(ErrorCode.invalid_request, "the transactional id is empty")
    if len(transactional_id) > LONGEST_ID:
        raise CodedError(
            ErrorCode.invalid_request,
            f"a transactional id of {len(transactional_id)} characters; at most {LONGEST_ID}",
        )


def encode_key(transactional_id: str) -> bytes:
    return _I16.pack(KEY) + plain_text(transactional_id)


def decode_key(key: bytes) -> str | None:
    """The transactional id; None for a record of an unknown kind."""
    reader = FieldReader(key)
    return reader.text() if reader.i16() == KEY else None


def encode_value(transaction: TransactionMetadata) -> bytes:
    out = bytearray(_I16.pack(VERSION))
    out += _HEAD.pack(
        transaction.producer_id, transaction.producer_epoch, transaction.timeout_ms, _CODES[transaction.state]
    )
    if transaction.state is TransactionState.EMPTY:
        out.append(0)
    else:
        _write_partitions(out, transaction.partitions, transaction.topic_ids)
    out += _TIMES.pack(transaction.update_ms, transaction.start_ms)
    write_tags(out, _tags(transaction))
    return bytes(out)


def _write_partitions(out: bytearray, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, UUID]) -> None:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    write_uvarint(out, len(topics) + 1)
    for topic, indexes in topics.items():
        write_compact_text(out, topic)
        write_uvarint(out, len(indexes) + 1)
        out += i32s(indexes)
        topic_id = topic_ids.get(topic)
        write_tags(out, {} if topic_id is None else {_TOPIC_ID: topic_id.bytes})


def _tags(transaction: TransactionMetadata) -> dict[int, bytes]:
    tags = {}
    if transaction.previous_producer_id != NO_ID:
        tags[_PREVIOUS] = _I64.pack(transaction.previous_producer_id)
    if transaction.next_producer_id != NO_ID:
        tags[_NEXT] = _I64.pack(transaction.next_producer_id)
    if transaction.client_version:
        tags[_CLIENT_VERSION] = _I16.pack(transaction.client_version)
    return tags


def decode_value(transactional_id: str, value: bytes) -> TransactionMetadata:
    """Any version of a value."""
    try:
        return _read_transaction(transactional_id, FieldReader(value))
    except BadRecord as error:
        raise BadRecord(f"the state of transactional id {transactional_id!r} cannot be read: {error}") from error


def _read_transaction(transactional_id: str, reader: FieldReader) -> TransactionMetadata:
    reader.version(VERSION, _FIRST_FLEXIBLE)
    producer_id, epoch, timeout_ms, state = reader.fixed(_HEAD)
    if state not in _STATES:
        raise BadRecord(f"a state of {state}")
    partitions, topic_ids = _read_partitions(reader)
    update_ms, start_ms = reader.fixed(_TIMES)
    tags = reader.tags()
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        state=_STATES[state],
        partitions=partitions,
        topic_ids=topic_ids,
        start_ms=start_ms,
        update_ms=update_ms,
        previous_producer_id=_tag(tags, _PREVIOUS, _I64, NO_ID),
        next_producer_id=_tag(tags, _NEXT, _I64, NO_ID),
        client_version=_tag(tags, _CLIENT_VERSION, _I16, 0),
    )


def _read_partitions(reader: FieldReader) -> tuple[frozenset[TopicPartition], dict[str, UUID]]:
    partitions: set[TopicPartition] = set()
    topic_ids: dict[str, UUID] = {}
    for _ in range(reader.count()):
        topic = reader.text()
        partitions.update([TopicPartition(topic, index) for index in reader.i32s()])
        topic_id = reader.tags().get(_TOPIC_ID)
        if topic_id is not None:
            topic_ids[topic] = _uuid(topic_id)
    return frozenset(partitions), topic_ids


def _uuid(data: bytes) -> UUID:
    if len(data) != _UUID_BYTES:
        raise BadRecord(f"a topic id of {len(data)} bytes")
    return UUID(bytes=data)


def _tag(tags: dict[int, bytes], tag: int, kind: Struct, default: int) -> int:
    data = tags.get(tag)
    return default if data is None else FieldReader(data).fixed(kind)[0]
