"""A batch on its way to several outlets, with rows that only pretend."""

from typing import Any

import pytest

from headrace.spark.errors import QueryError, Unreachable
from headrace.spark.pipeline import outputs
from headrace.spark.pipeline.model import ToConsole, ToFunction, ToTopic
from headrace.spark.pipeline.outputs import FanOut, Outlet


class Written:
    """What was saved, by topic and by the options that name the batch."""

    def __init__(self) -> None:
        self.saved: list[dict[str, str]] = []
        self.kept = 0

    def topics(self) -> list[str]:
        return [one["topic"] for one in self.saved]


class FakeBatch:
    """Rows of a batch: the labels of the streams that have some."""

    def __init__(self, labels: set[str], written: Written) -> None:
        self.labels = labels
        self.sparkSession = None
        self._written = written
        self._options: dict[str, str] = {}

    def persist(self) -> None:
        self._written.kept += 1

    def unpersist(self) -> None:
        self._written.kept -= 1

    @property
    def write(self) -> "FakeBatch":
        return self

    def format(self, _name: str) -> "FakeBatch":
        return self

    def mode(self, _name: str) -> "FakeBatch":
        return self

    def options(self, **options: str) -> "FakeBatch":
        self._options = options
        return self

    def save(self) -> None:
        assert self._written.kept == 1, "it is computed once"
        self._written.saved.append(self._options)


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "query_id", lambda _spark, _checkpoint: "q7")
    monkeypatch.setattr(outputs, "_labels", lambda batch: batch.labels)
    monkeypatch.setattr(outputs, "_rows_for", lambda batch, _label: batch)


def topic(name: str) -> Outlet:
    output = ToTopic(columns={}, options={"topic": name})
    return Outlet(name=f"sink '{name}'", output=output, label=name, app_id=name)


def function(call: Any) -> Outlet:
    return Outlet(name="sink 'last'", output=ToFunction(function=call), label="last", app_id="last")


def test_each_outlet_knows_a_batch_by_the_query_itself_and_the_number() -> None:
    written = Written()
    FanOut([topic("a"), topic("b")], "state")(FakeBatch({"a", "b"}, written), 5)
    assert [(one["txnAppId"], one["txnVersion"]) for one in written.saved] == [("q7/a", "5"), ("q7/b", "5")]
    assert written.kept == 0


def test_topics_without_rows_are_left_alone_and_functions_hear_of_every_batch() -> None:
    written, heard = Written(), []
    FanOut([topic("a"), topic("b"), function(lambda _rows, number: heard.append(number))], "state")(
        FakeBatch({"b"}, written), 3
    )
    assert written.topics() == ["b"]
    assert heard == [3]


@pytest.mark.parametrize("kind", [QueryError, Unreachable])
def test_a_failure_names_its_sink_and_stays_what_it_is(kind: type[QueryError]) -> None:
    def fail(_rows: Any, _number: int) -> None:
        raise kind("no leader")

    written = Written()
    with pytest.raises(QueryError, match=r"^sink 'last': no leader$") as raised:
        FanOut([topic("a"), function(fail)], "state")(FakeBatch({"a"}, written), 3)
    assert type(raised.value) is kind
    assert written.kept == 0


def test_a_lone_sink_is_written_without_being_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []
    monkeypatch.setattr(outputs, "_show", lambda _rows, limit: shown.append(limit))
    written = Written()
    FanOut([Outlet(name="sink 'x'", output=ToConsole(rows=4), label=None)], "state")(FakeBatch(set(), written), 0)
    assert shown == [4]
