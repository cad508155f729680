"""Checks the records of a batch: each record's fields lie within it, offsets count from 0, nothing is left over.

The source serves twice. As it stands it is Python over a buffer; `build` compiles the same functions to machine code,
where `data` and `state` are pointers. So it keeps to what both read alike: integers below 2**63, no exceptions, and no
access at or beyond `size`, whatever the bytes are.

    length varint | attributes i8 | timestamp delta varint | offset delta varint
    | key length varint, key | value length varint, value | header count varint, (key, value)*
"""

from collections.abc import MutableSequence, Sequence
from typing import Final, NamedTuple

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
FAULT: Final = KEYLESS + 1 + KEYLESS_ROOM
"""Out, where a whole batch was given: what `walk` returned."""
VIEW_TYPE: Final = FAULT + 1
"""In, where a whole batch is given: the address of the type `memoryview`."""
STATE_SIZE: Final = VIEW_TYPE + 1

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
_MASK: Final = 63
"""The bits of a place that lie in the first byte of its varint."""
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


def behind(length: int, at: int, end: int) -> int:
    """Where a key or value ends whose length, -1 for null, ends at `at`; -1 if it does not before `end`."""
    if at < 0 or length == _NULL:
        return at
    at += length >> 1
    return -1 if length & 1 or at > end else at


def headers(data: Sequence[int], at: int, end: int) -> int:
    """Where the headers of a record end; -1 if they do not before `end`."""
    count, at = varint(data, at, end, _SHORT)
    if at < 0 or count & 1 or count >> 1 > end - at:
        return -1
    for _ in range(count >> 1):
        length, at = varint(data, at, end, _SHORT)
        at = -1 if length == _NULL else behind(length, at, end)
        if at < 0:
            return -1
        length, at = varint(data, at, end, _SHORT)
        at = behind(length, at, end)
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


class Parts(NamedTuple):
    """Where the parts of a record begin, and what they say; `fault` is `SOUND` where all are within the record."""

    fault: int
    start: int
    time_at: int
    offset_at: int
    key_at: int
    value_at: int
    end: int
    time: int
    """The timestamp delta, zigzag-coded."""
    is_keyless: bool
    is_bare: bool
    """Whether it has no headers."""


def faulty(fault: int) -> Parts:
    return Parts(fault, 0, 0, 0, 0, 0, 0, 0, False, False)


def parts(data: Sequence[int], start: int, size: int, index: int) -> Parts:
    """The record that begins at `start`, read field by field."""
    length, at = varint(data, start, size, _SHORT)
    end = at + (length >> 1)
    if at < 0 or length & 1 or end > size or end - at < _SMALLEST:
        return faulty(WRONG_LENGTH)
    if data[at] >= _UNREADABLE:
        return faulty(WRONG_ATTRIBUTES)
    time_at = at + 1
    time, offset_at = varint(data, time_at, end, _LONG)
    if offset_at < 0:
        return faulty(WRONG_TIMESTAMP)
    offset, key_at = varint(data, offset_at, end, _SHORT)
    if key_at < 0 or offset != index << 1:
        return faulty(WRONG_OFFSET)
    key_length, at = varint(data, key_at, end, _SHORT)
    value_at = behind(key_length, at, end)
    if value_at < 0:
        return faulty(WRONG_KEY)
    length, at = varint(data, value_at, end, _SHORT)
    at = behind(length, at, end)
    if at < 0:
        return faulty(WRONG_VALUE)
    is_bare = at < end and data[at] == 0
    at = at + 1 if is_bare else headers(data, at, end)
    if at != end:
        return faulty(WRONG_HEADERS if at < 0 else NOT_FILLED)
    return Parts(SOUND, start, time_at, offset_at, key_at, value_at, end, time, key_length == _NULL, is_bare)


class Likeness(NamedTuple):
    """What the bytes of a record are if it is like an earlier one: the same lengths in the same places, no headers."""

    until: int
    """The place from which on offset deltas have another width; none is like a record with 0."""
    total: int
    mask: int
    """The bits of the first eight bytes that are known: all up to the key's length, but the timestamp's."""
    pattern: int
    width: int
    """Bytes of the offset delta."""
    offset_shift: int
    time_shift: int
    is_long: bool
    """Whether the timestamp delta has two bytes."""
    time: int
    """These bytes, the first one lowest."""
    value_at: int
    value_mask: int
    value_length: int
    is_keyless: bool


_UNLIKE: Final = Likeness(0, 0, 0, 0, 0, 0, 0, False, 0, 0, 0, 0, False)


def likeness(data: Sequence[int], record: Parts, index: int) -> Likeness:
    """How to know a record that is like this one."""
    start, value_at = record.start, record.value_at
    known = record.key_at - start
    if not record.is_bare or known > 7 or record.end - start < 16 or value_at + 2 > record.end:
        return _UNLIKE
    width = record.key_at - record.offset_at
    time_width = record.offset_at - record.time_at
    is_short = data[value_at] < 0x80
    if width > 3 or time_width > 2 or data[record.key_at] >= 0x80 or not (is_short or data[value_at + 1] < 0x80):
        return _UNLIKE
    time_shift = 8 * (record.time_at - start)
    offset_shift = 8 * (record.offset_at - start)
    # Of the attributes, which nobody uses, one bit counts.
    mask = -1 if known == 7 else (1 << 8 * (known + 1)) - 1
    mask &= -1 << offset_shift | (1 << time_shift - 8) - 1 | _UNREADABLE << time_shift - 8
    head = word(data, start)
    pattern = head & mask ^ spread(index << 1, width) << offset_shift
    value_mask = 0xFF if is_short else 0xFFFF
    value_length = (data[value_at] | data[value_at + 1] << 8) & value_mask
    return Likeness(
        1 << 7 * width - 1,
        record.end - start,
        mask,
        pattern,
        width,
        offset_shift,
        time_shift,
        time_width == 2,
        head >> time_shift & (0xFFFF if time_width == 2 else 0xFF),
        value_at - start,
        value_mask,
        value_length,
        record.is_keyless,
    )


class RecordRun(NamedTuple):
    """Records that are like an earlier one: where the next begins, its place, and the timestamp deltas of these."""

    at: int
    position: int
    newest: int
    oldest: int


def run(data: Sequence[int], at: int, index: int, end: int, size: int, like: Likeness) -> RecordRun:
    """The records from `at` on, and before the place `end`, up to the first that is not like the earlier one.

    All but the bytes is known before the inner loop: offset deltas are counted in their varints, and the timestamp is
    looked at where it is another than that of the record before. So a record takes less than 20 instructions. That of
    the earlier record is known, and not among what is returned.
    """
    newest = -_FAR
    oldest = _FAR
    mask, total, value_at, last = like.mask, like.total, like.value_at, like.total - 1
    value_mask, value_length, time_shift = like.value_mask, like.value_length, like.time_shift
    wide = 0x80 if like.is_long else 0
    ends = wide << 8 | 0x80
    high = (wide << 7) - wide
    times = ends | 0x7F | high << 1
    whole = mask | times << time_shift
    step = 2 << like.offset_shift
    time = like.time
    while index < end and at + total <= size:
        until = min(end, (index | _MASK) + 1, index + (size - at) // total)
        expected = like.pattern | spread(index << 1, like.width) << like.offset_shift | time << time_shift
        while index < until:
            head = word(data, at)
            value = at + value_at
            if (data[value] | data[value + 1] << 8) & value_mask != value_length or data[at + last] != 0:
                return RecordRun(at, index, newest, oldest)
            if head & whole != expected:
                found = head >> time_shift & times
                if head & mask != expected & mask or found & ends != wide:
                    return RecordRun(at, index, newest, oldest)
                expected ^= (found ^ time) << time_shift
                time = found
                delta = found & 0x7F | found >> 1 & high
                delta = (delta >> 1) ^ -(delta & 1)
                newest = max(newest, delta)
                oldest = min(oldest, delta)
            at += total
            index += 1
            expected += step
    return RecordRun(at, index, newest, oldest)


def walk(data: Sequence[int], state: MutableSequence[int]) -> int:
    """`SOUND`, or the first fault. `state` holds `SIZE` and `COUNT`, and gets what was learned on the way.

    Compiled code compares records with an earlier one, once two had the same size, as most are alike. The processor
    need not wait for a length to find the next record then, which makes it several times as fast.
    """
    size = state[SIZE]
    count = state[COUNT]
    newest = -_FAR
    oldest = _FAR
    keyless = 0
    at = 0
    total = 0
    index = 0
    like = _UNLIKE
    while index < count:
        if index < like.until:
            alike = run(data, at, index, min(count, like.until), size, like)
            newest = max(newest, alike.newest)
            oldest = min(oldest, alike.oldest)
            if like.is_keyless:
                for place in range(index, min(alike.position, index + KEYLESS_ROOM - keyless)):
                    state[KEYLESS + 1 + keyless + place - index] = place
                keyless += alike.position - index
            at = alike.at
            index = alike.position
            if index == count:
                break
        record = parts(data, at, size, index)
        if record.fault != SOUND:
            return index << 4 | record.fault
        if _COMPARES and record.end - at == total:
            like = likeness(data, record, index)
        total = record.end - at
        at = record.end
        time = (record.time >> 1) ^ -(record.time & 1)
        newest = max(newest, time)
        oldest = min(oldest, time)
        if record.is_keyless:
            if keyless < KEYLESS_ROOM:
                state[KEYLESS + 1 + keyless] = index
            keyless += 1
        index += 1
    if at != size:
        return count << 4 | LEFT_OVER
    state[NEWEST] = newest
    state[OLDEST] = oldest
    state[KEYLESS] = keyless
    return SOUND
