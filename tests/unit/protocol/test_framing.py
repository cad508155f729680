"""Frames come out of the inbox as they went in, however the bytes arrive."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.framing import RESTING_SIZE, WORKING_SIZE, Inbox


def feed(inbox: Inbox, data: bytes, step: int) -> list[bytes]:
    frames = []
    position = 0
    while position < len(data):
        space = inbox.space()
        chunk = data[position : position + min(step, len(space))]
        space[: len(chunk)] = chunk
        inbox.received(len(chunk))
        position += len(chunk)
        while (frame := inbox.next_frame()) is not None:
            frames.append(bytes(frame))
    return frames


def framed(*bodies: bytes) -> bytes:
    return b"".join(pack(">i", len(body)) + body for body in bodies)


def test_frames_come_out_one_byte_at_a_time() -> None:
    bodies = [b"abcdefgh", b"x" * 100, b"y" * 9]
    assert feed(Inbox(1000), framed(*bodies), 1) == bodies


@given(st.lists(st.integers(8, 3 * WORKING_SIZE), max_size=8), st.integers(1, 2 * WORKING_SIZE))
def test_frames_come_out_whole_whatever_the_chunks(sizes: list[int], step: int) -> None:
    step = max(step, sum(sizes) // 500)
    bodies = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    inbox = Inbox(4 * WORKING_SIZE)
    assert feed(inbox, framed(*bodies), step) == bodies
    assert inbox.is_empty


@pytest.mark.parametrize("length", [-1, 0, 1001, 2**31 - 1, -(2**31)])
def test_a_length_that_cannot_be_is_a_violation(length: int) -> None:
    inbox = Inbox(1000)
    with pytest.raises(ProtocolViolation, match="bytes"):
        feed(inbox, pack(">i", length) + b"abcdefgh", 100)


def test_a_length_alone_takes_no_memory() -> None:
    inbox = Inbox(100_000_000)
    feed(inbox, pack(">i", 99_000_000) + b"x" * 1000, 10)
    inbox.space()
    assert inbox.capacity == RESTING_SIZE


def test_a_grown_buffer_is_kept_for_the_next_large_request_and_given_back_at_rest() -> None:
    inbox = Inbox(100_000_000)
    feed(inbox, framed(b"x" * 5_000_000), 100_000)
    assert inbox.capacity >= 5_000_000
    inbox.rest()
    assert inbox.capacity == RESTING_SIZE


def test_a_buffer_that_holds_bytes_is_not_given_back() -> None:
    inbox = Inbox(100_000_000)
    feed(inbox, framed(b"x" * 5_000_000) + b"\0\0", 100_000)
    inbox.rest()
    assert inbox.capacity >= 5_000_000
    assert feed(inbox, b"\0\x08abcdefgh", 3) == [b"abcdefgh"]


def test_what_is_closed_holds_nothing() -> None:
    inbox = Inbox(100_000_000)
    feed(inbox, framed(b"x" * 5_000_000) + pack(">i", 5_000_000) + b"x" * 4_000_000, 100_000)
    inbox.close()
    assert (inbox.capacity, inbox.held, inbox.is_empty) == (RESTING_SIZE, 0, True)


def test_a_stream_of_small_frames_gets_a_larger_buffer() -> None:
    inbox = Inbox(1000)
    frames = [bytes([n % 251]) * 90 for n in range(20_000)]
    assert feed(inbox, framed(*frames), 1 << 20) == frames
    assert inbox.capacity == WORKING_SIZE


def test_a_large_frame_is_not_copied_again_and_again_while_it_comes() -> None:
    inbox, large = Inbox(100_000_000), 40_000_000
    places: dict[int, None] = {}
    inbox.space()[:4] = pack(">i", large)
    inbox.received(4)
    while (frame := inbox.next_frame()) is None:
        space = inbox.space()
        places[id(space.obj)] = None
        assert inbox.capacity <= max(4 * inbox.held, 2 * RESTING_SIZE), "it takes no more than what comes"
        inbox.received(min(len(space), large + 4 - inbox.held))
    assert len(frame) == large
    assert len(places) <= 9, "while it is small it doubles; then it has one place"
    assert inbox.capacity == large + 4


def test_where_nothing_can_be_mapped_a_large_frame_comes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refused)
    bodies = [b"x" * 5_000_000, b"y" * 9_000_000]
    assert feed(Inbox(100_000_000), framed(*bodies), 100_000) == bodies


def test_a_large_frame_is_received_in_small_pieces_where_its_place_is_new() -> None:
    """What is new is cleared by the system, which takes longer than to receive into what has been used before."""
    inbox = Inbox(100_000_000)
    for longest in (32 << 10, 128 << 10):
        rest, pieces = framed(b"x" * 8_000_000), []
        while rest:
            space = inbox.space()
            count = min(len(space), len(rest))
            inbox.received(count)
            space[:count], rest = rest[:count], rest[count:]
            pieces.append(len(space) if inbox.capacity > WORKING_SIZE else 0)
        assert max(pieces) == longest
        assert inbox.next_frame() is not None
