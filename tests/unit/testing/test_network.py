"""A network that does what networks do, when a test says so."""

import asyncio
from struct import pack, unpack

import pytest

from headrace.net.network import Link, LinkClosed
from headrace.server.connection import Connection, Parts
from headrace.server.connection_counts import Caps, ConnectionCounts
from headrace.server.listener import Listener
from headrace.testing.loop import run_virtual
from headrace.testing.network import SimulatedHost, SimulatedNetwork

PORT = 9092
ECHO, OTHER = 7, 8


class Echo:
    """A program that answers each request with its body, and remembers what it was asked."""

    def __init__(self, host: SimulatedHost) -> None:
        self.heard: list[bytes] = []
        self.host = host
        self.listener = Listener(
            asyncio.get_running_loop(),
            host,
            frame_limit=1 << 20,
            counts=ConnectionCounts(asyncio.get_running_loop(), lambda: Caps(100, 100)),
            idle_seconds=600,
            on_read_failure=lambda _: None,
        )

    async def start(self) -> None:
        self.listener.bind(self.host.name, PORT)
        self.listener.start(self._serve)

    def _serve(self, connection: Connection, frame: memoryview) -> Parts:
        _, _, correlation_id = unpack(">hhi", frame[:8])
        self.heard.append(bytes(frame[8:]))
        return [pack(">ii", 4 + len(frame) - 8, correlation_id), bytes(frame[8:])]


class Setting:
    """Two hosts: one that asks, one that answers."""

    def __init__(self, seed: int = 0) -> None:
        self.network = SimulatedNetwork(seed)
        self.near = self.network.host("near")
        self.far = self.network.host("far")
        self.echo = Echo(self.far)
        self.link: Link
        self._asked = 0

    async def __aenter__(self) -> "Setting":
        await self.far.run(self.echo.start())
        self.link = await self.near.connect("far", PORT, 5)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.link.close()
        self.echo.listener.close()

    async def ask(self, body: bytes, api_key: int = ECHO) -> bytes:
        self._asked += 1
        answer = await self.link.ask([pack(">hhi", api_key, 0, self._asked), body])
        return bytes(answer[4:])


def test_what_is_asked_is_answered_in_order() -> None:
    async def main() -> list[bytes]:
        async with Setting() as setting:
            bodies = [b"%d" % number * 50_000 for number in range(10)]
            assert await asyncio.gather(*map(setting.ask, bodies)) == bodies
            return setting.echo.heard

    assert len(run_virtual(main)) == 10


def test_a_cut_link_is_silent_and_a_healed_one_delivers_what_was_sent() -> None:
    async def main() -> None:
        async with Setting() as setting:
            setting.network.cut("near", "far")
            asked = asyncio.create_task(setting.ask(b"hello"))
            with pytest.raises(TimeoutError):
                await setting.near.connect("far", PORT, 5)
            await asyncio.sleep(1000)
            assert not asked.done()
            assert not setting.link.is_closed
            assert setting.echo.heard == []
            setting.network.heal("near", "far")
            assert await asked == b"hello"

    run_virtual(main)


def test_a_link_cut_one_way_carries_requests_and_no_answers() -> None:
    async def main() -> None:
        async with Setting() as setting:
            setting.network.cut("far", "near", both_ways=False)
            asked = asyncio.create_task(setting.ask(b"hello"))
            await asyncio.sleep(10)
            assert setting.echo.heard == [b"hello"]
            assert not asked.done()
            with pytest.raises(TimeoutError):
                await setting.near.connect("far", PORT, 5)
            setting.network.heal()
            assert await asked == b"hello"

    run_virtual(main)


def test_a_connection_given_up_during_a_cut_delivers_nothing_later_but_its_end() -> None:
    async def main() -> None:
        async with Setting() as setting:
            assert await setting.ask(b"first") == b"first"
            setting.network.isolate("near")
            setting.link.close()
            await asyncio.sleep(10)
            assert len(setting.echo.listener.connections) == 1
            setting.network.heal("near")
            await asyncio.sleep(1)
            assert not setting.echo.listener.connections

    run_virtual(main)


def test_a_delay_is_added_one_way() -> None:
    async def main() -> float:
        async with Setting() as setting:
            setting.network.delay("near", "far", 2.0)
            began = asyncio.get_running_loop().time()
            await setting.ask(b"hello")
            return asyncio.get_running_loop().time() - began

    assert 2.0 < run_virtual(main) < 2.01


def test_requests_of_an_api_are_held_until_released() -> None:
    async def main() -> None:
        async with Setting() as setting:
            hold = setting.network.hold(OTHER, asker="near")
            first = asyncio.create_task(setting.ask(b"first"))
            held = asyncio.create_task(setting.ask(b"held", OTHER))
            after = asyncio.create_task(setting.ask(b"after"))
            await hold.caught()
            await asyncio.sleep(100)
            assert await first == b"first"
            assert setting.echo.heard == [b"first"]
            hold.release()
            assert await held == b"held"
            assert await after == b"after"
            assert await setting.ask(b"free", OTHER) == b"free"
            assert hold.count == 1

    run_virtual(main)


def test_a_lost_answer_breaks_the_connection_after_the_request_was_carried_out() -> None:
    async def main() -> None:
        async with Setting() as setting:
            setting.network.lose_answer(OTHER)
            assert await setting.ask(b"first") == b"first"
            with pytest.raises(LinkClosed):
                await setting.ask(b"lost", OTHER)
            assert setting.echo.heard == [b"first", b"lost"]
            setting.link = await setting.near.connect("far", PORT, 5)
            assert await setting.ask(b"again", OTHER) == b"again"

    run_virtual(main)


def test_a_killed_program_is_noticed_and_its_place_is_free() -> None:
    async def main() -> None:
        async with Setting() as setting:
            setting.far.kill()
            with pytest.raises(LinkClosed):
                await setting.ask(b"hello")
            with pytest.raises(ConnectionRefusedError):
                await setting.near.connect("far", PORT, 5)
            setting.echo = Echo(setting.far)
            await setting.far.run(setting.echo.start())
            setting.link = await setting.near.connect("far", PORT, 5)
            assert await setting.ask(b"hello") == b"hello"

    run_virtual(main)


def test_a_machine_without_power_is_silent_and_knows_nothing_when_it_is_back() -> None:
    async def main() -> None:
        async with Setting() as setting:
            setting.far.lose_power()
            asked = asyncio.create_task(setting.ask(b"hello"))
            with pytest.raises(TimeoutError):
                await setting.near.connect("far", PORT, 5)
            assert not asked.done()
            setting.far.restore_power()
            with pytest.raises(LinkClosed):
                await asked
            assert setting.echo.heard == []

    run_virtual(main)


def test_a_paused_program_answers_once_it_is_resumed() -> None:
    async def main() -> None:
        async with Setting() as setting:
            setting.far.pause()
            asked = asyncio.create_task(setting.ask(b"hello"))
            await setting.near.connect("far", PORT, 5)
            await asyncio.sleep(100)
            assert not asked.done()
            setting.far.resume()
            assert await asked == b"hello"

    run_virtual(main)


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[object]:
        async def main() -> list[object]:
            async with Setting(seed) as setting:
                setting.network.delay("far", "near", 0.001)
                await asyncio.gather(*(setting.ask(b"%d" % number) for number in range(50)))
                return list(setting.network.passed)

        return run_virtual(main, seed)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert len(run(3)) == 100


def test_a_real_network_is_not_mixed_up_with_this_one() -> None:
    async def main() -> None:
        SimulatedNetwork()

    with pytest.raises(AssertionError, match="virtual"):
        asyncio.run(main())
