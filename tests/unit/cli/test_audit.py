"""`headrace audit` against a broker that records what is done to it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.cli.audit import _line
from headrace.testing import Broker
from tests.support.cli import Run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recording() -> Iterator[Broker]:
    with Broker({"headrace.audit": "topic"}) as running:
        yield running


def events(run: Run, *arguments: str) -> list[dict[str, Any]]:
    result = run("audit", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def at(run: Run, recording: Broker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Commands at the broker that records; what they do is recorded when this is done."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", recording.bootstrap)
    if not run("audit").exit_code:
        return run
    run("topic", "create", "orders", "--partitions", "2")
    run("topic", "create", "orders")
    run("topic", "delete", "orders", "--yes")
    run("topic", "create", "payments")
    for _ in range(100):
        if not run("audit").exit_code and events(run, "--resource", "payments"):
            return run
    raise AssertionError("nothing is recorded")


def test_what_was_done_is_shown_with_who_did_it_and_what_came_of_it(at: Run) -> None:
    lines = at("audit", "--resource", "orders").stdout.splitlines()
    assert [line.split("  ")[1].strip() for line in lines] == ["succeeded", "failed", "succeeded"]
    assert "User:ANONYMOUS@127.0.0.1  CreateTopics  Topic:orders (num_partitions=2)" in lines[0]
    assert "TOPIC_ALREADY_EXISTS" in lines[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--operation", "deletetopics"], ["DeleteTopics"]),
        (["--resource", "payments"], ["CreateTopics"]),
        (["--user", "ANONYMOUS", "--resource", "payments"], ["CreateTopics"]),
        (["--user", "User:ANONYMOUS", "--resource", "payments"], ["CreateTopics"]),
        (["--user", "alice"], []),
        (["--denied"], []),
        (["--since", "1h", "--resource", "payments"], ["CreateTopics"]),
        (["--since", "2100-01-01T00:00"], []),
    ],
)
def test_events_are_chosen_by_user_operation_resource_outcome_and_time(
    at: Run, arguments: list[str], expected: list[str]
) -> None:
    assert [event["operation"] for event in events(at, *arguments)] == expected


def test_a_wrong_time_is_told(at: Run) -> None:
    result = at("audit", "--since", "yesterday")
    assert (result.exit_code, "--since 'yesterday' is not a time" in result.stderr) == (2, True)


def test_without_an_audit_log_it_says_how_to_have_one(run: Run, cluster: Broker) -> None:
    result = run("audit", "--bootstrap", cluster.bootstrap)
    assert (result.exit_code, "headrace.audit=topic" in result.stderr) == (1, True)


def test_a_name_that_holds_escapes_cannot_reach_the_terminal() -> None:
    event = {
        "time": "t",
        "outcome": "denied",
        "principal": "User:\x1b[2Jeve",
        "host": "10.0.0.9",
        "operation": "Write",
        "resources": [{"type": "Topic", "name": "a\r\nb\u202e"}],
        "count": 3,
        "since": "s",
    }
    assert _line(event) == r"t  denied     User:\x1b[2Jeve@10.0.0.9  Write  Topic:a\r\nb\u202e  x3 since s"
