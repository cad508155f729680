"""Virtual time: nothing waits, processes can be stopped between any two steps, a seed decides who is first."""

import asyncio
import time

import pytest

from headrace.testing.loop import Process, Stuck, VirtualClock, VirtualLoop, run_virtual


def loop() -> VirtualLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    return running


def test_a_day_takes_no_time() -> None:
    async def main() -> float:
        clock = VirtualClock(asyncio.get_running_loop())
        before = clock.now_ms()
        async with asyncio.TaskGroup() as group:
            for minutes in range(600):
                group.create_task(asyncio.sleep(minutes * 60))
        return clock.now_ms() - before

    began = time.perf_counter()
    assert run_virtual(main) == 599 * 60_000
    assert time.perf_counter() - began < 10


def test_alarms_ring_in_their_order() -> None:
    async def main() -> list[int]:
        order: list[int] = []
        for number in (5, 3, 9, 1, 3):
            loop().call_later(number, order.append, number)
        await asyncio.sleep(10)
        return order

    assert run_virtual(main) == [1, 3, 3, 5, 9]


def test_a_run_that_can_never_end_is_told_so() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="main"):
        run_virtual(main)


def test_a_run_that_never_ends_is_ended() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - nothing ever happens
            await asyncio.sleep(1)

    with pytest.raises(TimeoutError):
        run_virtual(main, longest=100)


def test_tasks_left_behind_are_told() -> None:
    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(1), name="forgotten")
        await asyncio.sleep(0)
        assert not task.done()

    with pytest.raises(AssertionError, match="forgotten"):
        run_virtual(main)


def test_there_are_no_threads() -> None:
    async def main() -> None:
        await asyncio.to_thread(lambda: None)

    with pytest.raises(RuntimeError, match="no threads"):
        run_virtual(main)


async def _tick(said: list[str], name: str) -> None:
    try:
        while True:
            said.append(name)
            await asyncio.sleep(1)
    finally:
        said.append(f"{name} cleans up")


def test_a_killed_process_does_nothing_any_more_not_even_clean_up() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        process = Process("p")
        task = loop().start(process, _tick(said, "p"))
        await asyncio.sleep(2.5)
        loop().kill(process)
        await asyncio.sleep(10)
        assert not task.done()
        return list(said)

    assert run_virtual(main) == ["p"] * 3


def test_a_killed_process_is_not_woken_by_others() -> None:
    async def main() -> list[str]:
        said: list[str] = []
        news: asyncio.Future[None] = loop().create_future()

        async def wait() -> None:
            await news
            said.append("heard")

        process = Process("p")
        loop().start(process, wait())
        await asyncio.sleep(0)
        loop().kill(process)
        news.set_result(None)
        await asyncio.sleep(10)
        return list(said)

    assert run_virtual(main) == []


def test_a_process_is_all_that_its_first_task_starts() -> None:
    async def main() -> list[str]:
        said: list[str] = []

        async def start() -> None:
            loop().call_later(1, said.append, "alarm")
            asyncio.create_task(_tick(said, "child"))  # noqa: RUF006 - the process keeps it
            await asyncio.sleep(0)

        process = Process("p")
        await loop().start(process, start())
        loop().kill(process)
        await asyncio.sleep(10)
        return list(said)

    assert run_virtual(main) == ["child"]


def test_a_paused_process_goes_on_where_it_was() -> None:
    async def main() -> tuple[int, int]:
        said: list[str] = []
        process = Process("p")
        task = loop().start(process, _tick(said, "p"))
        await asyncio.sleep(1.5)
        loop().pause(process)
        await asyncio.sleep(100)
        paused = len(said)
        loop().resume(process)
        await asyncio.sleep(1.5)
        resumed = len(said)
        task.cancel()
        await asyncio.wait([task])
        return paused, resumed

    assert run_virtual(main) == (2, 4)


def _turns(seed: int | None) -> list[str]:
    async def main() -> list[str]:
        said: list[str] = []

        async def count(name: str) -> None:
            for number in range(5):
                said.append(f"{name}{number}")
                await asyncio.sleep(0)

        await asyncio.gather(*(loop().start(Process(name), count(name)) for name in "abc"))
        return said

    return run_virtual(main, seed)


def test_a_seed_decides_the_order_of_processes_and_nothing_within_one() -> None:
    orders = {tuple(_turns(seed)) for seed in range(20)}
    assert len(orders) > 10
    assert _turns(3) == _turns(3)
    assert _turns(None) == [f"{name}{number}" for number in range(5) for name in "abc"]
    for order in orders:
        for name in "abc":
            assert [turn for turn in order if turn[0] == name] == [f"{name}{number}" for number in range(5)]
