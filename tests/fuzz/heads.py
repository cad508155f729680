"""The broker's walk over the batches of a log in recovery, against one that unpacks each head."""

from random import Random
from typing import Any, Final

import crc32c
import numpy as np

from headrace.kernels import heads, native

from .kafka import CRC_AT, CRC_START, HEADER, with_head_changed
from .memory import MEMORY
from .mutation import payloads
from .records import loop

_LOGS: Final = 60
_LARGEST: Final = 2**31 - 1
_TABLES: Final = np.array(heads.crc_tables(), np.int64)


def _batch(random: Random, offset: int, epoch: int) -> tuple[bytes, int]:
    body = random.randbytes(random.choice((0, 1, 7, 40)))
    delta = random.choice((0, 0, 3, 1 << 20))
    attributes = random.choice((0, 0, 0, 0, 0x10, 0x20))
    newest = random.choice((999, 1000, 1001, 1 << 40, 1 << 61, 1 << 62, -1))
    producer = random.choice((-1, -1, 5, 1 << 62, -2))
    magic = 2 if random.random() < 0.95 else random.choice((0, 1, 3))
    head = (offset, HEADER.size - 12 + len(body), epoch, magic, 0, attributes, delta, 0, newest, producer, 0, 0, 1)
    batch = bytearray(HEADER.pack(*head) + body)
    batch[CRC_AT:CRC_START] = crc32c.crc32c(batch[CRC_START:]).to_bytes(4, "big")
    return bytes(batch), offset + delta + (1 if random.random() < 0.9 else 2)


def _stamped(data: bytes) -> bytes:
    """The log with the checksum of its first batch made right, so that what is wrong with it is something else."""
    if len(data) < HEADER.size:
        return data
    size = HEADER.unpack_from(data)[1] + 12
    crc: int = crc32c.crc32c(data[CRC_START : max(size, CRC_START)])
    return data[:CRC_AT] + crc.to_bytes(4, "big") + data[CRC_START:]


def run(random: Random) -> int:
    """Logs of some batches, and what is known of them when the walk begins."""
    first, epoch = random.choice((0, 5, 1 << 40, (1 << 62) - 5)), random.choice((0, 7))
    sound = []
    for _ in range(5):
        offset, log = first, b""
        for _ in range(random.randrange(1, 8)):
            batch, offset = _batch(random, offset, epoch if random.random() < 0.95 else random.choice((8, -1)))
            log += batch
        sound.append(log)
    walk = loop(native.HEADS)
    logs = payloads(random, sound, _LOGS)
    for log in logs:
        data = with_head_changed(random, log) if random.random() < 0.3 else log
        data = _stamped(data) if random.random() < 0.5 else data
        state = MEMORY.array(heads.STATE_SIZE, np.int64)
        state[:] = 0
        state[heads.TABLES :] = _TABLES
        for cell, value in _known(random, data, first, epoch).items():
            state[cell] = value
        given = state[: heads.ENTRY_OFFSETS].tolist()
        passed = int(walk(MEMORY.holding(data), state))
        said = _said(passed, state)
        expected = _reference(data, given)
        assert said == expected, f"{expected}, not {said}: {data.hex()} with {given}"
        MEMORY.clear(random)
    return len(logs)


def _known(random: Random, data: bytes, offset: int, epoch: int) -> dict[int, int]:
    return {
        heads.SIZE: len(data),
        heads.AT: 0 if random.random() < 0.9 else random.randrange(len(data) + 1),
        heads.BASE_OFFSET: offset,
        heads.NEXT_OFFSET: offset,
        heads.ORIGIN: random.choice((0, 1000, _LARGEST - 400)),
        heads.CHECKED_FROM: offset + random.choice((0, 0, 3, 1 << 30)),
        heads.PRODUCERS_FROM: offset + random.choice((0, 3)),
        heads.EPOCH_FROM: offset + random.choice((0, 3)),
        heads.EPOCH: epoch,
        heads.INTERVAL: random.choice((0, 100, 4096)),
        heads.NEWEST: -1,
        heads.NEWEST_OFFSET: -1,
        heads.LAST_TIME: random.choice((-1, 1000)),
    }


def _said(passed: int, state: Any) -> dict[str, Any]:
    entries, times, produced = (int(state[cell]) for cell in (heads.ENTRIES, heads.TIMES, heads.PRODUCED))

    def cells(start: int, count: int) -> list[int]:
        return [int(value) for value in state[start : start + count]]

    return {
        "passed": passed,
        "at": int(state[heads.AT]),
        "next": int(state[heads.NEXT_OFFSET]),
        "since": int(state[heads.SINCE_INDEX]),
        "newest": (int(state[heads.NEWEST]), int(state[heads.NEWEST_OFFSET])),
        "entries": list(zip(cells(heads.ENTRY_OFFSETS, entries), cells(heads.ENTRY_POSITIONS, entries), strict=True)),
        "times": list(zip(cells(heads.TIME_STAMPS, times), cells(heads.TIME_OFFSETS, times), strict=True)),
        "produced": cells(heads.PRODUCED_AT, produced),
    }


def _reference(data: bytes, given: list[int]) -> dict[str, Any]:
    at, following, since = given[heads.AT], given[heads.NEXT_OFFSET], given[heads.SINCE_INDEX]
    newest, last_time = (given[heads.NEWEST], given[heads.NEWEST_OFFSET]), given[heads.LAST_TIME]
    base = given[heads.BASE_OFFSET]
    entries: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    produced: list[int] = []
    passed = 0
    while len(data) - at >= HEADER.size:
        offset, length, epoch, magic, crc, attributes, delta, _, time, producer, *_ = HEADER.unpack_from(data, at)
        size, last, position = length + 12, offset + delta, given[heads.ORIGIN] + at
        is_plain = (
            offset == following
            and offset < 1 << 62
            and magic == 2
            and HEADER.size <= size <= len(data) - at
            and not attributes & 0x20
            and delta >= 0
            and last - base <= _LARGEST
            and position <= _LARGEST
            and 0 <= time < 1 << 62
            and producer >= -1
        )
        if not is_plain or (offset >= given[heads.EPOCH_FROM] and epoch != given[heads.EPOCH]):
            break
        if last >= given[heads.CHECKED_FROM] and crc32c.crc32c(data[at + CRC_START : at + size]) != crc:
            break
        if producer >= 0 and last >= given[heads.PRODUCERS_FROM]:
            produced.append(at)
        if time > newest[0]:
            newest = time, last
        if since > given[heads.INTERVAL]:
            entries.append((last - base, position))
            if newest[0] > last_time:
                last_time = newest[0]
                times.append((newest[0], newest[1] - base))
            since = 0
        since += size
        at, following, passed = at + size, last + 1, passed + 1
    return {
        "passed": passed,
        "at": at,
        "next": following,
        "since": since,
        "newest": newest,
        "entries": entries,
        "times": times,
        "produced": produced,
    }
