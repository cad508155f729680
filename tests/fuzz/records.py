"""The broker's check of records, against a reader of Kafka's format."""

from functools import cache
from random import Random
from typing import Any, Final

import numpy as np

from headrace.kernels import bounds, build, native, records
from headrace.protocol.batch import HEADER_SIZE
from headrace.protocol.records import Record, encode_batch

from .kafka import Records
from .memory import MEMORY
from .mutation import payloads
from .reading import Bad

_CASES: Final = 100
_LONGEST: Final = (5, 9)
"""Bytes of varints that the check takes."""


@cache
def loop(kernel: str) -> Any:
    """The walk of a kernel in this build, taking two arrays."""
    if bounds.CHECKED:
        from numba import njit

        pointer, walk = bounds.pointer, build.loop(kernel)
        return njit(lambda data, state: walk(pointer(data), pointer(state)))
    function = native.run(build.compiled(kernel))
    return lambda data, state: function(data.ctypes.data, state.ctypes.data)


def _bodies(random: Random) -> list[bytes]:
    """Records of some batches; in half of them they are like each other."""
    made = []
    for _ in range(6):
        count = random.choice((1, 2, 3, 66))
        if random.random() < 0.5:
            key, value = random.choice((None, b"", b"key")), random.choice((None, b"v" * 9, b"v" * 70))
            items = [Record(0, 1000 + random.randrange(70), key, value) for _ in range(count)]
        else:
            items = [_record(random) for _ in range(min(count, 5))]
        made.append(bytes(encode_batch(items)[HEADER_SIZE:]))
    return made


def _record(random: Random) -> Record:
    def some() -> bytes | None:
        return random.choice((None, random.randbytes(random.choice((0, 1, 20, 64, 100)))))

    headers = tuple((random.choice(("", "h", "é")), some()) for _ in range(random.choice((0, 0, 1, 3))))
    return Record(0, random.randrange(1 << 42), some(), some(), headers)


def run(random: Random) -> int:
    """Bodies of batches, each with a number of records that its head may say."""
    bodies = payloads(random, _bodies(random), _CASES)
    walk = loop(native.RECORDS)
    for body in bodies:
        count = _count(random, body)
        state = MEMORY.array(records.STATE_SIZE, np.int64)
        state[:] = 0
        state[records.SIZE], state[records.COUNT] = len(body), count
        status = int(walk(MEMORY.holding(body), state))
        expected = _reference(body, count)
        if expected is None:
            assert status != records.SOUND, f"{count} records are bad, but found sound: {body.hex()}"
        else:
            said = (int(state[records.NEWEST]), int(state[records.OLDEST]), int(state[records.KEYLESS]))
            places = state[records.KEYLESS + 1 :][: min(said[2], records.KEYLESS_ROOM)].tolist()
            assert status == records.SOUND, f"{count} records are sound, but found bad ({status}): {body.hex()}"
            assert (*said, places) == expected, f"{expected}, not {(*said, places)}: {body.hex()}"
        MEMORY.clear(random)
    return len(bodies)


def _count(random: Random, body: bytes) -> int:
    """How many records there are, or any number."""
    reader, count = Records(body, longest=_LONGEST), 0
    try:
        while reader.left:
            reader.record()
            count += 1
    except Bad:
        count += 1
    return count if random.random() < 0.8 else random.choice((0, 1, 2, count + 1, max(count - 1, 0), 2**31 - 1))


def _reference(body: bytes, count: int) -> tuple[int, int, int, list[int]] | None:
    """The newest and the oldest timestamp delta, and which records have no key; None where something is wrong."""
    reader = Records(body, longest=_LONGEST)
    newest, oldest, keyless = -(1 << 62), 1 << 62, []
    try:
        for place in range(count):
            record = reader.record()
            if record.attributes >= 0x80 or record.offset_delta != place or record.headers is None:
                return None
            newest, oldest = max(newest, record.timestamp_delta), min(oldest, record.timestamp_delta)
            keyless += [place] if record.key is None else []
    except Bad:
        return None
    if reader.left:
        return None
    return newest, oldest, len(keyless), keyless[: records.KEYLESS_ROOM]
