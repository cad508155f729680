"""Many batches, sound and damaged, on which compiled code must say what its source says."""

import ctypes
from array import array
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from random import Random
from struct import Struct
from typing import Any, Final

from . import heads, native, records
from .varints import varint

_TRIALS: Final = 1_000
_LIKE: Final = 0.1
"""The share of trials in which records are like each other."""
_HEADER: Final = Struct(">qiibIhiqqqhii")
_CRC_AT: Final = 17
_CRC_START: Final = 21
_HEADS_STATE: Final = array("q", [*[0] * heads.TABLES, *heads.crc_tables()])

Walk = Callable[[Sequence[int], MutableSequence[int]], int]


def check(kernel: str, function: native.Function, trials: int = _TRIALS) -> None:
    """`Unusable` when the compiled code differs from its source on any of many batches, sound and damaged."""
    random = Random(0)
    for _ in range(trials):
        for difference in _differences(kernel, function, random):
            if difference:
                raise native.Unusable(f"the compiled code is wrong: {difference}")


def check_bound(bind: native.Bind, trials: int = _TRIALS) -> None:
    """The same for code that takes a whole batch."""
    random = Random(0)
    said = records_state(b"", 0)
    method = bind(said)
    learned = slice(records.NEWEST, records.FAULT)
    for _ in range(trials):
        for body, count in _bodies(random):
            state = records_state(body, count)
            said[learned] = state[learned]
            batch = bytes(_HEADER.size - 4) + count.to_bytes(4, "big") + body
            state[records.FAULT] = records.walk(body, state)
            state[records.VIEW_TYPE] = said[records.VIEW_TYPE]
            if method(memoryview(batch)) is not said or said != state:
                raise native.Unusable(f"the compiled code is wrong: {said[:5]}, {state[:5]} for {batch.hex()}")


def _differences(kernel: str, function: native.Function, random: Random) -> Iterator[str]:
    if kernel == native.RECORDS:
        for body, count in _bodies(random):
            yield differing(function, records.walk, body, records_state(body, count))
    else:
        for data, state in logs(random):
            yield differing(function, heads.walk, data, state)


def differing(function: native.Function, source: Walk, data: bytes, state: "array[int]") -> str:
    """What the compiled code and its source say of some bytes, where they do not say the same."""
    said = []
    for call in (lambda data, state: function(_address(data), _address(state)), source):
        own = state[:]
        said.append((call(bytearray(data), own), own.tobytes()))
    return "" if said[0] == said[1] else f"{said[0][0]}, {said[1][0]} for {data.hex()} with {state[:20]}"


def records_state(body: bytes, count: int) -> "array[int]":
    """What `records.walk` is given for some bytes."""
    return array("q", [len(body), count, *[0] * (records.STATE_SIZE - 2)])


def heads_state(data: bytes, values: dict[int, int]) -> "array[int]":
    """What `heads.walk` is given for some bytes."""
    state = _HEADS_STATE[:]
    state[heads.SIZE] = len(data)
    for place, value in values.items():
        state[place] = value
    return state


def _address(buffer: Any) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer)) if len(buffer) else 0


def _bodies(random: Random) -> Iterator[tuple[bytes, int]]:
    if random.random() < _LIKE:
        count = random.randrange(60, 70)
        body = b"".join(_like_record(random, place) for place in range(count))
    else:
        count = random.randrange(1, 5)
        body = b"".join(_record(random, place) for place in range(count))
    yield body, count
    at = random.randrange(len(body))
    yield body[:at], count
    yield body[:at] + bytes([random.randrange(256)]) + body[at + 1 :], count
    yield random.randbytes(random.randrange(1, 40)), count


def _record(random: Random, index: int) -> bytes:
    fields = [b"\0", varint(random.randrange(-(1 << 40), 1 << 40)), varint(index)]
    fields += [_bytes(random) for _ in range(2)]
    headers = random.choice((0, 0, 1, 3))
    fields.append(varint(headers))
    for _ in range(headers):
        fields += [varint(1) + b"h", _bytes(random)]
    body = b"".join(fields)
    return varint(len(body)) + body


def _like_record(random: Random, index: int) -> bytes:
    body = b"\0" + varint(random.randrange(-70, 70)) + varint(index) + b"\1\xc8\1" + bytes(100) + b"\0"
    return varint(len(body)) + body


def _bytes(random: Random) -> bytes:
    size = random.choice((-1, 0, 1, 20, 100))
    return varint(size) + random.randbytes(max(size, 0))


def logs(random: Random) -> Iterator[tuple[bytes, "array[int]"]]:
    """Some batches that follow each other, and what is to be known of them: sound, cut short, and damaged."""
    offset = random.choice((0, 5, 1 << 40))
    values = {
        heads.BASE_OFFSET: offset,
        heads.NEXT_OFFSET: offset,
        heads.ORIGIN: random.choice((0, 1000, (1 << 31) - 400)),
        heads.CHECKED_FROM: offset + random.choice((0, 0, 3)),
        heads.PRODUCERS_FROM: offset + random.choice((0, 3)),
        heads.EPOCH_FROM: offset + random.choice((0, 3)),
        heads.EPOCH: 7,
        heads.INTERVAL: random.choice((0, 100, 4096)),
        heads.NEWEST: -1,
        heads.NEWEST_OFFSET: -1,
        heads.LAST_TIME: random.choice((-1, 1000)),
    }
    data = b""
    for _ in range(random.randrange(1, 8)):
        batch, offset = _batch(random, offset)
        data += batch
    yield data, heads_state(data, values)
    at = random.randrange(len(data))
    yield data[:at], heads_state(data[:at], values)
    damaged = data[:at] + bytes([random.randrange(256)]) + data[at + 1 :]
    yield damaged, heads_state(damaged, values)


def _batch(random: Random, offset: int) -> tuple[bytes, int]:
    body = random.randbytes(random.randrange(40))
    delta = random.choice((0, 0, 3, 1 << 30))
    epoch = random.choice((7, 7, 7, 8, -1))
    attributes = random.choice((0, 0, 0, 0x10, 0x20))
    newest = random.choice((999, 1000, 1001, 1 << 61, 1 << 62, -1))
    producer = random.choice((-1, -1, 5, 1 << 62, -2))
    magic = random.choice((2, 2, 2, 2, 1))
    size = _HEADER.size - 12 + len(body)
    batch = bytearray(
        _HEADER.pack(offset, size, epoch, magic, 0, attributes, delta, 0, newest, producer, 0, 0, 1) + body
    )
    crc = heads.crc32c(batch, _HEADS_STATE, _CRC_START, len(batch))
    batch[_CRC_AT:_CRC_START] = crc.to_bytes(4, "big")
    return bytes(batch), offset + delta + random.choice((1, 1, 1, 1, 2))
