"""`headrace consume --group`: reads from where the group is, and commits what it has printed."""

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from headrace.testing import Broker
from tests.support.cli import Run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}) as running:
        yield running


@pytest.fixture
def call(run: Run, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap)
    return run


def write(broker: Broker, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % 2)
    assert producer.flush(30) == 0


def test_a_group_goes_on_where_it_stopped(call: Run, broker: Broker) -> None:
    broker.create_topic("resumed", 2)
    write(broker, "resumed", "a", "b", "c", "d")
    first = call("consume", "resumed", "--group", "g", "--count", "3")
    assert (first.exit_code, len(first.stdout.splitlines())) == (0, 3), first.stderr
    second = call("consume", "resumed", "-g", "g")
    assert sorted(first.stdout.split() + second.stdout.split()) == ["a", "b", "c", "d"]
    assert call("consume", "resumed", "-g", "g").stdout == ""
    (described,) = json.loads(call("group", "describe", "g", "--json").stdout)
    assert (described["lag"], described["members"]) == (0, [])


def test_a_new_group_may_begin_at_the_end(call: Run, broker: Broker) -> None:
    broker.create_topic("late", 2)
    write(broker, "late", "old")
    assert call("consume", "late", "--group", "late", "--from", "end").stdout == ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--from", "-10"], "with --group it is beginning or end"),
        (["--until", "end"], "leave out --until and --partition"),
        (["--partition", "0"], "leave out --until and --partition"),
    ],
)
def test_what_a_group_decides_is_not_an_option(call: Run, options: list[str], expected: str) -> None:
    result = call("consume", "any", "--group", "g", *options)
    assert (result.exit_code, expected in result.stderr) == (2, True)


def test_a_topic_that_is_not_there_is_told_and_not_made(call: Run) -> None:
    result = call("consume", "resumd", "--group", "g")
    assert (result.exit_code, "does not exist" in result.stderr) == (1, True)
