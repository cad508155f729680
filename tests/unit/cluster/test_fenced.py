"""Commits of a controller that may have been deposed."""

import asyncio
from collections.abc import Sequence

import pytest

from headrace.cluster.commits import CommitTooLarge
from headrace.cluster.fenced import Deposed, FencedStore
from headrace.cluster.store import AlreadyExists, Conflict, Create, Operation, Put, Uncertain
from headrace.testing.loop import run_virtual
from headrace.testing.store import SimulatedEnsemble, SimulatedStore

EPOCH = "/controller_epoch"


class Counting:
    """A store that counts commits."""

    def __init__(self, store: SimulatedStore) -> None:
        self.commits: list[Sequence[Operation]] = []
        self._store = store
        self.get, self.list, self.close = store.get, store.list, store.close

    async def commit(self, operations: Sequence[Operation]) -> None:
        self.commits.append(operations)
        await self._store.commit(operations)


async def ruling(latency: float = 0.01) -> tuple[SimulatedEnsemble, SimulatedStore, Counting, FencedStore]:
    ensemble = SimulatedEnsemble(latency=latency)
    store = ensemble.session()
    await store.commit([Create(EPOCH, b"1")])
    counting = Counting(store)
    return ensemble, store, counting, FencedStore(counting, EPOCH, 0)


def test_what_is_asked_for_at_the_same_time_is_committed_together() -> None:
    async def main() -> None:
        ensemble, _, counting, fenced = await ruling()
        await asyncio.gather(*(fenced.commit([Create(f"/k{number}", b"")]) for number in range(50)))
        assert len(counting.commits) == 1
        assert all(ensemble.tree.get(f"/k{number}") is not None for number in range(50))
        await fenced.close()

    run_virtual(main)


def test_one_that_conflicts_fails_alone() -> None:
    async def main() -> None:
        ensemble, store, _, fenced = await ruling()
        await store.commit([Create("/k3", b"")])
        results = await asyncio.gather(
            *(fenced.commit([Create(f"/k{number}", b"")]) for number in range(6)), return_exceptions=True
        )
        assert [number for number, result in enumerate(results) if isinstance(result, AlreadyExists)] == [3]
        assert all(ensemble.tree.get(f"/k{number}") is not None for number in range(6))
        assert not fenced.ended.is_set()
        await fenced.close()

    run_virtual(main)


def test_nothing_happens_after_another_controller_was_elected() -> None:
    async def main() -> None:
        ensemble, store, _, fenced = await ruling()
        await store.commit([Put(EPOCH, b"2", 0)])
        results = await asyncio.gather(
            *(fenced.commit([Create(f"/k{number}", b"")]) for number in range(6)), return_exceptions=True
        )
        assert all(isinstance(result, Deposed) for result in results)
        assert fenced.ended.is_set()
        assert ensemble.tree.get("/k0") is None
        await fenced.close()

    run_virtual(main)


@pytest.mark.parametrize("done", [True, False])
def test_a_commit_whose_outcome_is_unknown_fences_the_controller(done: bool) -> None:
    async def main() -> None:
        ensemble, store, _, fenced = await ruling()
        ensemble.lose_answer(store, done=done)
        with pytest.raises(Uncertain):
            await fenced.commit([Create("/k", b"")])
        assert fenced.ended.is_set()
        await fenced.close()

    run_virtual(main)


def test_nobody_waits_on_when_it_is_closed() -> None:
    async def main() -> None:
        ensemble, store, _, fenced = await ruling()
        ensemble.delay_commits(store, 60)
        waiting = []
        for number in range(30):
            waiting.append(asyncio.ensure_future(fenced.commit([Create(f"/k{number}", b"")])))
            await asyncio.sleep(0.001)
        await fenced.close()
        await asyncio.wait(waiting, timeout=0.1)
        failures = [task.exception() for task in waiting]
        assert all(isinstance(failure, Uncertain | Deposed) for failure in failures)
        assert isinstance(failures[0], Uncertain), "it was sent"
        assert isinstance(failures[-1], Deposed), "it was not"
        with pytest.raises(Deposed):
            await fenced.commit([Create("/late", b"")])

    run_virtual(main)


def test_a_conflict_is_not_taken_for_the_fencing_of_the_controller() -> None:
    async def main() -> None:
        _, _, _, fenced = await ruling()
        with pytest.raises(Conflict):
            await fenced.commit([Put("/missing", b"", 0)])
        assert not fenced.ended.is_set()
        await fenced.close()

    run_virtual(main)


def test_a_commit_that_no_store_takes_does_not_fence_the_controller() -> None:
    async def main() -> None:
        _, _, _, fenced = await ruling()
        with pytest.raises(CommitTooLarge):
            await fenced.commit([Create(f"/k{number}", bytes(500_000)) for number in range(3)])
        assert not fenced.ended.is_set()
        await fenced.commit([Create("/k", b"")])
        await fenced.close()

    run_virtual(main)
