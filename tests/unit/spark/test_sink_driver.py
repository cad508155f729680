"""The driver carries its decisions out against a cluster, and another driver goes on where it stopped."""

from collections.abc import Iterator

import pytest

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import UnknownTopic
from headrace.client.errors import ClientError
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.spark.sink import driver as sink_driver
from headrace.spark.sink.commit import (
    PREFIX,
    CommitDecision,
    CommitError,
    DecisionState,
    Part,
    Prepared,
    Report,
    suffix_of,
    transactional_id,
)
from headrace.spark.sink.driver import SinkDriver
from headrace.spark.sink.journal import JobJournal, TopicJournal, require_journal
from headrace.testing import Broker
from tests.support.columnar.scripted_cluster import FAST, TOPIC, ScriptedCluster, ScriptedLog
from tests.support.columnar.scripted_coordinator import ABORTED, COMMITTED, EMPTY, OPEN, ScriptedCoordinator

pytestmark = pytest.mark.slow

QUERY = "q"
REFUSED = ErrorCode.transactional_id_authorization_failed


@pytest.fixture
def script() -> Iterator[ScriptedCluster]:
    with ScriptedCluster({0: ScriptedLog()}) as script:
        yield script


@pytest.fixture
def coordinator(script: ScriptedCluster) -> ScriptedCoordinator:
    return ScriptedCoordinator(script)


@pytest.fixture
def cluster(script: ScriptedCluster) -> Iterator[Cluster]:
    with Cluster(script.settings) as made:
        yield made


def journal(cluster: Cluster) -> TopicJournal:
    return TopicJournal(cluster, TOPIC, QUERY)


def driver(cluster: Cluster) -> SinkDriver:
    """The driver of a new process."""
    return SinkDriver(cluster, QUERY, journal(cluster))


def written(coordinator: ScriptedCoordinator, run: str, batch: int, tasks: int = 2, attempt: int = 0) -> list[Report]:
    """What tasks report that have written their rows."""
    reports = []
    for task in range(tasks):
        suffix = suffix_of(f"{task}.{attempt}", batch)
        prepared = coordinator.open(transactional_id(QUERY, run, suffix))
        one = Prepared(run, task, suffix, prepared.producer_id, prepared.epoch)
        reports.append(Report(QUERY, run, batch, (Part(one),), was_retried=attempt > 0))
    return reports


def states(coordinator: ScriptedCoordinator, run: str) -> set[str]:
    """The states of the transactions of a run's tasks."""
    prefix = transactional_id(QUERY, run, "")
    return {entry.state for name, entry in coordinator.entries.items() if name.startswith(prefix)}


def test_batches_become_visible_one_after_the_other(cluster: Cluster, coordinator: ScriptedCoordinator) -> None:
    one = driver(cluster)
    for batch in range(3):
        one.commit(batch, written(coordinator, "r1", batch))
        assert states(coordinator, "r1") == {COMMITTED}
    assert journal(cluster).look() == ("r1", CommitDecision(batch=2, run="r1", state=DecisionState.COMMITTED))


def test_batches_of_a_run_may_be_committed_by_processes_that_take_turns(
    cluster: Cluster, coordinator: ScriptedCoordinator
) -> None:
    """As when Spark has several that wait for work, because it has several queries."""
    processes = [driver(cluster) for _ in range(2)]
    for batch in range(6):
        processes[batch % 2].commit(batch, written(coordinator, "r1", batch))
        assert states(coordinator, "r1") == {COMMITTED}
    assert journal(cluster).look() == ("r1", CommitDecision(batch=5, run="r1", state=DecisionState.COMMITTED))


def test_a_driver_that_died_after_its_decision_is_followed_by_one_that_commits(
    cluster: Cluster, coordinator: ScriptedCoordinator
) -> None:
    reports = written(coordinator, "r1", 0)
    coordinator.errors = {ApiKey.END_TXN: [REFUSED]}
    with pytest.raises(ClientError):
        driver(cluster).commit(0, reports)
    driver(cluster).abort(reports)
    assert states(coordinator, "r1") == {OPEN, COMMITTED}
    driver(cluster).commit(0, [Report(QUERY, "r2", 0, found_decided=True)])
    assert states(coordinator, "r1") == {COMMITTED}


def test_a_batch_that_was_not_decided_is_aborted_and_written_by_the_next_run(
    cluster: Cluster, coordinator: ScriptedCoordinator
) -> None:
    written(coordinator, "r1", 0)
    driver(cluster).commit(0, written(coordinator, "r2", 0))
    assert states(coordinator, "r1") == {EMPTY}
    assert states(coordinator, "r2") == {COMMITTED}


def test_only_the_attempts_that_reported_are_committed(cluster: Cluster, coordinator: ScriptedCoordinator) -> None:
    written(coordinator, "r1", 0, attempt=0)
    driver(cluster).commit(0, written(coordinator, "r1", 0, attempt=1))
    by_attempt = {name[-3]: entry.state for name, entry in coordinator.entries.items() if "-r1-" in name}
    assert by_attempt == {"0": EMPTY, "1": COMMITTED}


def test_what_an_attempt_opens_after_its_batch_is_committed_does_not_hold_readers(
    cluster: Cluster, coordinator: ScriptedCoordinator
) -> None:
    one = driver(cluster)
    one.commit(4, written(coordinator, "r1", 4))
    (late,) = written(coordinator, "r1", 4, tasks=1, attempt=9)
    following = written(coordinator, "r1", 5)
    one.look_after()
    assert coordinator.entries[transactional_id(QUERY, "r1", late.parts[0].prepared.suffix)].state == ABORTED
    one.commit(5, following)
    assert states(coordinator, "r1") == {ABORTED, COMMITTED}


def test_a_driver_that_was_paused_ends_nothing_of_a_batch_that_another_process_has_begun(
    cluster: Cluster, coordinator: ScriptedCoordinator
) -> None:
    paused = driver(cluster)
    paused.commit(4, written(coordinator, "r1", 4))
    driver(cluster).commit(5, written(coordinator, "r1", 5))
    written(coordinator, "r1", 6)
    with pytest.raises(CommitError, match="started a second time"):
        paused.look_after()
    assert OPEN in states(coordinator, "r1")


def test_only_the_very_transaction_that_was_seen_is_ended(cluster: Cluster, coordinator: ScriptedCoordinator) -> None:
    one = driver(cluster)
    one.commit(4, written(coordinator, "r1", 4))
    seen = written(coordinator, "r1", 4, tasks=1, attempt=9)
    claim = one._journal.claim

    def pause() -> None:
        claim()
        for report in seen:
            coordinator.open(transactional_id(QUERY, "r1", report.parts[0].prepared.suffix))

    one._journal.claim = pause  # type: ignore[method-assign]
    one.look_after()
    assert states(coordinator, "r1") == {COMMITTED, OPEN}


def test_a_query_between_batches_stays_known_to_the_cluster(
    cluster: Cluster, coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = driver(cluster)
    one.commit(0, written(coordinator, "r1", 0))
    one.look_after()
    before = coordinator.entries[f"{PREFIX}-{QUERY}"].epoch
    monkeypatch.setattr(sink_driver, "KEEP_ALIVE_SECONDS", 0.0)
    one.look_after()
    assert coordinator.entries[f"{PREFIX}-{QUERY}"].epoch == before + 1
    one.commit(1, written(coordinator, "r1", 1))


def test_a_failed_job_leaves_nothing_open(cluster: Cluster, coordinator: ScriptedCoordinator) -> None:
    one = driver(cluster)
    one.commit(0, written(coordinator, "r1", 0))
    reports = written(coordinator, "r1", 1)
    one.abort(reports[:1])
    assert states(coordinator, "r1") == {COMMITTED, ABORTED, EMPTY}


def test_a_driver_whose_query_runs_elsewhere_decides_nothing(
    cluster: Cluster, coordinator: ScriptedCoordinator
) -> None:
    old = driver(cluster)
    old.commit(0, written(coordinator, "r1", 0))
    driver(cluster).commit(1, written(coordinator, "r2", 1))
    with pytest.raises(CommitError, match="started a second time"):
        old.commit(1, written(coordinator, "r1", 1))
    assert states(coordinator, "r1") == {COMMITTED, OPEN}


def test_a_transaction_that_timed_out_fails_the_batch_whole(cluster: Cluster, coordinator: ScriptedCoordinator) -> None:
    reports = written(coordinator, "r1", 0)
    coordinator.time_out(transactional_id(QUERY, "r1", "1.0-0"))
    with pytest.raises(CommitError, match="tasks 1 were aborted"):
        driver(cluster).commit(0, reports)
    assert states(coordinator, "r1") == {ABORTED}


def test_a_job_needs_no_topic_for_its_decision(cluster: Cluster, coordinator: ScriptedCoordinator) -> None:
    job = SinkDriver(cluster, QUERY, JobJournal("job"))
    job.commit(0, written(coordinator, "job", 0))
    assert states(coordinator, "job") == {COMMITTED}
    written(coordinator, "job", 0)
    SinkDriver(cluster, QUERY, JobJournal("job")).abort([Report(QUERY, "job", 0)])
    assert states(coordinator, "job") == {EMPTY}


def test_a_job_whose_commit_was_cut_off_is_finished_by_its_abort(
    cluster: Cluster, coordinator: ScriptedCoordinator
) -> None:
    reports = written(coordinator, "job", 0)
    coordinator.errors = {ApiKey.END_TXN: [REFUSED]}
    with pytest.raises(CommitError, match=r"is decided, and could not be committed: .* txnAppId and txnVersion"):
        SinkDriver(cluster, QUERY, JobJournal("job")).commit(0, reports)
    assert states(coordinator, "job") == {OPEN, COMMITTED}
    SinkDriver(cluster, QUERY, JobJournal("job")).abort(reports)
    assert states(coordinator, "job") == {COMMITTED}


def test_a_committed_batch_stays_so_when_nobody_tells_of_leftovers(
    cluster: Cluster, coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    written(coordinator, "r1", 0, attempt=0)
    one = driver(cluster)
    reports = written(coordinator, "r1", 0, attempt=1)
    coordinator.errors = {ApiKey.INIT_PRODUCER_ID: [ErrorCode.none, REFUSED]}
    one.commit(0, reports)
    assert states(coordinator, "r1") == {OPEN, COMMITTED}
    assert [line for line in caplog.messages if "readers may wait for them" in line]
    one.commit(1, written(coordinator, "r1", 1, attempt=2))
    assert states(coordinator, "r1") == {EMPTY, COMMITTED}


def test_what_is_decided_is_tried_for_as_long_as_its_transactions_may_live(
    script: ScriptedCluster, coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    impatient = {**script.settings, "default.api.timeout.ms": "20", "transaction.timeout.ms": "60000"}
    with Cluster(impatient) as cluster:
        reports = written(coordinator, "job", 0)
        coordinator.errors = {ApiKey.END_TXN: [ErrorCode.not_coordinator] * 40}
        SinkDriver(cluster, QUERY, JobJournal("job")).commit(0, reports)
    assert states(coordinator, "job") == {COMMITTED}
    assert [line for line in caplog.messages if "will be tried until transaction.timeout.ms is over" in line]


def test_what_is_decided_is_not_tried_for_longer_than_its_transactions_live(
    script: ScriptedCluster, coordinator: ScriptedCoordinator
) -> None:
    short = {**script.settings, "default.api.timeout.ms": "20", "transaction.timeout.ms": "50"}
    with Cluster(short) as cluster:
        reports = written(coordinator, "job", 0)
        coordinator.errors = {ApiKey.END_TXN: [ErrorCode.not_coordinator] * 10_000}
        with pytest.raises(CommitError, match=r"tried for 0.05 s.* the cluster aborts the rest"):
            SinkDriver(cluster, QUERY, JobJournal("job")).commit(0, reports)


def test_queries_do_not_see_each_others_decisions(cluster: Cluster, coordinator: ScriptedCoordinator) -> None:
    driver(cluster).commit(0, written(coordinator, "r1", 0))
    assert TopicJournal(cluster, TOPIC, "another").look() == (None, None)


def test_a_record_that_is_no_decision_says_where_it_is(cluster: Cluster, coordinator: ScriptedCoordinator) -> None:
    one = journal(cluster)
    one.take_over("r1")
    with pytest.raises(CommitError, match=rf"topic '{TOPIC}', key {QUERY}\.r2"):
        one._append(f"{QUERY}.r2".encode(), b"nonsense")


def test_the_topic_of_decisions_is_made_once() -> None:
    with Broker() as broker, Cluster({"bootstrap.servers": broker.bootstrap, **FAST}) as cluster:
        with pytest.raises(UnknownTopic):
            cluster.describe(["decisions"])
        for _ in range(2):
            require_journal(cluster, "decisions")
        assert cluster.partitions(["decisions"]) == {"decisions": 1}


def test_a_topic_of_decisions_that_cannot_be_made_says_what_to_do(cluster: Cluster, script: ScriptedCluster) -> None:
    topic = {"name": "x", "topic_id": None, "error_code": ErrorCode.cluster_authorization_failed.value, "configs": None}
    refusal = {"throttle_time": 0, "topics": [topic | {"error_message": "not allowed"}]}
    script.before = lambda _node, asked: refusal if asked.api_key == ApiKey.CREATE_TOPICS else False
    with pytest.raises(ClientError, match=r"not allowed\. Make it with one partition and cleanup\.policy=compact"):
        require_journal(cluster, "decisions")
