"""Watching and stopping, with queries that only pretend."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.spark.pipeline.document import Place
from headrace.spark.pipeline.failures import PipelineFailed
from headrace.spark.pipeline.model import Sink, ToConsole
from headrace.spark.pipeline.progress import Progress
from headrace.spark.pipeline.running import Running, stop_all, watch


class Reported:
    def __init__(self, batch: int, rows: int, time: str = "") -> None:
        self.batchId = batch
        self.json = json.dumps({"batchId": batch, "numInputRows": rows, "timestamp": time or str(batch)})


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


def running(query: FakeQuery, name: str = "one") -> Running:
    sink = Sink(name=name, place=Place("p.yaml", 1), table="t", output=ToConsole())
    return Running(sink, query, Progress(sink=name))


TOO_SLOW = "org.apache.spark.SparkException: Python worker failed to connect back."


def failed_with(message: str) -> FakeQuery:
    query = FakeQuery()
    query.active, query.error = False, RuntimeError(message)
    return query


def ended() -> FakeQuery:
    query = FakeQuery()
    query.active = False
    return query


def test_a_query_that_failed_on_a_busy_machine_starts_again() -> None:
    one = running(failed_with(TOO_SLOW))
    later = iter([failed_with(TOO_SLOW), ended()])
    one.again = lambda: next(later)
    watch([one], threading.Event(), ignore, poll=0.0)
    assert one.progress.state == "stopped"


def test_a_machine_that_stays_busy_fails_the_pipeline() -> None:
    one = running(failed_with(TOO_SLOW))
    starts: list[FakeQuery] = []

    def again() -> FakeQuery:
        starts.append(failed_with(TOO_SLOW))
        return starts[-1]

    one.again = again
    with pytest.raises(PipelineFailed, match="failed to connect back"):
        watch([one], threading.Event(), ignore, poll=0.0)
    assert len(starts) == 3


def test_any_other_failure_is_final() -> None:
    one = running(failed_with("boom"))
    one.again = ended
    with pytest.raises(PipelineFailed, match="boom"):
        watch([one], threading.Event(), ignore, poll=0.0)


def ignore(_progress: Sequence[Progress]) -> None:
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
    assert (one.progress.rows_in, one.progress.batch) == (21, 2)


def test_a_report_of_an_idle_query_has_the_number_of_the_batch_to_come() -> None:
    query = FakeQuery()
    one = running(query)
    query.reports = [Reported(0, 5)]
    one.look()
    query.reports += [Reported(1, 0, "idle")]
    one.look()
    query.reports += [Reported(1, 4, "busy")]
    one.look()
    one.look()
    assert one.progress.rows_in == 9


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
    assert failing.progress.state == "failed"


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
    assert one.progress.state == "stopped"
