"""The faults of the simulated store, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headrace.cluster.store import AlreadyExists, Check, Create, Put, SessionState, StoreError, Uncertain
from headrace.testing.loop import START, run_virtual
from headrace.testing.store import NEVER, SimulatedEnsemble, SimulatedStore

SUSPENDED, LOST, CONNECTED = SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED


class Scene:
    """Two brokers and a record of what the first is told, and when."""

    def __init__(self, latency: float = 0.01) -> None:
        self.ensemble = SimulatedEnsemble(session_timeout=2.0, latency=latency, reconnect=0.1)
        self.one = self.ensemble.session()
        self.other = self.ensemble.session()
        self.told: list[tuple[float, SessionState]] = []
        self.one.on_session(lambda session: self.told.append((self.now(), session)))

    def now(self) -> float:
        return round(asyncio.get_running_loop().time() - START, 3)

    def holds(self, key: str) -> bool:
        return self.ensemble.tree.get(key) is not None


def play(script: Callable[[Scene], Awaitable[None]], latency: float = 0.01) -> None:
    async def run() -> None:
        await script(Scene(latency))

    run_virtual(run)


def test_a_request_takes_its_way_there_and_back() -> None:
    async def script(scene: Scene) -> None:
        await scene.one.commit([Create("/a", b"")])
        assert scene.now() == 0.01
        await asyncio.gather(*(scene.one.get("/a") for _ in range(100)))
        assert scene.now() == 0.02

    play(script)


def test_a_broker_cut_off_for_short_keeps_its_session() -> None:
    async def script(scene: Scene) -> None:
        await scene.one.commit([Create("/me", b"", ephemeral=True)])
        scene.ensemble.cut(scene.one)
        await asyncio.sleep(1.9)
        scene.ensemble.heal(scene.one)
        await asyncio.sleep(5)
        assert scene.holds("/me")
        assert scene.told == [(0.01, SUSPENDED), (2.01, CONNECTED)]

    play(script)


def test_a_broker_cut_off_for_long_loses_what_is_ephemeral_and_hears_of_it_when_healed() -> None:
    async def script(scene: Scene) -> None:
        await scene.one.commit([Create("/me", b"", ephemeral=True)])
        _, event = await scene.other.watch("/me")
        start = scene.now()
        scene.ensemble.cut(scene.one)
        await event.wait()
        assert scene.now() == start + 2.0 + 0.005
        assert not scene.holds("/me")
        await asyncio.sleep(10)
        assert scene.one.session is SUSPENDED
        scene.ensemble.heal(scene.one)
        assert await scene.one.get("/me") is None
        await scene.one.commit([Create("/me", b"again", ephemeral=True)])
        assert [session for _, session in scene.told] == [SUSPENDED, LOST, CONNECTED]

    play(script)


def test_a_broker_that_was_stopped_hears_of_it_all_at_once() -> None:
    async def script(scene: Scene) -> None:
        await scene.one.commit([Create("/me", b"", ephemeral=True)])
        scene.ensemble.cut(scene.one, unnoticed=NEVER)
        commit = asyncio.create_task(scene.one.commit([Create("/late", b"")]))
        await asyncio.sleep(10)
        assert scene.one.session is CONNECTED
        assert not scene.holds("/me")
        scene.ensemble.heal(scene.one)
        with pytest.raises(Uncertain):
            await commit
        await asyncio.sleep(1)
        assert [session for _, session in scene.told] == [SUSPENDED, LOST, CONNECTED]
        assert not scene.holds("/late")

    play(script)


def test_a_short_cut_that_nobody_noticed_delays_and_no_more() -> None:
    async def script(scene: Scene) -> None:
        _, event = await scene.one.watch("/a")
        scene.ensemble.cut(scene.one, unnoticed=1.5)
        commit = asyncio.create_task(scene.one.commit([Create("/late", b"")]))
        await scene.other.commit([Create("/a", b"")])
        await asyncio.sleep(1)
        assert not commit.done()
        assert not event.is_set()
        scene.ensemble.heal(scene.one)
        await commit
        assert event.is_set()
        await asyncio.sleep(5)
        assert scene.told == []

    play(script)


def test_a_cut_is_noticed_when_it_was_said_to_be() -> None:
    async def script(scene: Scene) -> None:
        scene.ensemble.cut(scene.one, unnoticed=1.5)
        with pytest.raises(Uncertain):
            await scene.one.commit([Create("/late", b"")])
        assert scene.now() == 1.5
        await asyncio.sleep(0)
        assert scene.told == [(1.5, SUSPENDED)]

    play(script)


def test_reads_wait_for_the_servers_but_not_for_ever() -> None:
    async def script(scene: Scene) -> None:
        scene.ensemble.cut(scene.one)
        read = asyncio.create_task(scene.one.get("/a"))
        await asyncio.sleep(1)
        scene.ensemble.heal(scene.one)
        assert await read is None
        scene.ensemble.cut(scene.one)
        with pytest.raises(StoreError, match="answers"):
            await scene.one.get("/a")

    play(script)


def test_a_commit_of_a_session_that_ended_meanwhile_is_not_sent() -> None:
    async def script(scene: Scene) -> None:
        scene.ensemble.cut(scene.one)
        await asyncio.sleep(0)
        commit = asyncio.create_task(scene.one.commit([Create("/me", b"", ephemeral=True)]))
        await asyncio.sleep(3)
        scene.ensemble.heal(scene.one)
        with pytest.raises(StoreError, match="ended before the commit was sent"):
            await commit
        assert not scene.holds("/me")

    play(script)


@pytest.mark.parametrize("done", [True, False])
def test_a_lost_answer_leaves_the_caller_uncertain_until_it_reads(done: bool) -> None:
    async def script(scene: Scene) -> None:
        scene.ensemble.lose_answer(scene.one, done=done)
        with pytest.raises(Uncertain):
            await scene.one.commit([Create("/a", b"")])
        assert (await scene.one.get("/a") is not None) == done
        assert [session for _, session in scene.told] == [SUSPENDED, CONNECTED]
        if done:
            with pytest.raises(AlreadyExists):
                await scene.one.commit([Create("/a", b"")])
        else:
            await scene.one.commit([Create("/a", b"")])

    play(script)


def test_a_delayed_commit_loses_against_a_quicker_one() -> None:
    async def script(scene: Scene) -> None:
        await scene.one.commit([Create("/epoch", b"1")])
        scene.ensemble.delay_commits(scene.one, 5.0)
        slow = asyncio.create_task(scene.one.commit([Check("/epoch", 0), Create("/by-the-old", b"")]))
        await asyncio.sleep(1)
        await scene.other.commit([Put("/epoch", b"2", 0)])
        with pytest.raises(Exception, match="/epoch"):
            await slow
        assert scene.now() >= 5.0
        assert not scene.holds("/by-the-old")

    play(script)


def test_a_commit_that_is_given_up_happens_all_the_same() -> None:
    async def script(scene: Scene) -> None:
        scene.ensemble.delay_commits(scene.one, 1.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await scene.one.commit([Create("/a", b"")])
        assert not scene.holds("/a")
        await asyncio.sleep(1)
        assert scene.holds("/a")

    play(script)


def test_a_killed_broker_hears_nothing_and_its_session_ends() -> None:
    async def script(scene: Scene) -> None:
        await scene.one.commit([Create("/me", b"", ephemeral=True)])
        scene.ensemble.kill(scene.one)
        await asyncio.sleep(1.9)
        assert scene.holds("/me")
        await asyncio.sleep(0.2)
        assert not scene.holds("/me")
        assert scene.told == []

    play(script)


def test_no_session_ends_while_there_is_no_quorum() -> None:
    async def script(scene: Scene) -> None:
        await scene.one.commit([Create("/me", b"", ephemeral=True)])
        await scene.other.commit([Create("/dead", b"", ephemeral=True)])
        scene.ensemble.kill(scene.other)
        scene.ensemble.lose_quorum()
        await asyncio.sleep(60)
        assert scene.holds("/dead")
        scene.ensemble.regain_quorum()
        await scene.one.get("/me")
        assert scene.holds("/me")
        assert [session for _, session in scene.told] == [SUSPENDED, CONNECTED]
        await asyncio.sleep(2.1)
        assert not scene.holds("/dead")
        assert scene.holds("/me")

    play(script)


@pytest.mark.parametrize("latency", [0.0, 0.01])
def test_requests_of_one_session_are_served_in_order(latency: float) -> None:
    async def script(scene: Scene) -> None:
        await scene.one.commit([Create("/a", b"")])
        puts = [scene.one.commit([Put("/a", b"%d" % n, n)]) for n in range(50)]
        reads = asyncio.create_task(scene.one.get("/a"))
        await asyncio.gather(*puts)
        found = await reads
        assert found is not None
        assert scene.ensemble.tree.get("/a") == found._replace(value=b"49", version=50)

    play(script, latency)


def test_the_same_calls_give_the_same_run() -> None:
    async def script() -> list[object]:
        scene = Scene()
        await scene.one.commit([Create("/n", b"0")])
        history: list[object] = []

        async def count(store: SimulatedStore, name: str) -> None:
            for _ in range(30):
                found = await store.get("/n")
                assert found is not None
                try:
                    await store.commit([Put("/n", b"%d" % (int(found.value) + 1), found.version)])
                    history.append((scene.now(), name, found.version))
                except Exception as error:
                    history.append((scene.now(), name, repr(error)))

        async def trouble() -> None:
            for seconds in (0.05, 0.3, 1.0):
                await asyncio.sleep(seconds)
                scene.ensemble.lose_answer(scene.one, done=True)
                scene.ensemble.drop(scene.other)

        await asyncio.gather(count(scene.one, "one"), count(scene.other, "other"), trouble())
        return [*history, *scene.told]

    first = run_virtual(script)
    assert first == run_virtual(script)
    assert any("Uncertain" in str(entry) for entry in first)
