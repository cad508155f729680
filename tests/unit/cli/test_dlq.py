"""`headrace dlq`: dead letters seen, put back exactly once, mended, given up."""

import itertools
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.client import ClientError, Message, Producer
from headrace.client.admin import Admin
from headrace.client.dead_letters import DeadLetter, DeadLetters
from headrace.client.formats import Raw
from headrace.client.reader import RecordReader
from headrace.testing import Broker
from tests.support.cli import Headrace

pytestmark = pytest.mark.slow
_numbers = itertools.count()


@pytest.fixture
def topic(cluster: Broker) -> str:
    """Where letters come from; its dead letters are in `<topic>.g.dead-letter`."""
    name = cluster.create_topic(f"dlq-{next(_numbers)}", partitions=2)
    cluster.create_topic(f"{name}.g.dead-letter", partitions=2)
    return name


def bury(cluster: Broker, topic: str, count: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in range(count):
            headers = {
                "trace": f"t{number}",
                "headrace.dlq.topic": topic,
                "headrace.dlq.partition": "0",
                "headrace.dlq.offset": str(number),
                "headrace.dlq.group": "g",
                "headrace.dlq.attempts": "3",
                "headrace.dlq.reason": "TimeoutError: slow" if number % 2 else "ValueError: bad",
            }
            producer.send(
                f"{topic}.g.dead-letter", {"id": number}, key=str(number), headers=headers, partition=number % 2
            )


def read(cluster: Broker, topic: str) -> list[Message[bytes]]:
    """What is in a topic for readers of committed messages."""
    admin = Admin(cluster.bootstrap)
    partitions = admin.partition_numbers(topic)
    starts, ends = admin.start_offsets(topic, partitions), admin.end_offsets(topic, partitions)
    records = RecordReader(cluster.bootstrap, topic, starts, ends).messages()
    return [Message(record, Raw()) for record in records if record is not None]


def shown(headrace: Headrace, *arguments: str) -> Any:
    done = headrace("dlq", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def places(headrace: Headrace, topic: str, *arguments: str) -> list[str]:
    return sorted(letter["letter"] for letter in shown(headrace, "show", f"{topic}.g.dead-letter", *arguments))


def test_letters_are_listed_and_shown_with_where_they_were_and_why_they_are_here(
    cluster: Broker, topic: str, headrace: Headrace
) -> None:
    bury(cluster, topic, 5)
    assert {"topic": f"{topic}.g.dead-letter", "letters": 5} in shown(headrace, "list")
    assert len(places(headrace, topic)) == 5
    assert places(headrace, topic, "--reason", "timeouterror") == ["1:0", "1:1"]
    assert places(headrace, topic, "--key", "4") == ["0:2"]
    assert places(headrace, topic, "--group", "other") == []
    (letter,) = shown(headrace, "show", f"{topic}.g.dead-letter", "--at", "1:1")
    assert letter["headers"] == {"trace": "t3"}
    assert letter["value"] == '{"id":3}'
    assert letter["about"]["offset"] == "3"
    table = headrace("dlq", "show", f"{topic}.g.dead-letter", "-n", "1").stdout.decode()
    assert f"{topic}-0@" in table
    assert "REASON" in table


def test_a_letter_is_put_back_as_it_was_once_and_the_others_stay(
    cluster: Broker, topic: str, headrace: Headrace
) -> None:
    bury(cluster, topic, 4)
    letters = f"{topic}.g.dead-letter"
    assert shown(headrace, "redrive", letters, "--at", "1:0", "--dry-run")[0]["letter"] == "1:0"
    assert read(cluster, topic) == []
    assert headrace("dlq", "redrive", letters, "--at", "1:0").stdout == b"1 letter put back\n"
    again = headrace("dlq", "redrive", letters, "--at", "1:0")
    assert again.stdout == b"0 letters put back\n"
    assert b"1 of those named with --at is no letter any more" in again.stderr
    (message,) = read(cluster, topic)
    assert (message.key, message.data, message.headers) == (b"1", b'{"id":1}', [("trace", b"t1")])
    assert places(headrace, topic) == ["0:0", "0:1", "1:1"]


def test_letters_are_mended_left_and_given_up(
    cluster: Broker, topic: str, headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(cluster, topic, 6)
    letters, other = f"{topic}.g.dead-letter", cluster.create_topic(f"{topic}-mended")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / f"mend_{topic.replace('-', '_')}.py").write_text(
        "from dataclasses import replace\n"
        "def fix(letter):\n    return None if letter.key == b'3' else replace(letter, value=b'mended')\n"
        "def broken(letter):\n    return 1 / int(letter.key)\n"
        "def wrong(letter):\n    return b'bytes'\n"
    )
    module = f"mend_{topic.replace('-', '_')}"
    chosen = ("--reason", "TimeoutError", "--to", other)
    assert shown(headrace, "redrive", letters, *chosen, "--fix", f"{module}:fix") == {"letters": 2}
    assert [message.data for message in read(cluster, other)] == [b"mended", b"mended"]
    assert places(headrace, topic, "--reason", "TimeoutError") == ["1:1"]
    for name, reason in (("broken", b"ZeroDivisionError"), ("wrong", b"gave bytes"), ("absent", b"no function absent")):
        failed = headrace("dlq", "redrive", letters, "--all", "--fix", f"{module}:{name}")
        assert failed.returncode != 0
        assert reason in failed.stderr
    assert read(cluster, topic) == []
    assert shown(headrace, "discard", letters, "--reason", "ValueError") == {"letters": 3}
    assert places(headrace, topic) == ["1:1"]
    assert shown(headrace, "list", letters) == [{"topic": letters, "letters": 1}]


def test_of_two_who_redrive_at_the_same_time_each_letter_goes_back_once(cluster: Broker, topic: str) -> None:
    bury(cluster, topic, 1200)
    failures: list[ClientError] = []

    def redrive() -> None:
        letters = DeadLetters(Admin(cluster.bootstrap), cluster.bootstrap, f"{topic}.g.dead-letter")
        try:
            letters.redrive(lambda _letter: True)
        except ClientError as error:
            failures.append(error)

    threads = [threading.Thread(target=redrive) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    redrive()
    assert all("somebody else" in error.message for error in failures)
    assert sorted(int(message.key or b"") for message in read(cluster, topic)) == list(range(1200))
    assert list(DeadLetters(Admin(cluster.bootstrap), cluster.bootstrap, f"{topic}.g.dead-letter")) == []


def test_a_run_that_fails_in_its_middle_has_put_nothing_of_its_transaction_back(cluster: Broker, topic: str) -> None:
    bury(cluster, topic, 20)
    letters = DeadLetters(Admin(cluster.bootstrap), cluster.bootstrap, f"{topic}.g.dead-letter")

    def fix(letter: DeadLetter) -> DeadLetter:
        if letter.key == b"13":
            raise KeyError("name")
        return letter

    with pytest.raises(ClientError, match=r"failed at letter 1:6: KeyError"):
        letters.redrive(lambda _letter: True, fix=fix)
    assert read(cluster, topic) == []
    assert len(list(letters)) == 20


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["redrive", "t"], b"--all of them"),
        (["discard", "t"], b"--all of them"),
        (["show", "t", "--at", "0-1"], b"is not PARTITION:OFFSET"),
        (["redrive", "t", "--all", "--fix", "nothing"], b"is not MODULE:FUNCTION"),
        (["redrive", "t", "--all", "--fix", "absent_module:fix"], b"cannot be loaded"),
        (["show", "absent.dead-letter"], b"does not exist"),
    ],
)
def test_what_cannot_be_done_is_told(arguments: list[str], reason: bytes, headrace: Headrace) -> None:
    done = headrace("dlq", *arguments)
    assert done.returncode in (1, 2)
    assert reason in done.stderr


def test_a_letter_that_does_not_say_where_it_came_from_needs_a_topic(
    cluster: Broker, topic: str, headrace: Headrace
) -> None:
    letters = f"{topic}.g.dead-letter"
    with Producer(cluster.bootstrap) as producer:
        producer.send(letters, "of another program")
    failed = headrace("dlq", "redrive", letters, "--all")
    assert failed.returncode == 1
    assert b"name a topic" in failed.stderr
    assert shown(headrace, "redrive", letters, "--all", "--to", topic) == {"letters": 1}


def test_a_letter_that_names_an_internal_topic_is_not_put_back_there(
    cluster: Broker, topic: str, headrace: Headrace
) -> None:
    letters = f"{topic}.g.dead-letter"
    with Producer(cluster.bootstrap) as producer:
        producer.send(letters, "forged", headers={"headrace.dlq.topic": "__consumer_offsets"}, partition=0)
    failed = headrace("dlq", "redrive", letters, "--all")
    assert failed.returncode == 1
    assert b"letter 0:0 would go to '__consumer_offsets', which is internal" in failed.stderr
    assert shown(headrace, "discard", letters, "--at", "0:0") == {"letters": 1}


def bury_by_broker(cluster: Broker, topic: str, offset: int, value: str | None = None) -> None:
    """As a broker writes the letters of a share group."""
    about = {"topic": topic, "partition": "0", "offset": str(offset), "group": "g", "delivery.count": "5"}
    headers = {f"__dlq.errors.{name}": text for name, text in about.items()}
    headers["__dlq.errors.message"] = "Offset rejected by client."
    with Producer(cluster.bootstrap) as producer:
        producer.send(f"{topic}.g.dead-letter", value, headers=headers, partition=0)


def test_letters_of_share_groups_are_understood_also_without_their_records_and_twice(
    cluster: Broker, topic: str, headrace: Headrace
) -> None:
    letters = f"{topic}.g.dead-letter"
    with Producer(cluster.bootstrap) as producer:
        for number in range(3):
            producer.send(topic, f"v{number}", key=f"k{number}", headers={"trace": "t"}, partition=0)
    for offset, value in ((1, None), (1, None), (2, "copy"), (1, None), (7, None)):
        bury_by_broker(cluster, topic, offset, value)
    assert places(headrace, topic) == ["0:0", "0:2", "0:4"]
    (letter,) = shown(headrace, "show", letters, "--at", "0:0")
    reason = "Offset rejected by client."
    about = {"topic": topic, "partition": "0", "offset": "1", "group": "g", "attempts": "5", "reason": reason}
    assert letter["about"] == about
    first = {(m.partition, m.offset) for m in read(cluster, topic)}
    assert shown(headrace, "redrive", letters, "--at", "0:0", "--at", "0:2") == {"letters": 2}
    again = {(m.key, m.data, *m.headers) for m in read(cluster, topic) if (m.partition, m.offset) not in first}
    assert again == {(b"k1", b"v1", ("trace", b"t")), (None, b"copy")}
    assert places(headrace, topic) == ["0:4"], "nor is one of them that stood there twice"
    failed = headrace("dlq", "redrive", letters, "--all")
    assert b"does not have it at offset 7 any more" in failed.stderr
    assert shown(headrace, "discard", letters, "--all") == {"letters": 1}
