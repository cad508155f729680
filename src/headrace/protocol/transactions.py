"""The answer of DescribeTransactions, read by hand: kio takes the -1 that stands for no time to be no time at all.

Version 0, the only one; lengths are varints and structs end in tagged fields.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

from .errors import ErrorCode, ProtocolViolation
from .guard import Walk, check_response, skip_tags
from .topic_partition import TopicPartition

DESCRIBE_TRANSACTIONS: Final = 65
_THROTTLE: Final = Struct(">i")
_CODE: Final = Struct(">h")
_NUMBERS: Final = Struct(">iqqh")
_INDEX: Final = Struct(">i")


class DescribedTransaction(NamedTuple):
    """A transactional id as its coordinator knows it."""

    error_code: ErrorCode
    transactional_id: str
    state: str
    timeout_ms: int
    start_ms: int
    """When its transaction began; -1 where none has."""
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


def read_described(data: memoryview) -> list[DescribedTransaction]:
    """The transactions of an answer's body; `ProtocolViolation` when it is none."""
    body = check_response(DESCRIBE_TRANSACTIONS, 0, data.toreadonly())
    try:
        return list(_Walk(memoryview(body)).transactions())
    except (StructError, IndexError, ValueError) as error:
        raise ProtocolViolation(f"an answer that does not decode: {error}") from error


class _Walk:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._walk = Walk(data)
        self._position = _THROTTLE.size

    def transactions(self) -> Iterator[DescribedTransaction]:
        for _ in range(self._count()):
            (code,) = self._unpack(_CODE)
            name, state = self._text(), self._text()
            timeout_ms, start_ms, producer_id, epoch = self._unpack(_NUMBERS)
            partitions = tuple(self._partitions())
            self._skip_tags()
            yield DescribedTransaction(
                ErrorCode(code), name, state, timeout_ms, start_ms, producer_id, epoch, partitions
            )

    def _partitions(self) -> Iterator[TopicPartition]:
        for _ in range(self._count()):
            topic = self._text()
            for _ in range(self._count()):
                yield TopicPartition(topic, self._unpack(_INDEX)[0])
            self._skip_tags()

    def _unpack(self, kind: Struct) -> tuple[int, ...]:
        found: tuple[int, ...] = kind.unpack_from(self._data, self._position)
        self._position += kind.size
        return found

    def _count(self) -> int:
        size, self._position = self._walk.uvarint(self._position)
        return size - 1

    def _text(self) -> str:
        size = self._count()
        start = self._position
        self._position = start + size
        return str(self._data[start : self._position], "utf-8")

    def _skip_tags(self) -> None:
        self._position = skip_tags(self._data, self._position)
