"""Payloads made wrong: bits, lengths and numbers changed, parts cut, repeated and put together with others'."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

_VARINTS: Final = [
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\x1f",
    b"\x80\x80\x80\x80\x10",
    b"\xff" * 8 + b"\x7f",
    b"\xff" * 9 + b"\x01",
    b"\xfe" + b"\xff" * 8 + b"\x01",
    b"\xff" * 9 + b"\x02",
    b"\xff" * 9 + b"\x7f",
    b"\x80" * 9 + b"\x00",
    b"\x80" * 9 + b"\x01",
    b"\x80" * 9 + b"\x02",
    b"\x82" + b"\x80" * 8 + b"\x7e",
    b"\x80" * 12,
    b"\xff" * 12,
    b"\x80\x00",
    b"\x81\x80\x00",
]
_NUMBERS: Final = [number.to_bytes(4, "big", signed=True) for number in (0, 1, -1, -2, 2**31 - 1, -(2**31), 61, 49, 12)]
_LONG_NUMBERS: Final = [number.to_bytes(8, "big", signed=True) for number in (0, -1, 2**63 - 1, -(2**63), 2**62, 2**31)]
_BYTES: Final = (0, 1, 2, 3, 0x0F, 0x7F, 0x80, 0x81, 0xFE, 0xFF, 0xC0, 0xE0, 0xED, 0xF0, 0xF4)

Change = Callable[[Random, bytes, Sequence[bytes]], bytes]


def _flip(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def _byte(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + bytes([random.choice(_BYTES)]) + data[at + 1 :]


def _cut(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data[: random.randrange(len(data))]


def _more(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return data + random.randbytes(random.randrange(1, 12))


def _inserted(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice(_VARINTS) + data[at:]


def _overwritten(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at, written = random.randrange(len(data)), random.choice(_VARINTS)
    return data[:at] + written + data[at + random.choice((1, len(written))) :]


def _number(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at, written = random.randrange(len(data)), random.choice(random.choice((_NUMBERS, _LONG_NUMBERS)))
    return data[:at] + written + data[at + len(written) :]


def _spliced(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = random.choice(others)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _repeated(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    return data[:end] + data[start:end] * random.choice((1, 1, 2, 8)) + data[end:]


def _removed(random: Random, data: bytes, _: Sequence[bytes]) -> bytes:
    start, end = sorted((random.randrange(len(data) + 1), random.randrange(len(data) + 1)))
    return data[:start] + data[end:]


_CHANGES: Final[list[Change]] = [
    _flip,
    _flip,
    _byte,
    _byte,
    _cut,
    _more,
    _inserted,
    _overwritten,
    _number,
    _spliced,
    _repeated,
    _removed,
]
_LONGEST: Final = 4096


def mutated(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The payload after a few changes; `others` are of its kind."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if data:
            data = random.choice(_CHANGES)(random, data, others)
    return data[:_LONGEST]


def payloads(random: Random, sound: Sequence[bytes], count: int) -> list[bytes]:
    """So many: sound ones, what became of them, one cut into two that follow each other, and garbage."""
    made: list[bytes] = []
    while len(made) < count:
        kind, data = random.random(), random.choice(sound)
        if kind < 0.2:
            made.append(data)
        elif kind < 0.9:
            made.append(mutated(random, data, sound))
        elif kind < 0.95:
            at = random.randrange(len(data) + 1)
            made += [data[:at], data[at:]]
        else:
            made.append(random.randbytes(random.choice((0, 1, 2, 5, 8, 20, 70))))
    return made


def with_absent(random: Random, rows: list[bytes]) -> list[bytes | None]:
    """The payloads, some of them not there."""
    return [None if random.random() < 0.02 else row for row in rows]
