"""Whether the records of a batch are what its header promises: every record, or the frame of a compressed stream.

A batch that matches its CRC can still hold anything, as its producer made both. What is wrong is refused when it is
produced: a consumer that meets it in the log cannot go on.
"""

import threading
from array import array
from collections.abc import Sequence
from ctypes import addressof, c_char
from typing import Final

from headrace.kernels.native import Bind, Check, Function
from headrace.kernels.records import COUNT, FAULT, FAULTS, SIZE, SOUND, STATE_SIZE, walk

from . import compression
from .batch import HEADER_SIZE, SMALLEST_RECORD, BatchHeader
from .errors import CodedError, ErrorCode

Learned = Sequence[int]
"""What `kernels.records.walk` found out, by its constants; valid until the next batch is read on the same thread."""

_from_buffer: Final = c_char.from_buffer


class _Walker(threading.local):
    """The state of a walk, one for each thread."""

    def __init__(self) -> None:
        state = array("q", bytes(8 * STATE_SIZE))
        self.state = state, state.buffer_info()[0]
        """The state and its address."""
        self.check: Check | None = None if _bind is None else _bind(state)


_compiled: Function | None = None
_bind: Bind | None = None
_walker = _Walker()


def use_compiled(function: Function | None, bind: Bind | None = None) -> None:
    """Read records with machine code from now on, whole batches with what `bind` makes; with None in Python."""
    global _compiled, _bind, _walker
    _compiled = function
    _bind = bind
    _walker = _Walker()


def check_plain_records(batch: memoryview, header: BatchHeader) -> Learned:
    """What the records of an uncompressed batch say whose header is sound.

    `CodedError` (INVALID_RECORD) unless they are as many as the header says, and sound ones.
    """
    check = _walker.check
    if check is not None:
        state = check(batch)
        if state[FAULT] == SOUND:
            return state
    return check_records(batch, HEADER_SIZE, header.record_count)


def check_records(data: memoryview, start: int, count: int) -> Learned:
    """What uncompressed records, from `start` to the end of writable data, say.

    `CodedError` (INVALID_RECORD) unless they are `count` sound ones.
    """
    size = len(data) - start
    if size < count * SMALLEST_RECORD:
        raise _invalid(f"{size} bytes cannot hold {count} records")
    state, address = _walker.state
    state[SIZE] = size
    state[COUNT] = count
    compiled = _compiled
    fault = walk(data[start:], state) if compiled is None else compiled(addressof(_from_buffer(data, start)), address)
    if fault != SOUND:
        raise _invalid(f"record {fault >> 4} of the batch is malformed: {FAULTS[fault & 0xF]}")
    return state


class SlowBatch(Exception):
    """Checking the batch would take too long here: a thread should do it."""


def check_packed_records(batch: memoryview, header: BatchHeader, limit: int, at_once: int | None = None) -> Learned:
    """The same for a compressed batch, which may have up to `limit` bytes when it is decompressed.

    `SlowBatch` where it has more than `at_once`.
    """
    size = _announced_size(batch, header)
    if size is not None and size > limit:
        raise _invalid(f"the batch decompresses to {size} bytes; the most is {limit}")
    _check_count(header, limit)
    most = limit if at_once is None else min(at_once, limit)
    if size is not None and size > most:
        raise SlowBatch
    try:
        body = compression.unpack(header.codec, batch[HEADER_SIZE:], most, guess=size or 0)
    except compression.TooLarge as error:
        if most < limit:
            raise SlowBatch from None
        raise _invalid(error.message) from error
    except CodedError as error:
        raise _invalid(error.message) from error
    if not compression.is_one_frame(header.codec, batch[HEADER_SIZE:], len(body)):
        raise _invalid("the records are compressed in several parts, of which some clients read the first alone")
    return check_records(body, 0, header.record_count)


def check_frame(batch: memoryview, header: BatchHeader, limit: int, at_once: int | None = None) -> None:
    """Hold a compressed batch to the frame of its stream: its magic, and a size that can hold the records.

    A frame that announces fewer bytes than the records need may be one of several: then all is read, up to `limit`. How
    much it announces does not matter, as nothing is decompressed: the Java client fills a batch by what it expects to
    be left after compression, so that one of a megabyte may hold a hundred.
    """
    size = _announced_size(batch, header)
    if size is None:
        _check_count(header, limit)
    elif size < header.record_count * SMALLEST_RECORD:
        check_packed_records(batch, header, limit, at_once)


def _announced_size(batch: memoryview, header: BatchHeader) -> int | None:
    """The size that the frame announces, if it does."""
    try:
        return compression.announced_size(header.codec, batch[HEADER_SIZE:])
    except CodedError as error:
        raise _invalid(error.message) from error


def _check_count(header: BatchHeader, limit: int) -> None:
    count = header.record_count
    if count * SMALLEST_RECORD > limit:
        raise _invalid(f"{limit} bytes, the most that a batch may decompress to, cannot hold {count} records")


def _invalid(reason: str) -> CodedError:
    return CodedError(ErrorCode.invalid_record, reason)
