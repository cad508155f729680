"""The command line makes no topic by the way, also where the broker would."""

import json
from collections.abc import Iterator

import pytest

from headrace.testing import Broker
from tests.support.cli import Run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def generous() -> Iterator[Broker]:
    """A broker that makes every topic that a client asks for."""
    with Broker({"auto.create.topics.enable": True}) as broker:
        broker.create_topic("orders")
        yield broker


@pytest.mark.parametrize("command", ["consume", "produce"])
def test_a_typo_is_answered_with_the_topic_that_was_meant(run: Run, generous: Broker, command: str) -> None:
    result = run(command, "order", "-b", generous.bootstrap, stdin="x\n")
    assert result.exit_code == 1
    assert result.stderr == "headrace: topic 'order' does not exist; did you mean orders?\n"
    assert topics(run, generous) == {"orders"}


def test_a_topic_like_no_other_is_only_said_not_to_be_there(run: Run, generous: Broker) -> None:
    result = run("consume", "zzz", "-b", generous.bootstrap)
    assert "topic 'zzz' does not exist; `headrace topic list` shows those that do" in result.stderr
    assert topics(run, generous) == {"orders"}


def test_produce_makes_the_topic_when_asked(run: Run, generous: Broker) -> None:
    first = run("produce", "fresh", "--create", "-b", generous.bootstrap, stdin="x\n")
    assert (first.exit_code, first.stderr) == (0, "topic 'fresh' created\n")
    again = run("produce", "fresh", "--create", "-b", generous.bootstrap, stdin="y\n")
    assert (again.exit_code, again.stderr) == (0, "")
    assert run("consume", "fresh", "-b", generous.bootstrap).stdout == "x\ny\n"
    run("topic", "delete", "fresh", "--yes", "-b", generous.bootstrap)


def topics(run: Run, broker: Broker) -> set[str]:
    return {topic["name"] for topic in json.loads(run("topic", "list", "--json", "-b", broker.bootstrap).stdout)}
