"""`headrace group` against a broker."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from typer.testing import CliRunner, Result

from headrace.cli.group.reset import TopicChoice, parse_topic
from headrace.cli.main import app
from headrace.testing import Broker

pytestmark = pytest.mark.slow

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 3}) as broker:
        broker.create_topic("orders", 3)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(30):
            producer.produce("orders", value=str(number), partition=number % 3, timestamp=1_700_000_000_000 + number)
        assert producer.flush(60) == 0
        yield broker


@pytest.fixture
def group(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap)
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})
    return lambda *arguments: runner.invoke(app, ["group", *arguments], prog_name="headrace")


def consumer_of(broker: Broker, name: str) -> Any:
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": name, "enable.auto.commit": False, "log_level": 0}
    return Consumer(settings)


def commit(broker: Broker, name: str, *offsets: int) -> None:
    consumer = consumer_of(broker, name)
    places = [TopicPartition("orders", partition, offset) for partition, offset in enumerate(offsets)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def committed(broker: Broker, name: str) -> list[int]:
    consumer = consumer_of(broker, name)
    found = consumer.committed([TopicPartition("orders", partition) for partition in range(3)], timeout=60)
    consumer.close()
    return [place.offset for place in found]


def test_lag_is_shown_per_partition_and_in_total(broker: Broker, group: Run) -> None:
    commit(broker, "lagging", 4, 10)
    (described,) = json.loads(group("describe", "lagging", "--json").stdout)
    assert (described["state"], described["type"], described["lag"]) == ("Empty", "classic", 16)
    assert [(p["partition"], p["committed"], p["end"], p["lag"]) for p in described["partitions"]] == [
        (0, 4, 10, 6),
        (1, 10, 10, 0),
        (2, None, 10, 10),
    ]
    shown = group("describe", "lagging").stdout
    assert "lag          16, of which 10 in 1 partition without a commit" in shown
    assert "COMMITTED" in shown


def test_the_list_of_groups_has_members_topics_and_lag(broker: Broker, group: Run) -> None:
    commit(broker, "listed", 4, 10, 10)
    (found,) = [g for g in json.loads(group("list", "--json").stdout) if g["group"] == "listed"]
    assert (found["state"], found["members"], found["topics"], found["lag"]) == ("Empty", 0, ["orders"], 6)
    assert [line.split() for line in group("list").stdout.splitlines() if line.startswith("listed ")] == [
        ["listed", "Empty", "classic", "0", "orders", "6"]
    ]
    commit(broker, "uptodate", 10, 10, 10)
    lagging = [g["group"] for g in json.loads(group("list", "--lagging", "--json").stdout)]
    assert "listed" in lagging
    assert "uptodate" not in lagging


def test_a_watch_shows_it_again_and_again(broker: Broker, monkeypatch: pytest.MonkeyPatch, group: Run) -> None:
    commit(broker, "watched", 1)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.watching.time.sleep", pause)
    result = group("describe", "watched", "--watch", "--interval", "0.5", "--json")
    assert result.exit_code == 130
    assert [json.loads(line)[0]["group"] for line in result.stdout.splitlines()] == ["watched"] * 3
    assert pauses == [0.5] * 3


def test_members_are_shown_with_what_they_read(broker: Broker, group: Run) -> None:
    consumer = consumer_of(broker, "busy")
    consumer.subscribe(["orders"])
    deadline = time.monotonic() + 60
    while not consumer.assignment():
        assert time.monotonic() < deadline
        consumer.poll(0.1)
    (described,) = json.loads(group("describe", "busy", "--json").stdout)
    (member,) = described["members"]
    assert (described["state"], described["assignor"]) == ("Stable", "range")
    assert member["partitions"] == [["orders", 0], ["orders", 1], ["orders", 2]]
    assert {p["member"] for p in described["partitions"]} == {member["member"]}
    assert "orders:0,1,2" in group("describe", "busy").stdout
    refused = group("reset", "busy", "--topic", "orders", "--to", "earliest", "--execute")
    assert (refused.exit_code, "1 member(s)" in refused.stderr) == (1, True)
    deleted = group("delete", "busy", "--yes")
    assert (deleted.exit_code, "stop them first" in deleted.stderr) == (1, True)
    consumer.close()


def test_groups_are_listed_and_deleted(broker: Broker, group: Run) -> None:
    commit(broker, "old", 1)
    listed = {each["group"]: each for each in json.loads(group("list", "--json").stdout)}
    assert (listed["old"]["state"], listed["old"]["type"]) == ("Empty", "classic")
    assert "old" in group("list", "--state", "empty").stdout
    assert "old" not in group("list", "--state", "stable").stdout
    assert group("delete", "old").exit_code == 2
    assert group("delete", "old", "--yes").stdout == "old: deleted\n"
    again = group("delete", "old", "--yes", "--json")
    assert again.exit_code == 1
    assert json.loads(again.stdout)[0]["code"] == "GROUP_ID_NOT_FOUND"
    missing = group("describe", "old")
    assert (missing.exit_code, "'old' does not exist" in missing.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--topic", "orders", "--to", "earliest"], [0, 0, 0]),
        (["--topic", "orders", "--to", "latest"], [10, 10, 10]),
        (["--topic", "orders:0,2", "--to", "7"], [7, 5, 7]),
        (["--topic", "orders:1-2", "--to", "-2"], [5, 8, 8]),
        (["--topic", "orders", "--to", "1700000000015"], [5, 5, 5]),
        (["--all-topics", "--shift", "-3"], [2, 2, 2]),
        (["--all-topics", "--shift", "100"], [10, 10, 10]),
    ],
)
def test_a_group_is_moved(broker: Broker, group: Run, arguments: list[str], expected: list[int]) -> None:
    commit(broker, "moving", 5, 5, 5)
    dry = group("reset", "moving", *arguments)
    assert (dry.exit_code, "nothing was changed" in dry.stderr) == (0, True)
    assert committed(broker, "moving") == [5, 5, 5]
    done = json.loads(group("reset", "moving", *arguments, "--execute", "--json").stdout)
    assert done["executed"]
    assert committed(broker, "moving") == expected
    planned = {move["partition"]: move["to"] for move in done["partitions"]}
    assert all(expected[partition] == to for partition, to in planned.items())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["g"], 2, "say where to"),
        (["g", "--to", "earliest", "--shift", "1"], 2, "say where to"),
        (["g", "--to", "earliest"], 2, "say which topics"),
        (["g", "--to", "earliest", "--topic", "t", "--all-topics"], 2, "say which topics"),
        (["g", "--to", "nowhere", "--topic", "orders"], 2, "is not a position"),
        (["g", "--to", "1", "--topic", "orders:x"], 2, "orders:0,2-4"),
        (["g", "--to", "1", "--topic", "orders", "--execute", "--dry-run"], 2, "exclude each other"),
        (["g", "--to", "1", "--topic", "none"], 1, "does not exist"),
        (["g", "--to", "1", "--topic", "orders:9"], 1, "has no partition 9"),
        (["nobody", "--to", "1", "--all-topics"], 1, "'nobody' does not exist"),
        (["nobody", "--shift", "1", "--topic", "orders"], 1, "nothing to shift"),
    ],
)
def test_a_reset_that_cannot_be_says_why(group: Run, arguments: list[str], code: int, words: str) -> None:
    result = group("reset", *arguments)
    assert (result.exit_code, words in result.stderr) == (code, True), result.stderr


def test_topics_are_chosen_with_their_partitions() -> None:
    assert parse_topic("a", "-t") == TopicChoice("a", None)
    assert parse_topic("a:3", "-t") == TopicChoice("a", (3,))
    assert parse_topic("a:4,0-2,1", "-t") == TopicChoice("a", (0, 1, 2, 4))


def share(broker: Broker, name: str, count: int) -> None:
    """A share group that has accepted so many records, and has no members any more."""
    from_start = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resource = ConfigResource(ResourceType.GROUP, name, incremental_configs=[from_start])
    admin.incremental_alter_configs([resource])[resource].result(10)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": name, "log_level": 0}
    consumer = ShareConsumer({**settings, "share.acknowledgement.mode": "explicit", "max.poll.records": count})
    consumer.subscribe(["orders"])
    left = count
    while left:
        for message in consumer.poll(10):
            consumer.acknowledge(message, AcknowledgeType.ACCEPT if left else AcknowledgeType.RELEASE)
            left = max(left - 1, 0)
        consumer.commit_sync()
    consumer.close()


def test_a_share_group_is_listed_described_moved_and_deleted(broker: Broker, group: Run) -> None:
    share(broker, "sharing", 30)
    (found,) = [g for g in json.loads(group("list", "--json").stdout) if g["group"] == "sharing"]
    assert found == {**found, "type": "share", "state": "Empty", "members": 0, "topics": ["orders"], "lag": 0}
    (described,) = json.loads(group("describe", "sharing", "--json").stdout)
    assert (described["type"], described["assignor"], described["lag"]) == ("share", "simple", 0)
    assert [(each["start"], each["lag"]) for each in described["partitions"]] == [(10, 0)] * 3
    moved = group("reset", "sharing", "--topic", "orders:1", "--to", "4", "--execute")
    assert moved.exit_code == 0, moved.output
    shown = group("describe", "sharing").stdout
    assert "lag          6" in shown
    assert ["orders", "1", "4", "6"] in [line.split() for line in shown.splitlines()]
    assert json.loads(group("reset", "sharing", "--all-topics", "--shift", "-1", "--json").stdout)["partitions"][1] == {
        "topic": "orders", "partition": 1, "at": 4, "to": 3, "change": -1
    }  # fmt: skip
    assert group("delete", "sharing", "--yes").exit_code == 0
    gone = group("describe", "sharing")
    assert gone.exit_code == 1
    assert "group 'sharing' does not exist" in gone.output
