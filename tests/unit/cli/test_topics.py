"""`headrace topic` against a broker."""

import json
import subprocess

import pytest

from headrace.testing import Broker
from tests.support.cli import Run, command, environment

pytestmark = pytest.mark.slow


@pytest.fixture
def topic(run: Run, cluster: Broker) -> Run:
    """`headrace topic` with the cluster's address."""

    def call(*arguments: str, stdin: str | None = None) -> object:
        return run("topic", *arguments, "--bootstrap", cluster.bootstrap, stdin=stdin)

    return call  # type: ignore[return-value]


def test_a_topic_lives_and_dies(topic: Run) -> None:
    assert topic("create", "life", "--partitions", "3", "-c", "retention.ms=60000").stdout == "life: created\n"
    (described,) = json.loads(topic("describe", "life", "--json").stdout)
    assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
    assert described["configs"] == {"retention.ms": "60000"}
    assert described["partitions"][0]["end_offset"] == 0

    changed = topic("alter", "life", "-p", "4", "-c", "cleanup.policy=compact", "--delete-config", "retention.ms")
    assert changed.stdout == "life: altered\n"
    (described,) = json.loads(topic("describe", "life", "--json").stdout)
    assert len(described["partitions"]) == 4
    assert described["configs"] == {"cleanup.policy": "compact"}

    listed = {t["name"]: t["partitions"] for t in json.loads(topic("list", "--json").stdout)}
    assert listed["life"] == 4
    assert topic("delete", "life", "--yes").stdout == "life: deleted\n"
    assert "life" not in topic("list").stdout


def test_describe_shows_a_table(topic: Run) -> None:
    topic("create", "shown", "-c", "retention.ms=5")
    result = topic("describe", "shown")
    assert "settings   retention.ms=5" in result.stdout
    assert "PARTITION  LEADER" in result.stdout


def test_a_topic_that_exists_fails_unless_allowed(topic: Run) -> None:
    topic("create", "twice")
    again = topic("create", "twice")
    assert again.exit_code == 1
    assert "twice" in again.stderr
    allowed = topic("create", "twice", "fresh", "--if-not-exists")
    assert (allowed.exit_code, allowed.stdout) == (0, "twice: exists\nfresh: created\n")


@pytest.mark.parametrize("name", ["a/b", "..", "x" * 250, "ünïcode"])
def test_a_bad_name_gets_the_brokers_message(topic: Run, name: str) -> None:
    result = topic("create", name)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"headrace: topic '{name}': ")
    assert len(result.stderr) > len(name) + 40


def test_a_bad_setting_is_named(topic: Run) -> None:
    result = topic("create", "bad", "-c", "cleanup.policy=soon", "--json")
    assert result.exit_code == 1
    (outcome,) = json.loads(result.stdout)
    assert (outcome["state"], outcome["code"]) == ("failed", "INVALID_CONFIG")
    assert "cleanup.policy" in outcome["error"]


@pytest.mark.parametrize("command", [["describe", "nope"], ["alter", "nope", "-p", "2"], ["delete", "nope", "--yes"]])
def test_a_topic_that_is_not_there_is_named(topic: Run, command: list[str]) -> None:
    result = topic(*command)
    assert result.exit_code == 1
    assert "'nope'" in result.stderr


def test_partitions_cannot_shrink(topic: Run) -> None:
    topic("create", "wide", "-p", "3")
    result = topic("alter", "wide", "-p", "2")
    assert result.exit_code == 1
    assert "3" in result.stderr


def test_it_works_as_a_process(cluster: Broker) -> None:
    arguments = command("topic", "create", "apart")
    done = subprocess.run(arguments, capture_output=True, env=environment(cluster.bootstrap), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"apart: created\n", b"")


def test_records_before_an_offset_are_trimmed(topic: Run, run: Run, cluster: Broker) -> None:
    topic("create", "long")
    run("produce", "long", "--bootstrap", cluster.bootstrap, stdin="a\nb\nc\n")
    refused = topic("trim", "long", "--partition", "0", "--before", "2")
    assert "--yes" in refused.stderr
    trimmed = topic("trim", "long", "--partition", "0", "--before", "2", "--yes")
    assert trimmed.stdout == "long: partition 0 begins at offset 2\n"
    (described,) = json.loads(topic("describe", "long", "--json").stdout)
    assert (described["partitions"][0]["start_offset"], described["partitions"][0]["end_offset"]) == (2, 3)
    ended = json.loads(topic("trim", "long", "-p", "0", "--before", "end", "--yes", "--json").stdout)
    assert ended == {"topic": "long", "partition": 0, "start_offset": 3}
    for wrong in ("-1", "x", "99"):
        assert topic("trim", "long", "-p", "0", "--before", wrong, "--yes").exit_code != 0
