"""`headrace queue`: queues, what waits in them, and what they have given up."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.cli.queue import LETTER_TOPIC, show
from headrace.client import Producer, Queue
from headrace.client.admin import Admin
from headrace.testing import Broker
from tests.support.cli import Headrace
from tests.support.process import wait_for

pytestmark = pytest.mark.slow
Shown = Callable[..., Any]


@pytest.fixture
def shown(headrace: Headrace) -> Shown:
    def show(*arguments: str) -> Any:
        done = headrace("queue", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return show


def test_a_queue_is_seen_and_what_it_has_given_up_is_put_back_once(
    cluster: Broker, headrace: Headrace, shown: Shown
) -> None:
    topic, letters = cluster.create_topic("queue-jobs"), "dlq.queue-jobs"
    cluster.create_topic(letters, errors_deadletterqueue_group_enable=True)
    settings = ("errors.deadletterqueue.topic.name=" + letters, "errors.deadletterqueue.copy.record.enable=true")
    assert headrace("config", "set", "group", "queue-workers", *settings).returncode == 0
    with Producer(cluster.bootstrap) as producer:
        for number in range(6):
            producer.send(topic, str(number), key=f"k{number}", headers={"trace": "t"})
    with Queue(topic, group="queue-workers", value=str, bootstrap=cluster.bootstrap) as queue:
        for _ in range(4):
            message = queue.receive(timeout=30)
            assert message is not None
            queue.reject() if int(message.value) % 2 else queue.accept()
    wait_for("letters", lambda: Admin(cluster.bootstrap).end_offsets(letters, [0])[0] == 2)
    (listed,) = [each for each in shown("list") if each["queue"] == "queue-workers"]
    assert (listed["members"], listed["topics"], listed["waiting"], listed["dead_letters"]) == (0, [topic], 2, letters)
    found = shown("show", "queue-workers")
    assert (found["waiting"], found["dead_letters"]) == (2, {"topic": letters, "letters": 2})
    assert found["settings"]["errors.deadletterqueue.copy.record.enable"] == "true"
    table = headrace("queue", "show", "queue-workers").stdout
    assert b"2 dead letters in dlq.queue-jobs" in table
    assert [letter["key"] for letter in shown("redrive", "queue-workers", "--all", "--dry-run")] == ["k1", "k3"]
    assert shown("redrive", "queue-workers", "--key", "k1") == {"letters": 1}
    assert shown("discard", "queue-workers", "--reason", "rejected") == {"letters": 1}
    assert shown("redrive", "queue-workers", "--all") == {"letters": 0}
    again: list[tuple[str, Any]] = []
    with Queue(topic, group="queue-workers", value=str, bootstrap=cluster.bootstrap) as queue:
        while message := queue.receive(timeout=5 if len(again) < 3 else 1):
            again.append((message.value, message.headers))
    assert sorted(again) == [(value, [("trace", b"t")]) for value in ("1", "4", "5")]


def test_many_dead_letters_are_not_read_to_be_counted(
    cluster: Broker, headrace: Headrace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, letters = cluster.create_topic("queue-many"), "dlq.queue-many"
    cluster.create_topic(letters, errors_deadletterqueue_group_enable=True)
    with Queue(topic, group="queue-many", value=str, bootstrap=cluster.bootstrap) as queue:
        queue.receive(timeout=3)
    with Producer(cluster.bootstrap) as producer:
        for number in range(3):
            producer.send(letters, str(number))
    assert headrace("config", "set", "group", "queue-many", f"{LETTER_TOPIC}={letters}").returncode == 0
    monkeypatch.setattr("headrace.cli.queue.MOST_COUNTED", 2)
    show(queue="queue-many", bootstrap=cluster.bootstrap, json=True)
    assert json.loads(capsys.readouterr().out)["dead_letters"] == {"topic": letters, "letters": None, "at_most": 3}
    show(queue="queue-many", bootstrap=cluster.bootstrap)
    assert "at most 3 dead letters in dlq.queue-many" in capsys.readouterr().out


def test_what_cannot_be_done_is_told(cluster: Broker, headrace: Headrace) -> None:
    assert b"--all of them" in headrace("queue", "redrive", "queue-none").stderr
    assert b"queue-none" in headrace("queue", "show", "queue-none").stderr
    topic = cluster.create_topic("queue-plain")
    with Queue(topic, group="queue-plain", value=str, bootstrap=cluster.bootstrap) as queue:
        assert queue.receive(timeout=3) is None
    failed = headrace("queue", "discard", "queue-plain", "--all")
    assert failed.returncode == 1
    assert b"has no dead letters: set errors.deadletterqueue.topic.name" in failed.stderr
    assert b"is not set" in headrace("queue", "show", "queue-plain").stderr
