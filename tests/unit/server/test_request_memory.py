"""Memory for requests is bounded, and whoever sends its request gets it served in the end."""

import asyncio
import gc
import mmap
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.errors import ErrorCode
from headrace.protocol.framing import RESTING_SIZE, WORKING_SIZE, Inbox
from headrace.server.request_memory import (
    LEAST_RATE,
    LOOK_SECONDS,
    PATIENCE_SECONDS,
    UNMAPPED_AT_ONCE,
    RequestMemory,
    Unmapping,
)
from headrace.testing import Broker
from headrace.testing.loop import run_virtual
from tests.support.wire import TIMEOUT_SECONDS, Wire, batch_of, produce_request

MEBIBYTE = 1 << 20


class Client:
    """A connection whose client sends frames of a size, a piece at a time, and then the next."""

    def __init__(self, memory: RequestMemory, size: int, piece: int) -> None:
        self.memory = memory
        self.peer = "c"
        self.requests = 0
        self.inbox = Inbox(1 << 30, memory.share_of(self))
        self.frame = pack(">i", size) + bytes(size)
        self.piece = piece
        self.sent = 0
        self.is_waiting = self.is_closed = False

    @property
    def held_bytes(self) -> int:
        return self.inbox.held

    @property
    def is_incomplete(self) -> bool:
        return not self.inbox.is_empty

    def give_back(self) -> None:
        self.inbox.rest()

    def read_on(self) -> None:
        self.is_waiting = False

    def close(self) -> None:
        self.is_closed = True
        self.memory.forget(self)

    def read(self) -> None:
        """What has come is read, once."""
        if self.is_waiting or self.is_closed:
            return
        space = self.inbox.space()
        if not space:
            self.is_waiting = True
            self.memory.wait(self, self.inbox.memory_needed)
            return
        count = min(len(space), self.piece, len(self.frame) - self.sent)
        space[:count] = self.frame[self.sent : self.sent + count]
        self.inbox.received(count)
        self.sent += count
        if self.inbox.next_frame() is not None:
            self.requests += 1
            self.sent = 0


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 3_000_000), min_size=1, max_size=12),
    piece=st.integers(70_000, 2_000_000),
    limit=st.integers(1, 4_000_000),
)
def test_all_requests_are_served_and_memory_stays_bounded(sizes: list[int], piece: int, limit: int) -> None:
    async def main() -> None:
        memory = RequestMemory(asyncio.get_running_loop(), lambda: limit)
        clients = [Client(memory, size, piece) for size in sizes]
        for _ in range(20_000):
            for client in clients:
                if client.requests < 2:
                    client.read()
            assert memory.used == sum(client.inbox.capacity - RESTING_SIZE for client in clients)
            assert memory.used <= limit + max(max(sizes) + 4, WORKING_SIZE)
            if all(client.requests >= 2 for client in clients):
                return
            await asyncio.sleep(LOOK_SECONDS / 2)
        raise AssertionError(f"{[client.requests for client in clients]} were served")

    run_virtual(main)


def test_who_holds_memory_and_drips_is_closed_and_the_others_go_on() -> None:
    async def main() -> None:
        memory = RequestMemory(asyncio.get_running_loop(), lambda: 2 * MEBIBYTE)
        slow = [Client(memory, MEBIBYTE, MEBIBYTE * 3 // 4) for _ in range(4)]
        for client in slow:
            while client.sent < MEBIBYTE * 3 // 4 and not client.is_waiting:
                client.read()
            client.piece = 1
        goods = [Client(memory, MEBIBYTE, 100_000) for _ in range(3)]
        began = asyncio.get_running_loop().time()
        while any(good.requests < 5 for good in goods):
            assert asyncio.get_running_loop().time() - began < len(slow) * 2 * PATIENCE_SECONDS
            for client in [*slow, *goods]:
                client.read()
            await asyncio.sleep(LOOK_SECONDS)
        assert any(client.is_closed for client in slow)
        assert not any(good.is_closed for good in goods)

    run_virtual(main)


def test_the_place_of_a_large_request_is_given_back_a_piece_at_a_time() -> None:
    async def main() -> None:
        unmapping = Unmapping(asyncio.get_running_loop())
        for pieces in (3, 4):
            unmapping.add(mmap.mmap(-1, pieces * UNMAPPED_AT_ONCE))
        for turn in range(9):
            assert unmapping.pending >= (7 - turn) * UNMAPPED_AT_ONCE
            await asyncio.sleep(0)
        assert not unmapping.pending

    run_virtual(main)


def test_a_place_that_is_still_read_is_given_back_later() -> None:
    async def main() -> None:
        unmapping = Unmapping(asyncio.get_running_loop())
        read, other = (mmap.mmap(-1, 2 * UNMAPPED_AT_ONCE) for _ in range(2))
        view = memoryview(read)
        for place in (read, other):
            unmapping.add(place)
        await asyncio.sleep(9 * LOOK_SECONDS)
        assert other.closed
        assert view.nbytes == unmapping.pending == 2 * UNMAPPED_AT_ONCE
        view.release()
        await asyncio.sleep(9 * LOOK_SECONDS)
        assert read.closed

    run_virtual(main)


def test_a_request_that_never_ends_gives_its_place_back_in_turns() -> None:
    async def main() -> None:
        memory = RequestMemory(asyncio.get_running_loop(), lambda: 100 * MEBIBYTE)
        client = Client(memory, 20 * MEBIBYTE, MEBIBYTE)
        while client.sent < 10 * MEBIBYTE:
            client.read()
        client.close()
        client.inbox.close()
        assert (memory.used, memory.unmapping.pending) == (0, 20 * MEBIBYTE + 4)
        await asyncio.sleep(LOOK_SECONDS)
        assert not memory.unmapping.pending

    run_virtual(main)


def test_what_is_closed_leaves_no_work_to_the_garbage_collector() -> None:
    async def main() -> None:
        client = Client(RequestMemory(asyncio.get_running_loop(), lambda: MEBIBYTE), 10, 10)
        client.close()
        client.inbox.close()
        gone = weakref.ref(client)
        gc.disable()
        try:
            del client
            assert gone() is None
        finally:
            gc.enable()

    run_virtual(main)


def test_who_sends_steadily_is_not_closed() -> None:
    async def main() -> None:
        memory = RequestMemory(asyncio.get_running_loop(), lambda: MEBIBYTE)
        clients = [Client(memory, MEBIBYTE, int(LEAST_RATE * LOOK_SECONDS * 2)) for _ in range(3)]
        while any(client.requests < 1 for client in clients):
            for client in clients:
                if client.requests < 1:
                    client.read()
            await asyncio.sleep(LOOK_SECONDS)
        assert not any(client.is_closed for client in clients)

    run_virtual(main)


def test_without_a_limit_nobody_waits() -> None:
    async def main() -> None:
        memory = RequestMemory(asyncio.get_running_loop(), lambda: -1)
        client = Client(memory, 100 * MEBIBYTE, 10 * MEBIBYTE)
        while client.requests < 1:
            client.read()
        assert memory.waits == 0

    run_virtual(main)


LIMIT = 8 * MEBIBYTE


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"queued.max.request.bytes": LIMIT, "message.max.bytes": 4 * MEBIBYTE}, topics=["t"]) as running:
        yield running


def produce_body(value: bytes) -> Any:
    return produce_request("t", batch_of(value))


def test_large_requests_in_part_leave_room_for_small_ones_and_are_served_when_they_are_whole(broker: Broker) -> None:
    whole = _frame(0, 9, produce_body(bytes(3 * MEBIBYTE)))
    wires = [Wire(broker.bootstrap) for _ in range(12)]
    try:
        begun = [_sent_at_once(wire, whole[:-1000]) for wire in wires]
        with Wire(broker.bootstrap) as good:
            for _ in range(3):
                answer = good.ask(0, 9, produce_body(bytes(200_000)))
                assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
        with ThreadPoolExecutor(len(wires)) as pool:
            answers = list(pool.map(lambda wire, sent: _end(wire, whole[sent:]), wires, begun))
        assert {answer.responses[0].partition_responses[0].error_code for answer in answers} == {ErrorCode.none}
    finally:
        for wire in wires:
            wire.socket.close()


def _sent_at_once(wire: Wire, data: bytes) -> int:
    """How much of it the system takes."""
    sent = 0
    wire.socket.setblocking(False)
    while sent < len(data):
        try:
            sent += wire.socket.send(data[sent:])
        except BlockingIOError:
            break
    wire.socket.settimeout(TIMEOUT_SECONDS)
    return sent


def _end(wire: Wire, rest: bytes) -> Any:
    wire.send_bytes(rest)
    return wire.receive(0, 9)


def _frame(api_key: int, version: int, entity: Any) -> bytes:
    sent: list[bytes] = []

    class Recording(Wire):
        def __init__(self) -> None:
            self._correlation = 0

        def send_bytes(self, data: bytes) -> None:
            sent.append(data)

    Recording().send(api_key, version, entity)
    return sent[0]
