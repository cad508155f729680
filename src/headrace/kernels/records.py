"""Checks the records of a batch: each record's fields lie within it, offsets count from 0, nothing is left over.

The source serves twice. As it stands it is Python over a buffer; `build` compiles the same functions to machine code,
where `data` and `state` are pointers. So it keeps to what both read alike: integers below 2**63, no exceptions, and no
access at or beyond `size`, whatever the bytes are.

    length varint | attributes i8 | timestamp delta varint | offset delta varint
    | key length varint, key | value length varint, value | header count varint, (key, value)*
"""

from collections.abc import MutableSequence, Sequence
from typing import Final

SIZE: Final = 0
"""In: the bytes that the records take."""
COUNT: Final = 1
"""In: how many records there should be."""
NEWEST: Final = 2
"""Out: the largest timestamp delta."""
OLDEST: Final = 3
"""Out: the smallest timestamp delta."""
KEYLESS: Final = 4
"""Out: how many records have no key; the places of the first `KEYLESS_ROOM` of them follow."""
KEYLESS_ROOM: Final = 64
STATE_SIZE: Final = KEYLESS + 1 + KEYLESS_ROOM

SOUND: Final = -1
"""What `walk` returns when nothing is wrong; else the faulty record's place times 16, plus one of these."""
CUT_SHORT: Final = 0
WRONG_LENGTH: Final = 1
WRONG_TIMESTAMP: Final = 2
WRONG_OFFSET: Final = 3
WRONG_KEY: Final = 4
WRONG_VALUE: Final = 5
WRONG_HEADERS: Final = 6
NOT_FILLED: Final = 7
LEFT_OVER: Final = 8
WRONG_ATTRIBUTES: Final = 9

FAULTS: Final = {
    CUT_SHORT: "the records end before it",
    WRONG_LENGTH: "its length is not within the batch",
    WRONG_TIMESTAMP: "its timestamp is not within the record",
    WRONG_OFFSET: "its offset delta is not its place in the batch",
    WRONG_KEY: "its key is not within the record",
    WRONG_VALUE: "its value is not within the record",
    WRONG_HEADERS: "its headers are not within the record",
    NOT_FILLED: "its fields do not fill its length",
    LEFT_OVER: "more bytes follow the last record",
    WRONG_ATTRIBUTES: "its attributes are not below 128",
}

_SMALLEST: Final = 6
"""Bytes of a record after its length, when each field has one byte."""
_SHORT: Final = 5
"""Bytes of the longest varint of a length or count."""
_LONG: Final = 9
"""Bytes of the longest varint of a timestamp delta: a tenth would be for deltas of 146 million years."""
_NULL: Final = 1
_UNREADABLE: Final = 0x80
"""From here on attributes, which nobody uses, are taken for a varint that goes on by clients in Python."""
_FAR: Final = 1 << 62
_COMPARES: Final = False
"""Whether records are compared with those before them. It pays in compiled code alone, which has True here."""


def varint(data: Sequence[int], at: int, end: int, most: int) -> tuple[int, int]:
    """A varint of up to `most` bytes before `end`, zigzag-coded as it stands, and where it ends; -1 if it does not."""
    if end - at >= 2:
        value = data[at]
        if value < 0x80:
            return value, at + 1
        byte = data[at + 1]
        if byte < 0x80:
            return value & 0x7F | byte << 7, at + 2
    value = 0
    shift = 0
    for _ in range(most):
        if at >= end:
            return 0, -1
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


def field(data: Sequence[int], at: int, end: int) -> int:
    """Where a key or value (its length, -1 for null, and its bytes) ends; -1 if it does not before `end`."""
    size, at = varint(data, at, end, _SHORT)
    if at < 0 or size == _NULL:
        return at
    at += size >> 1
    return -1 if size & 1 or at > end else at


def is_null(data: Sequence[int], at: int, end: int) -> bool:
    """Whether the length of a key or value is -1, in however many bytes it is written."""
    size, after = varint(data, at, end, _SHORT)
    return after >= 0 and size == _NULL


def headers(data: Sequence[int], at: int, end: int) -> int:
    """Where the headers of a record end; -1 if they do not before `end`."""
    count, at = varint(data, at, end, _SHORT)
    if at < 0 or count & 1 or count >> 1 > end - at:
        return -1
    for _ in range(count >> 1):
        if is_null(data, at, end):
            return -1
        at = field(data, at, end)
        if at < 0:
            return -1
        at = field(data, at, end)
        if at < 0:
            return -1
    return at


def word(data: Sequence[int], at: int) -> int:
    """Eight bytes as one number, the first one lowest: one load when it is compiled."""
    return (
        data[at]
        | data[at + 1] << 8
        | data[at + 2] << 16
        | data[at + 3] << 24
        | data[at + 4] << 32
        | data[at + 5] << 40
        | data[at + 6] << 48
        | data[at + 7] << 56
    )


def spread(number: int, width: int) -> int:
    """A number as the bytes of a varint of this width (up to 3), the first one lowest."""
    if width == 1:
        return number
    if width == 2:
        return number & 0x7F | 0x80 | number >> 7 << 8
    return number & 0x7F | 0x80 | (number >> 7 & 0x7F | 0x80) << 8 | number >> 14 << 16


def walk(data: Sequence[int], state: MutableSequence[int]) -> int:
    """`SOUND`, or the first fault. `state` holds `SIZE` and `COUNT`, and gets what was learned on the way.

    Compiled code compares a record with the one before it, as most are alike: the same lengths in the same places, no
    headers. The processor need not wait for a length to find the next record then, which more than doubles the speed.
    """
    size = state[SIZE]
    count = state[COUNT]
    newest = -_FAR
    oldest = _FAR
    keyless = 0
    at = 0
    alike = 0  # records before this place may be like the one before
    total = mask = pattern = width = offset_shift = time_shift = value_at = value_mask = value_bytes = 0
    long_time = has_no_key = False
    for place in range(count):
        if place < alike and at + total <= size:
            head = word(data, at)
            time = head >> time_shift
            if (
                head & mask == pattern | spread(place << 1, width) << offset_shift
                and (data[at + value_at] | data[at + value_at + 1] << 8) & value_mask == value_bytes
                and data[at + total - 1] == 0
                and time & (0x8080 if long_time else 0x80) == (0x80 if long_time else 0)
            ):
                delta = time & 0x7F | (time >> 1 & 0x3F80 if long_time else 0)
                delta = (delta >> 1) ^ -(delta & 1)
                if delta > newest:
                    newest = delta
                if delta < oldest:
                    oldest = delta
                if has_no_key:
                    if keyless < KEYLESS_ROOM:
                        state[KEYLESS + 1 + keyless] = place
                    keyless += 1
                at += total
                continue
        start = at
        length, at = varint(data, at, size, _SHORT)
        end = at + (length >> 1)
        if at < 0 or length & 1 or end > size or end - at < _SMALLEST:
            return place << 4 | WRONG_LENGTH
        if data[at] >= _UNREADABLE:
            return place << 4 | WRONG_ATTRIBUTES
        time_at = at + 1
        delta, at = varint(data, time_at, end, _LONG)
        if at < 0:
            return place << 4 | WRONG_TIMESTAMP
        delta = (delta >> 1) ^ -(delta & 1)
        if delta > newest:
            newest = delta
        if delta < oldest:
            oldest = delta
        offset_at = at
        offset, at = varint(data, at, end, _SHORT)
        if at < 0 or offset != place << 1:
            return place << 4 | WRONG_OFFSET
        key_at = at
        has_no_key = is_null(data, at, end)
        if has_no_key:
            if keyless < KEYLESS_ROOM:
                state[KEYLESS + 1 + keyless] = place
            keyless += 1
        at = field(data, at, end)
        if at < 0:
            return place << 4 | WRONG_KEY
        value = at
        at = field(data, at, end)
        if at < 0:
            return place << 4 | WRONG_VALUE
        is_bare = at < end and data[at] == 0
        at = at + 1 if is_bare else headers(data, at, end)
        if at < 0:
            return place << 4 | WRONG_HEADERS
        if at != end:
            return place << 4 | NOT_FILLED
        alike = 0
        if _COMPARES and is_bare and key_at - start < 8 and end - start >= 16 and value + 2 <= end:
            width = key_at - offset_at
            is_short = data[value] < 0x80
            if width <= 3 and offset_at - time_at <= 2 and data[key_at] < 0x80 and (is_short or data[value + 1] < 0x80):
                alike = 1 << 7 * width - 1
                total = end - start
                time_shift = 8 * (time_at - start)
                offset_shift = 8 * (offset_at - start)
                long_time = offset_at - time_at == 2
                # All of the first eight bytes up to the key's length, but the timestamp, and of the attributes one bit.
                mask = -1 if key_at - start == 7 else (1 << 8 * (key_at - start + 1)) - 1
                mask &= -1 << offset_shift | (1 << time_shift - 8) - 1 | _UNREADABLE << time_shift - 8
                pattern = word(data, start) & mask ^ spread(place << 1, width) << offset_shift
                value_at = value - start
                value_mask = 0xFF if is_short else 0xFFFF
                value_bytes = (data[value] | data[value + 1] << 8) & value_mask
    if at != size:
        return count << 4 | LEFT_OVER
    state[NEWEST] = newest
    state[OLDEST] = oldest
    state[KEYLESS] = keyless
    return SOUND
