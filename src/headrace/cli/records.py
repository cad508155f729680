"""From bytes to records: what `headrace produce` reads, one at a time."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from headrace.client.writer import MAX_RECORD_BYTES, Record

from .console import Failure, bad_input
from .progress import Advance

Clock = Callable[[], float]

_CHUNK: Final = 256 << 10


class Readable(Protocol):
    def read1(self, size: int = ..., /) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a piece of input becomes a record."""

    key_separator: bytes | None = None
    key: bytes | None = None
    null_value: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None
    timestamp: int = 0

    def record(self, piece: bytes, number: int, source: str) -> Record:
        """The record of one piece, which is the `number`th of its source."""
        key, value = self.key, piece
        if self.key_separator is not None:
            key, found, value = piece.partition(self.key_separator)
            if not found:
                raise self._no_key(number, source)
        return Record(
            key=key,
            value=None if value == self.null_value else value,
            headers=self.headers,
            timestamp=self.timestamp,
        )

    def _no_key(self, number: int, source: str) -> Failure:
        shown = (self.key_separator or b"").decode(errors="backslashreplace")
        return bad_input(
            f"record {number} of {source} has no key separator '{shown}'; --key-separator wants one in each"
        )


def pieces(
    stream: Readable, delimiter: bytes, where: str, on_bytes: Advance, limit: int = MAX_RECORD_BYTES
) -> Iterator[bytes]:
    """The stream, cut at each delimiter; a last piece without one counts, an empty last piece does not.

    Each piece is given as soon as it is read, so that a slow pipe is followed line by line.
    """
    rest = b""
    while chunk := stream.read1(_CHUNK):
        on_bytes(len(chunk))
        rest += chunk
        if len(chunk) < len(rest) and delimiter not in rest[-len(chunk) - len(delimiter) :]:
            _check_size(rest, where, limit)
            continue
        *whole, rest = rest.split(delimiter)
        yield from whole
    if rest:
        yield rest


def _check_size(rest: bytes, where: str, limit: int) -> None:
    if len(rest) > limit:
        raise bad_input(f"{where} has a record of more than {limit} bytes; is --delimiter right?")


def records_of(stream: Readable, recipe: Recipe, delimiter: bytes, name: str, on_bytes: Advance) -> Iterator[Record]:
    """The records of one stream. A carriage return before a line's end belongs to the end."""
    lines = delimiter == b"\n"
    for number, piece in enumerate(pieces(stream, delimiter, name, on_bytes), 1):
        if lines and piece.endswith(b"\r"):
            piece = piece[:-1]
        yield recipe.record(piece, number, name)


def whole_file(stream: io.BufferedIOBase, recipe: Recipe, name: str, on_bytes: Advance) -> Iterator[Record]:
    """All of a stream as one record."""
    content = stream.read(MAX_RECORD_BYTES + 1)
    if len(content) > MAX_RECORD_BYTES:
        raise bad_input(f"{name} is larger than {MAX_RECORD_BYTES} bytes, too large for one record")
    on_bytes(len(content))
    yield recipe.record(content, 1, name)


def paced(records: Iterator[Record], rate: float, now: Clock, wait: Callable[[float], None]) -> Iterator[Record]:
    """The same records, no more than `rate` of them a second."""
    start = now()
    for number, record in enumerate(records):
        early = start + number / rate - now()
        if early > 0:
            wait(early)
        yield record
