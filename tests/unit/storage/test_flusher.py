"""Group commit: one sync for many requests, none on the loop, and a failure concerns one log only."""

import errno
import uuid
from collections.abc import Callable

import pytest

from headrace.storage.flusher import Flusher
from headrace.storage.log import Log
from headrace.storage.sync import SyncTicket
from tests.support.storage import SMALL, Store, append


class Worker:
    """A thread that runs when the test says so."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[[], None], Callable[[BaseException | None], None]]] = []

    def submit(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        self.work.append((work, done))

    def run(self) -> None:
        work, done = self.work.pop(0)
        work()
        done(None)


class Bench:
    def __init__(self) -> None:
        self.store = Store()
        self.worker = Worker()
        self.flusher = Flusher(self.worker.submit)
        self.done: list[str] = []

    def request(self, log: Log, name: str) -> None:
        self.flusher.request(log, lambda: self.done.append(name))


def test_a_request_is_answered_when_its_log_is_synced() -> None:
    bench = Bench()
    append(bench.store.log)
    bench.request(bench.store.log, "a")
    assert (bench.done, bench.store.log.synced_offset) == ([], 0)
    bench.worker.run()
    assert (bench.done, bench.store.log.synced_offset) == (["a"], 1)
    assert bench.flusher.is_idle


def test_requests_during_a_sync_share_the_next_one() -> None:
    bench = Bench()
    append(bench.store.log)
    bench.request(bench.store.log, "a")
    for name in ("b", "c"):
        append(bench.store.log)
        bench.request(bench.store.log, name)
    assert len(bench.worker.work) == 1
    bench.worker.run()
    assert (bench.done, bench.store.log.synced_offset) == (["a"], 1)
    bench.worker.run()
    assert (bench.done, bench.store.log.synced_offset) == (["a", "b", "c"], 3)
    assert bench.worker.work == []


def test_one_round_syncs_all_logs_that_wait() -> None:
    bench = Bench()
    first = bench.store.log
    second, third = (bench.store.manager.load("other", n, uuid.UUID(int=n), SMALL) for n in range(2))
    append(first)
    bench.request(first, "first")
    for log, name in ((second, "second"), (third, "third")):
        append(log)
        bench.request(log, name)
    bench.worker.run()
    assert len(bench.worker.work) == 1
    bench.worker.run()
    assert bench.done == ["first", "second", "third"]


def test_a_synced_log_is_answered_at_once() -> None:
    bench = Bench()
    append(bench.store.log)
    bench.request(bench.store.log, "a")
    bench.worker.run()
    bench.request(bench.store.log, "b")
    assert bench.done == ["a", "b"]
    assert bench.worker.work == []


def test_a_failed_sync_takes_only_its_own_log_offline() -> None:
    bench = Bench()
    good = bench.store.manager.load("other", 0, uuid.UUID(int=1), SMALL)
    bad = bench.store.log
    append(bad)
    bench.request(bad, "waits")
    bench.worker.run()
    append(bad)
    append(good)
    bench.store.disk.fail(errno.EIO, kind="datasync", path="events-0/0000")
    bench.request(bad, "bad")
    bench.request(good, "good")
    bench.worker.run()
    bench.worker.run()
    assert bench.done == ["waits", "bad", "good"]
    assert bad.offline is not None
    assert bad.synced_offset == 1
    assert (good.offline, good.synced_offset) == (None, 1)
    bench.request(bad, "again")
    assert bench.done[-1] == "again"


def test_a_worker_that_dies_takes_the_whole_round_offline() -> None:
    bench = Bench()
    append(bench.store.log)
    bench.request(bench.store.log, "a")
    _, done = bench.worker.work.pop()
    done(RuntimeError("no threads"))
    assert bench.done == ["a"]
    assert bench.store.log.offline is not None


def test_a_callback_may_ask_for_the_next_sync() -> None:
    bench = Bench()
    log = bench.store.log

    def again() -> None:
        bench.done.append("a")
        append(log)
        bench.request(log, "b")

    append(log)
    bench.flusher.request(log, again)
    bench.worker.run()
    bench.worker.run()
    assert (bench.done, log.synced_offset) == (["a", "b"], 2)


def test_a_log_whose_sync_cannot_be_begun_is_offline_and_the_others_are_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    other = bench.store.manager.load("other", 0, uuid.uuid4(), SMALL)
    append(bench.store.log)
    append(other)
    broken = bench.store.log
    real = Log.begin_sync

    def begin_sync(log: Log) -> SyncTicket | None:
        if log is broken:
            raise RuntimeError("a fault that nobody has foreseen")
        return real(log)

    monkeypatch.setattr(Log, "begin_sync", begin_sync)
    bench.request(broken, "broken")
    assert bench.done == ["broken"]
    assert broken.offline is not None
    bench.request(other, "other")
    bench.worker.run()
    assert bench.done == ["broken", "other"]
    assert (other.synced_offset, bench.flusher.is_idle) == (1, True)


def test_one_who_fails_at_hearing_of_a_sync_keeps_nobody_else_from_it() -> None:
    bench = Bench()
    append(bench.store.log)

    def fail() -> None:
        raise RuntimeError("a fault that nobody has foreseen")

    bench.flusher.request(bench.store.log, fail)
    bench.request(bench.store.log, "a")
    bench.worker.run()
    if bench.worker.work:
        bench.worker.run()
    assert bench.done == ["a"]
    assert bench.flusher.is_idle
