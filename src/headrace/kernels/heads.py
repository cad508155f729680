"""Walks over the batches of a log that are plain: sound, each where the one before it ends, with nothing new to say.

It serves recovery, which has to check everything that was written since the last sync. What the walk passes over it
adds up (index entries, timestamps, positions of the batches that have a producer); at the first batch that is anything
but plain it stops, and Python looks at that one. So nothing is decided here that is not decided there too, and it is
Python alone that calls a batch bad.

As in `records`, the source serves twice, and keeps to what Python and machine code read alike. Numbers that would need
their 63rd bit are not plain.
"""

from collections.abc import MutableSequence, Sequence
from typing import Final

AT: Final = 0
"""In: where in the data a batch begins. Out: where the first batch begins that was not passed over."""
SIZE: Final = 1
"""In: bytes of data."""
ORIGIN: Final = 2
"""In: where in the file the data begins."""
BASE_OFFSET: Final = 3
"""In: of the segment."""
NEXT_OFFSET: Final = 4
"""In and out: the offset that the next batch has to have."""
CHECKED_FROM: Final = 5
"""In: batches that reach this offset must match their CRC-32C."""
PRODUCERS_FROM: Final = 6
"""In: of batches that reach this offset and have a producer the places are wanted."""
EPOCH_FROM: Final = 7
"""In: from this offset on batches must have the same leader epoch."""
EPOCH: Final = 8
"""In: that epoch, without its sign; -1 for none."""
INTERVAL: Final = 9
"""In: how many bytes lie between two index entries at least."""
SINCE_INDEX: Final = 10
"""In and out: bytes since the last index entry."""
NEWEST: Final = 11
"""In and out: the largest timestamp so far."""
NEWEST_OFFSET: Final = 12
"""In and out: the last offset of the first batch that has it."""
LAST_TIME: Final = 13
"""In and out: the timestamp of the last entry of the time index."""
ENTRIES: Final = 14
"""Out: how many entries the offset index gets: relative offsets from `ENTRY_OFFSETS` on, positions likewise."""
TIMES: Final = 15
"""Out: how many entries the time index gets."""
PRODUCED: Final = 16
"""Out: how many batches have a producer."""

ENTRY_ROOM: Final = 1024
PRODUCED_ROOM: Final = 4096
ENTRY_OFFSETS: Final = 17
ENTRY_POSITIONS: Final = ENTRY_OFFSETS + ENTRY_ROOM
TIME_STAMPS: Final = ENTRY_POSITIONS + ENTRY_ROOM
TIME_OFFSETS: Final = TIME_STAMPS + ENTRY_ROOM
PRODUCED_AT: Final = TIME_OFFSETS + ENTRY_ROOM
TABLES: Final = PRODUCED_AT + PRODUCED_ROOM
"""In: the eight tables of `crc_tables`."""
STATE_SIZE: Final = TABLES + 8 * 256

_HEADER_SIZE: Final = 61
_LOG_OVERHEAD: Final = 12
_MAGIC: Final = 2
_CONTROL_BIT: Final = 0x20
_CRC_START: Final = 21
_LARGEST: Final = 0x7FFFFFFF
_ALL: Final = 0xFFFFFFFF
_POLYNOMIAL: Final = 0x82F63B78


def crc_tables() -> list[int]:
    """For `TABLES`: what each value of a byte does to a CRC-32C that is 1 to 8 bytes away from its end."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    tables = list(table)
    for at in range(7 * 256):
        tables.append(tables[at] >> 8 ^ table[tables[at] & 0xFF])
    return tables


def u32(data: Sequence[int], at: int) -> int:
    """A number in network order. Sums, as compiled code would take shifted bytes for numbers without a sign."""
    return data[at] * 0x1000000 + data[at + 1] * 0x10000 + data[at + 2] * 0x100 + data[at + 3]


def low_u32(data: Sequence[int], at: int) -> int:
    """Four bytes, the first one lowest."""
    return data[at] + data[at + 1] * 0x100 + data[at + 2] * 0x10000 + data[at + 3] * 0x1000000


def crc32c(data: Sequence[int], state: Sequence[int], at: int, end: int) -> int:
    """The checksum of some bytes, eight at a time: no processor is too plain for that."""
    crc = _ALL
    while end - at >= 8:
        low = low_u32(data, at) ^ crc
        high = low_u32(data, at + 4)
        crc = (
            state[TABLES + 0x700 + (low & 0xFF)]
            ^ state[TABLES + 0x600 + (low >> 8 & 0xFF)]
            ^ state[TABLES + 0x500 + (low >> 16 & 0xFF)]
            ^ state[TABLES + 0x400 + (low >> 24)]
            ^ state[TABLES + 0x300 + (high & 0xFF)]
            ^ state[TABLES + 0x200 + (high >> 8 & 0xFF)]
            ^ state[TABLES + 0x100 + (high >> 16 & 0xFF)]
            ^ state[TABLES + (high >> 24)]
        )
        at += 8
    while at < end:
        crc = state[TABLES + ((crc ^ data[at]) & 0xFF)] ^ crc >> 8
        at += 1
    return crc ^ _ALL


def walk(data: Sequence[int], state: MutableSequence[int]) -> int:
    """How many batches were passed over; `state` has what there is to know about them."""
    at = state[AT]
    size = state[SIZE]
    next_offset = state[NEXT_OFFSET]
    since_index = state[SINCE_INDEX]
    newest = state[NEWEST]
    entries = 0
    times = 0
    produced = 0
    passed = 0
    while at + _HEADER_SIZE <= size and entries < ENTRY_ROOM and produced < PRODUCED_ROOM:
        position = state[ORIGIN] + at
        after = at + _LOG_OVERHEAD + u32(data, at + 8)
        delta = u32(data, at + 23)
        last_offset = next_offset + delta
        if (
            data[at] >= 0x40
            or u32(data, at) << 32 | u32(data, at + 4) != next_offset
            or after < at + _HEADER_SIZE
            or after > size
            or data[at + 16] != _MAGIC
            or data[at + 22] & _CONTROL_BIT
            or last_offset - state[BASE_OFFSET] > _LARGEST
            or position > _LARGEST
            or data[at + 35] >= 0x40
        ):
            break
        if next_offset >= state[EPOCH_FROM] and u32(data, at + 12) != state[EPOCH]:
            break
        has_producer = data[at + 43] < 0x80
        if not has_producer and (u32(data, at + 43) != _ALL or u32(data, at + 47) != _ALL):
            break
        if last_offset >= state[CHECKED_FROM] and u32(data, at + 17) != crc32c(data, state, at + _CRC_START, after):
            break
        if has_producer and last_offset >= state[PRODUCERS_FROM]:
            state[PRODUCED_AT + produced] = at
            produced += 1
        timestamp = u32(data, at + 35) << 32 | u32(data, at + 39)
        if timestamp > newest:
            newest = timestamp
            state[NEWEST_OFFSET] = last_offset
        if since_index > state[INTERVAL]:
            state[ENTRY_OFFSETS + entries] = last_offset - state[BASE_OFFSET]
            state[ENTRY_POSITIONS + entries] = position
            entries += 1
            if newest > state[LAST_TIME]:
                state[TIME_STAMPS + times] = state[LAST_TIME] = newest
                state[TIME_OFFSETS + times] = state[NEWEST_OFFSET] - state[BASE_OFFSET]
                times += 1
            since_index = 0
        since_index += after - at
        next_offset = last_offset + 1
        at = after
        passed += 1
    state[AT] = at
    state[NEXT_OFFSET] = next_offset
    state[SINCE_INDEX] = since_index
    state[NEWEST] = newest
    state[ENTRIES] = entries
    state[TIMES] = times
    state[PRODUCED] = produced
    return passed
