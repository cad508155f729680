"""The journal of decisions: who took it over last decides, by the order of the log and whatever brokers forgot."""

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.fenced import Entry
from headrace.client.columnar.prepared import describe_transactions
from headrace.spark.sink import journal as sink_journal
from headrace.spark.sink.commit import PREFIX, CommitDecision, CommitError, DecisionState, Prepared
from headrace.spark.sink.journal import JournalState, TopicJournal, require_journal
from headrace.testing import Broker
from tests.support.process import wait_for

pytestmark = pytest.mark.slow

TOPIC = "decisions"
FORGETFUL = {
    "transactional.id.expiration.ms": "100",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "50",
    "producer.id.expiration.ms": "100",
}
"""What a week of idling does to a cluster with the usual settings."""

_queries = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(FORGETFUL) as broker:
        yield broker


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Cluster({"bootstrap.servers": broker.bootstrap}) as cluster:
        require_journal(cluster, TOPIC)
        yield cluster


@pytest.fixture
def query() -> str:
    return f"q{next(_queries)}"


def decision(batch: int, run: str, state: DecisionState = DecisionState.COMMITTED) -> CommitDecision:
    transactions = (Prepared(run, 0, "0-0", 7, 1),) if state is DecisionState.COMMITTING else ()
    return CommitDecision(batch=batch, run=run, state=state, transactions=transactions)


def until_forgotten(cluster: Cluster, query: str) -> None:
    name = f"{PREFIX}-{query}"
    wait_for("the cluster forgets the journal's id", lambda: describe_transactions(cluster, [name])[name] is None)


def test_a_driver_whose_fence_has_expired_still_decides_nothing(cluster: Cluster, query: str) -> None:
    old, new = (TopicJournal(cluster, TOPIC, query) for _ in range(2))
    old.take_over("r1")
    until_forgotten(cluster, query)
    new.take_over("r2")
    decided = decision(7, "r2")
    new.record(decided)
    with pytest.raises(CommitError, match="started a second time"):
        old.record(decision(7, "r1", DecisionState.COMMITTING))
    assert new.look() == ("r2", decided)
    assert TopicJournal(cluster, TOPIC, query).look() == ("r2", decided)
    new.record(decision(8, "r2"))


def test_a_driver_that_has_been_idle_for_longer_than_anything_is_remembered_goes_on(
    cluster: Cluster, query: str
) -> None:
    journal = TopicJournal(cluster, TOPIC, query)
    for batch in range(3):
        journal.take_over("r1")
        journal.record(decision(batch, "r1"))
        until_forgotten(cluster, query)
    assert journal.look() == ("r1", decision(2, "r1"))


def test_what_keeps_a_journal_alive_takes_it_from_nobody(cluster: Cluster, query: str) -> None:
    old, new = (TopicJournal(cluster, TOPIC, query) for _ in range(2))
    old.take_over("r1")
    old.keep_alive()
    old.record(decision(0, "r1"))
    new.take_over("r2")
    with pytest.raises(CommitError, match="started a second time"):
        old.keep_alive()
    new.record(decision(1, "r2"))


# Without a cluster, and without any fence.


NOWHERE = Cluster({"bootstrap.servers": "127.0.0.1:1"})


class ForgetfulLog:
    """A log that refuses nobody."""

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._position = 0
        self.is_ours = False

    def take_over(self) -> None:
        self.is_ours = True

    def append(self, key: bytes, value: bytes | None) -> list[Entry]:
        self._entries.append(Entry(self._entries[-1].offset + 1 if self._entries else 0, key, value))
        return self.read()

    def read(self) -> list[Entry]:
        new = [entry for entry in self._entries if entry.offset >= self._position]
        self._position = new[-1].offset + 1 if new else self._position
        return new


def journal(entries: list[Entry]) -> TopicJournal:
    made = TopicJournal(NOWHERE, TOPIC, "q")
    made._log = ForgetfulLog(entries)  # type: ignore[assignment]
    return made


def compacted(entries: list[Entry], below: int) -> list[Entry]:
    """What compaction of the log below an offset leaves of it."""
    latest = {entry.key: entry.offset for entry in entries if entry.offset < below}
    return [entry for entry in entries if entry.offset >= below or latest[entry.key] == entry.offset]


def test_a_run_that_lost_its_journal_does_not_take_it_back_in_a_new_process() -> None:
    entries: list[Entry] = []
    journal(entries).take_over("r1")
    journal(entries).take_over("r1")
    journal(entries).take_over("r2")
    journal(entries).take_over("r3")
    for run in ("r1", "r2"):
        with pytest.raises(CommitError, match="started a second time"):
            journal(entries).take_over(run)
    assert journal(entries).look() == ("r3", None)


def first_version(batch: int) -> list[Entry]:
    """A journal of a package that knew no claims."""
    decided = {"version": 1, "batch": batch, "run": "r1", "state": "committing", "transactions": [[0, 0, 7, 1]]}
    return [Entry(0, b"q.owner", b'{"run":"r1"}'), Entry(1, b"q", json.dumps(decided).encode())]


def test_a_decision_of_an_earlier_version_is_the_last_word_until_there_is_a_claim() -> None:
    entries = first_version(3)
    assert journal(entries).look() == ("r1", decision(3, "r1", DecisionState.COMMITTING))
    assert journal(entries).take_over("r2") == decision(3, "r1", DecisionState.COMMITTING)
    entries.append(first_version(4)[1]._replace(offset=entries[-1].offset + 1))
    assert journal(entries).look() == ("r2", decision(3, "r1", DecisionState.COMMITTING))


@pytest.mark.parametrize("text", [b"", b"[]", b'{"version":1}', b'{"version":3}', b"\xff"])
def test_what_is_not_of_the_journal_is_refused(text: bytes) -> None:
    with pytest.raises(CommitError):
        JournalState("q").take(Entry(0, b"q.r1", text))


def play(seed: int) -> None:
    """Drivers that take over from each other and never hear that their time is over, and compaction at any point."""
    chance = random.Random(seed)
    entries: list[Entry] = []
    drivers: list[tuple[str, TopicJournal]] = []
    expected: tuple[Any, Any] = (None, None)
    for step in range(60):
        action = chance.choice(["start", "record", "record", "record", "compact"])
        if action == "start":
            drivers.append((f"r{step}", journal(entries)))
            assert drivers[-1][1].take_over(f"r{step}") == expected[1]
            expected = (f"r{step}", expected[1])
        elif action == "record" and drivers:
            run, driver = chance.choice(drivers[-3:])
            try:
                driver.record(decision(step, run))
            except CommitError:
                assert run != expected[0]
            else:
                assert run == expected[0]
                expected = (run, decision(step, run))
        elif action == "compact" and entries:
            entries[:] = compacted(entries, chance.randint(0, entries[-1].offset + 1))
        assert journal(entries).look() == expected


def play_all(seeds: int) -> None:
    for seed in range(seeds):
        play(seed)


def test_the_journal_has_one_writer_by_the_order_of_the_log_alone() -> None:
    play_all(300)


def test_a_journal_that_ignores_claims_has_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_journal, "counts", lambda *_: True)
    with pytest.raises(AssertionError):
        play_all(200)


def test_the_journal_does_not_grow_with_the_runs_of_a_query() -> None:
    entries: list[Entry] = []
    for run in range(50):
        one = journal(entries)
        one.take_over(f"r{run}")
        one.record(decision(run, f"r{run}"))
    left = [entry for entry in compacted(entries, len(entries)) if entry.value is not None]
    assert len(left) == 1
    assert len(left[0].value or b"") < 500
