"""The records of `__transaction_state`, byte for byte as Kafka has them (TransactionLogKey and TransactionLogValue), so
that its tools can read the topic.

The key is a number (0) and the transactional id. Values are written as version 1, which has the previous and the next
producer id and the client's transaction version in tagged fields; version 0, without them, is read. A null value
means that the id is forgotten.
"""

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final

from headrace.coordinator.records import BadRecord
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.transactions import TopicPartition

from .model import NO_ID, Transaction
from .states import State

TRANSACTION_TOPIC: Final = "__transaction_state"
KEY: Final = 0
VERSION: Final = 1
LARGEST_ID: Final = 32_767
"""Bytes of the longest transactional id."""

_KEY: Final = Struct(">hh")
_HEAD: Final = Struct(">hqhib")
_TIMES: Final = Struct(">qq")
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_PREVIOUS, _NEXT, _CLIENT_VERSION = 0, 1, 2
_CODES: Final = {
    State.EMPTY: 0,
    State.ONGOING: 1,
    State.PREPARE_COMMIT: 2,
    State.PREPARE_ABORT: 3,
    State.COMPLETE_COMMIT: 4,
    State.COMPLETE_ABORT: 5,
    State.DEAD: 6,
    State.PREPARE_EPOCH_FENCE: 7,
}
_STATES: Final = {code: state for state, code in _CODES.items()}


def check_id(transactional_id: str) -> None:
    """Refuse a transactional id that is empty, or that the internal topic cannot hold."""
    if not transactional_id:
        raise CodedError(ErrorCode.invalid_request, "the transactional id is empty")
    if len(transactional_id) > LARGEST_ID // 4 and len(transactional_id.encode()) > LARGEST_ID:
        raise CodedError(
            ErrorCode.invalid_request,
            f"a transactional id of {len(transactional_id)} characters; at most {LARGEST_ID} bytes",
        )


def encode_key(transactional_id: str) -> bytes:
    text = transactional_id.encode()
    return _KEY.pack(KEY, len(text)) + text


def decode_key(key: bytes) -> str | None:
    """The transactional id; None where the record is of a kind that nobody here knows."""
    try:
        kind, size = _KEY.unpack_from(key)
        if kind != KEY:
            return None
        return key[_KEY.size : _KEY.size + size].decode()
    except (StructError, UnicodeDecodeError) as error:
        raise BadRecord(f"a key of {len(key)} bytes: {error}") from error


def encode_value(transaction: Transaction) -> bytes:
    out = bytearray(
        _HEAD.pack(
            VERSION,
            transaction.producer_id,
            transaction.producer_epoch,
            transaction.timeout_ms,
            _CODES[transaction.state],
        )
    )
    if transaction.state is State.EMPTY:
        out.append(0)
    else:
        _put_partitions(out, transaction.partitions)
    out += _TIMES.pack(transaction.update_ms, transaction.start_ms)
    _put_tags(out, transaction)
    return bytes(out)


def _put_partitions(out: bytearray, partitions: Iterable[TopicPartition]) -> None:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    _put_uvarint(out, len(topics) + 1)
    for topic, indexes in topics.items():
        text = topic.encode()
        _put_uvarint(out, len(text) + 1)
        out += text
        _put_uvarint(out, len(indexes) + 1)
        out += b"".join(map(_I32.pack, indexes))
        out.append(0)


def _put_tags(out: bytearray, transaction: Transaction) -> None:
    tags = []
    if transaction.previous_producer_id != NO_ID:
        tags.append((_PREVIOUS, _I64.pack(transaction.previous_producer_id)))
    if transaction.next_producer_id != NO_ID:
        tags.append((_NEXT, _I64.pack(transaction.next_producer_id)))
    if transaction.client_version:
        tags.append((_CLIENT_VERSION, _I16.pack(transaction.client_version)))
    _put_uvarint(out, len(tags))
    for tag, data in tags:
        _put_uvarint(out, tag)
        _put_uvarint(out, len(data))
        out += data


def _put_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def decode_value(transactional_id: str, value: bytes) -> Transaction:
    """Any version of a value."""
    try:
        return _Reader(value).transaction(transactional_id)
    except (StructError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise BadRecord(f"the state of transactional id {transactional_id!r} cannot be read: {error!r}") from error


class _Reader:
    """A walk over the fields of a value."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def transaction(self, transactional_id: str) -> Transaction:
        version, producer_id, epoch, timeout_ms, state = self._unpack(_HEAD)
        if not 0 <= version <= VERSION:
            raise BadRecord(f"a value of version {version}")
        flexible = version >= 1
        partitions = frozenset(self._partitions(flexible))
        update_ms, start_ms = self._unpack(_TIMES)
        tags = self._tags() if flexible else {}
        return Transaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            state=_STATES[state],
            partitions=partitions,
            start_ms=start_ms,
            update_ms=update_ms,
            previous_producer_id=_tag(tags, _PREVIOUS, _I64, NO_ID),
            next_producer_id=_tag(tags, _NEXT, _I64, NO_ID),
            client_version=_tag(tags, _CLIENT_VERSION, _I16, 0),
        )

    def _partitions(self, flexible: bool) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        for _ in range(self._count(flexible)):
            size = self._uvarint() - 1 if flexible else self._unpack(_I16)[0]
            topic = self._take(size).decode()
            found += [(topic, self._unpack(_I32)[0]) for _ in range(self._count(flexible))]
            if flexible:
                self._tags()
        return found

    def _count(self, flexible: bool) -> int:
        count = self._uvarint() - 1 if flexible else self._unpack(_I32)[0]
        return max(count, 0)

    def _tags(self) -> dict[int, bytes]:
        return {self._uvarint(): self._take(self._uvarint()) for _ in range(self._uvarint())}

    def _unpack(self, kind: Struct) -> tuple[int, ...]:
        values: tuple[int, ...] = kind.unpack_from(self._data, self._position)
        self._position += kind.size
        return values

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise IndexError("a field is longer than its record")
        found = self._data[self._position : end]
        self._position = end
        return found

    def _uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7


def _tag(tags: dict[int, bytes], tag: int, kind: Struct, default: int) -> int:
    data = tags.get(tag)
    return default if data is None else int(kind.unpack(data)[0])
