"""Watching and stopping, with queries that only pretend."""

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.client.columnar.model import TopicPartition
from headrace.spark.errors import Unreachable
from headrace.spark.pipeline.document import DocumentPosition
from headrace.spark.pipeline.failures import PipelineFailed
from headrace.spark.pipeline.model import Restart, Sink, ToConsole
from headrace.spark.pipeline.progress import SinkProgress, moment
from headrace.spark.pipeline.queries import SinkGraph
from headrace.spark.pipeline.reach import Outage
from headrace.spark.pipeline.running import Running, StreamingQuery, delay_before, stop_all, watch


class Reported:
    def __init__(self, batch: int, rows: int, time: str = "", **more: Any) -> None:
        self.batchId = batch
        self.json = json.dumps({"batchId": batch, "numInputRows": rows, "timestamp": time or moment(batch), **more})


class FakeQuery:
    def __init__(self) -> None:
        self.active = True
        self.busy = False
        self.reports: list[Reported] = []
        self.error: Exception | None = None
        self.stops = 0

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self.active

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": self.busy}

    @property
    def lastProgress(self) -> Reported | None:  # noqa: N802
        return self.reports[-1] if self.reports else None

    @property
    def recentProgress(self) -> Sequence[Reported]:  # noqa: N802
        return self.reports

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.stops += 1
        self.active = False


def graph(*names: str) -> SinkGraph:
    return SinkGraph(
        tuple(
            Sink(name=name, position=DocumentPosition("p.yaml", 1), table="t", output=ToConsole())
            for name in names or ("one",)
        )
    )


def never() -> StreamingQuery:
    raise AssertionError("nothing is to be started again")


def running(query: FakeQuery, name: str = "one", again: Callable[[], StreamingQuery] = never, **more: Any) -> Running:
    return Running(graph(name), query, again, clock=lambda: 0.0, **more)


TOO_SLOW = "org.apache.spark.SparkException: Python worker failed to connect back."
AWAY = "headrace.spark.errors.Unreachable: no broker answers at b:1 (tried for 60 s)"
AT_ONCE = Restart(delay=0.0)


def failed_with(message: str) -> FakeQuery:
    query = FakeQuery()
    query.active, query.error = False, RuntimeError(message)
    return query


def ended() -> FakeQuery:
    query = FakeQuery()
    query.active = False
    return query


@pytest.mark.parametrize("message", [TOO_SLOW, AWAY])
def test_a_query_that_failed_for_want_of_time_or_of_brokers_starts_again(message: str) -> None:
    later = iter([failed_with(message), failed_with(message), failed_with(message), failed_with(message), ended()])
    one = running(failed_with(message), again=lambda: next(later), restart=AT_ONCE)
    watch([one], threading.Event(), ignore, poll=0.0)
    assert (one.sinks[0].state, one.sinks[0].restarts) == ("stopped", 5)


def test_a_bound_on_restarts_is_kept() -> None:
    starts: list[FakeQuery] = []

    def again() -> FakeQuery:
        starts.append(failed_with(AWAY))
        return starts[-1]

    one = running(failed_with(AWAY), again=again, restart=Restart(delay=0.0, attempts=3))
    with pytest.raises(PipelineFailed, match=r"^sink 'one' failed: .*no broker answers.*\(started again 3 times\)$"):
        watch([one], threading.Event(), ignore, poll=0.0)
    assert len(starts) == 3


def test_a_batch_makes_the_bound_start_anew() -> None:
    one = running(failed_with(AWAY), restart=Restart(delay=0.0, attempts=1))
    one.look()
    assert one.failed == 1
    query = failed_with(AWAY)
    query.reports = [Reported(4, 1)]
    one.again = lambda: query
    one.start_if_due(None)
    one.look()
    assert (one.failed, one.due) == (1, 0.0)


def test_any_other_failure_is_final_unless_the_file_says_otherwise() -> None:
    with pytest.raises(PipelineFailed, match="boom"):
        watch([running(failed_with("boom"), again=ended)], threading.Event(), ignore, poll=0.0)
    one = running(failed_with("boom"), again=ended, restart=Restart(delay=0.0, on="any"))
    watch([one], threading.Event(), ignore, poll=0.0)
    assert one.sinks[0].state == "stopped"


def test_a_query_that_cannot_be_started_again_is_tried_later() -> None:
    calls = iter([PipelineFailed("p.yaml:1: sink 'one': no broker answers"), None])

    def again() -> FakeQuery:
        refusal = next(calls)
        if refusal is not None:
            raise refusal from Unreachable("no broker answers")
        return ended()

    one = running(failed_with(AWAY), again=again, restart=AT_ONCE)
    watch([one], threading.Event(), ignore, poll=0.0)
    assert one.sinks[0].state == "stopped"


def test_no_query_starts_again_while_no_broker_answers() -> None:
    one = running(failed_with(AWAY), restart=AT_ONCE)
    one.look(OUTAGE)
    one.start_if_due(OUTAGE)
    assert one.due is not None
    assert not one.is_over
    assert one.sinks[0].state == "restarting"


def test_a_query_that_fails_between_two_questions_is_judged_at_the_next_look() -> None:
    query = FakeQuery()
    one = running(query, again=ended, restart=AT_ONCE)

    def fail(_sinks: Sequence[SinkProgress]) -> None:
        query.active, query.error = False, RuntimeError(AWAY)

    watch([one], threading.Event(), fail, poll=0.0)
    assert (one.sinks[0].state, one.sinks[0].restarts) == ("stopped", 1)


def test_a_query_that_was_started_again_does_not_run_before_it_reports() -> None:
    query = FakeQuery()
    query.reports = [Reported(3, 5)]
    one = running(query, again=FakeQuery, restart=AT_ONCE)
    one.look()
    query.active, query.error = False, RuntimeError(AWAY)
    one.look()
    one.start_if_due(None)
    one.look(OUTAGE)
    one.look()
    assert one.sinks[0].state == "starting"


def test_the_delay_grows_up_to_its_bound() -> None:
    restart, failure = Restart(delay=1.0, max_delay=10.0), RuntimeError(AWAY)
    assert [delay_before(restart, failure, failed) for failed in range(1, 7)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert delay_before(Restart(), failure, 10**6) == 60.0
    killed = Exception("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)")
    assert delay_before(Restart(), killed, 1) == 1.0
    assert delay_before(Restart(attempts=0), failure, 1) is None


OUTAGE = Outage("no broker answers at b:1", since=0.0)


def test_a_query_that_waits_for_a_broker_does_not_claim_to_run() -> None:
    query = FakeQuery()
    query.reports = [Reported(3, 5)]
    one = running(query)
    one.look()
    assert one.sinks[0].state == "running"
    one.look(OUTAGE)
    sink = one.sinks[0]
    assert (sink.state, sink.lag, sink.problem) == ("unreachable", None, "no broker answers at b:1")
    assert sink.since == "1970-01-01T00:00:00.000Z"
    assert sink.last_progress == "1970-01-01T00:00:03.000Z"
    one.look()
    assert (one.sinks[0].state, one.sinks[0].problem) == ("running", None)


def test_lag_is_what_is_there_now_and_not_when_the_batch_began() -> None:
    query = FakeQuery()
    offsets = {"orders": {"0": 5, "1": 7}}
    query.reports = [Reported(0, 12, sources=[{"endOffset": offsets, "latestOffset": offsets}])]
    one = running(query)
    one.look()
    assert one.sinks[0].lag == 0
    one.measure({TopicPartition("orders", 0): 25})
    assert one.sinks[0].lag == 0, "not all ends are known"
    one.measure({TopicPartition("orders", 0): 25, TopicPartition("orders", 1): 8, TopicPartition("x", 0): 3})
    assert one.sinks[0].lag == 21
    one.look(OUTAGE)
    one.measure({TopicPartition("orders", 0): 25, TopicPartition("orders", 1): 8})
    assert one.sinks[0].lag is None


def test_a_stop_while_a_query_waits_to_start_again_is_no_failure() -> None:
    one = running(failed_with(AWAY), restart=Restart(delay=60.0))
    stop = threading.Event()
    watch([one], stop, lambda _sinks: stop.set(), poll=0.0)
    stop_all([one], grace=0.0)
    assert [sink.state for sink in one.ended()] == ["stopped"]


def ignore(_progress: Sequence[SinkProgress]) -> None:
    return None


def test_every_batch_is_counted_once_however_often_one_looks() -> None:
    query = FakeQuery()
    one = running(query)
    one.look()
    query.reports = [Reported(0, 5)]
    one.look()
    one.look()
    query.reports += [Reported(1, 7), Reported(2, 9)]
    one.look()
    assert (one.sinks[0].rows_in, one.sinks[0].batch) == (21, 2)


def test_batches_that_end_before_the_first_look_are_counted() -> None:
    query = FakeQuery()
    one = running(query)
    query.reports = [Reported(0, 4), Reported(1, 4), Reported(2, 2)]
    one.look()
    assert (one.sinks[0].batch, one.sinks[0].rows_in) == (2, 10)


def test_a_report_of_an_idle_query_has_the_number_of_the_batch_to_come() -> None:
    query = FakeQuery()
    one = running(query)
    query.reports = [Reported(0, 5)]
    one.look()
    query.reports += [Reported(1, 0, moment(11))]
    one.look()
    query.reports += [Reported(1, 4, moment(12))]
    one.look()
    one.look()
    assert one.sinks[0].rows_in == 9


def test_watching_ends_when_every_query_has_ended() -> None:
    query = FakeQuery()
    query.active = False
    one = running(query)
    seen: list[str] = []
    watch([one], threading.Event(), lambda sinks: seen.extend(sink.state for sink in sinks))
    assert seen == ["stopped"]


def test_watching_ends_when_a_stop_is_asked_for() -> None:
    stop = threading.Event()
    stop.set()
    watch([running(FakeQuery())], stop, ignore)


def test_a_failed_query_ends_the_watch_with_its_cause() -> None:
    query = FakeQuery()
    query.active, query.error = False, ValueError("disk full")
    failing, healthy = running(query, "archive"), running(FakeQuery())
    with pytest.raises(PipelineFailed, match=r"^sink 'archive' failed: ValueError: disk full$"):
        watch([healthy, failing], threading.Event(), ignore)
    assert failing.sinks[0].state == "failed"


def test_an_idle_query_is_stopped_at_once_and_a_busy_one_after_its_batch() -> None:
    idle, busy = FakeQuery(), FakeQuery()
    busy.busy = True
    busy.reports = [Reported(4, 1)]
    looks = iter(range(100))

    def clock() -> float:
        moment = next(looks)
        if moment == 3:
            assert (idle.stops, busy.stops) == (1, 0)
            busy.reports.append(Reported(5, 1))
        return 0.0

    stop_all([running(idle), running(busy)], grace=1.0, clock=clock)
    assert (idle.stops, busy.stops) == (1, 1)


def test_a_batch_that_takes_too_long_is_cut_off() -> None:
    busy = FakeQuery()
    busy.busy = True
    one = running(busy)
    stop_all([one], grace=0.0)
    assert busy.stops == 1
    assert [sink.state for sink in one.ended()] == ["stopped"]


class FakeLease:
    def __init__(self, *outages: Outage | None, is_lost: bool = False) -> None:
        self._outages = list(outages)
        self._is_lost = is_lost

    @property
    def outage(self) -> Outage | None:
        return self._outages.pop(0) if self._outages else None

    def require(self) -> None:
        if self._is_lost:
            raise PipelineFailed("another runner has taken over")

    def explain(self) -> None:
        self._is_lost = self._is_lost or self.is_lost_when_asked
        self.require()

    is_lost_when_asked = False


def test_queries_rest_while_nobody_confirms_the_lease_and_go_on_afterwards() -> None:
    first, second = FakeQuery(), ended()
    one = running(first, again=lambda: second)
    doubt = Outage("no broker confirms it", since=0.0, must_rest=True)
    seen: list[str] = []
    lease = FakeLease(None, doubt, doubt)
    watch([one], threading.Event(), lambda sinks: seen.extend(sink.state for sink in sinks), poll=0.0, lease=lease)
    assert first.stops == 1
    assert seen == ["starting", "restarting", "restarting", "restarting", "stopped"]


def test_a_runner_that_was_replaced_ends() -> None:
    with pytest.raises(PipelineFailed, match="another runner has taken over"):
        watch([running(FakeQuery())], threading.Event(), ignore, lease=FakeLease(is_lost=True))


def test_a_query_that_failed_because_the_runner_was_replaced_says_so() -> None:
    lease = FakeLease()
    with pytest.raises(PipelineFailed, match="boom"):
        watch([running(failed_with("boom"))], threading.Event(), ignore, lease=lease)
    lease.is_lost_when_asked = True
    with pytest.raises(PipelineFailed, match="another runner has taken over"):
        watch([running(failed_with("boom"))], threading.Event(), ignore, lease=lease)
