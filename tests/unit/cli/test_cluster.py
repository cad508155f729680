"""What `headrace cluster` understands and refuses before it asks anybody."""

import json
from pathlib import Path

import pytest

from headrace.cli.cluster.plans import amount, as_document, broker_list, read_plan, shown_bytes
from headrace.cli.console import Failure
from headrace.cli.doctor.zookeeper import ServerState, assess_ensemble, assess_server, parse_servers
from headrace.net.address import Address
from headrace.protocol.topic_partition import TopicPartition
from tests.support.cli import Run
from tests.support.process import free_port

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "size"),
    [("500", 500), ("10M", 10_000_000), ("1.5MiB", 1_572_864), ("2k/s", 2000), ("1 GB", 10**9), ("3Ki", 3072)],
)
def test_amounts_are_bytes_with_or_without_a_unit(text: str, size: int) -> None:
    assert amount(text, "--throttle") == size


@pytest.mark.parametrize("text", ["", "fast", "-5M", "0", "10X", "M"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="--throttle"):
        amount(text, "--throttle")


def test_amounts_are_shown_for_people() -> None:
    assert [shown_bytes(n) for n in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]


def test_brokers_are_named_by_their_numbers() -> None:
    assert broker_list("1, 2,30", "--to") == (1, 2, 30)
    for wrong in ("", "1,b", "1;2", "2,2"):
        with pytest.raises(Failure, match="--to"):
            broker_list(wrong, "--to")


def test_a_plan_is_read_as_it_is_written_and_as_kafka_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = {TopicPartition("orders", 1): (3, 1), TopicPartition("orders", 0): (2, 3)}
    path.write_text(json.dumps(as_document(plan)))
    assert read_plan(path) == plan
    entry = {"topic": "t", "partition": 7, "replicas": [5], "log_dirs": ["any"]}
    path.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    assert read_plan(path) == {("t", 7): (5,)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON"),
        ("[]", "it should read"),
        ('{"partitions": [{"topic": "t"}]}', "entry 1 needs topic, partition and replicas"),
        ('{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}', "entry 1 is not"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 1]}]}', "different brokers"),
        ('{"partitions": [{"topic": "t", "partition": 0, "replicas": [true]}]}', "different brokers"),
        (
            '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]},'
            ' {"topic": "t", "partition": 0, "replicas": [2]}]}',
            "is there twice",
        ),
    ],
)
def test_a_plan_that_cannot_be_read_says_where(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(Failure, match=reason):
        read_plan(path)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("reassign", "which partitions?"),
        ("reassign orders", "where to?"),
        ("reassign orders --partition 0 --replication-factor 2", "where to?"),
        ("reassign --partition 0 --to 1", "--partition needs one topic"),
        ("reassign a b --partition 0 --to 1", "--partition needs one topic"),
        ("reassign orders --file plan.json", "--file says"),
        ("reassign --cancel --to 1", "leave --to"),
        ("reassign orders --to one", "is not a list of brokers"),
        ("reassign --file missing.json", "missing.json"),
        ("elect --partition 0", "--partition needs one topic"),
        ("elect --replica 1", "are for --unclean"),
        ("rebalance --throttle quick", "--throttle 'quick'"),
        ("throttle quick", "BYTES 'quick'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(run: Run, arguments: str, reason: str) -> None:
    result = run("cluster", *arguments.split(), "--bootstrap", "127.0.0.1:1")
    assert result.exit_code == 2
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["describe", "rebalance --dry-run", "drain 1", "elect", "throttle off"])
def test_a_cluster_that_does_not_answer_is_code_3(run: Run, command: str) -> None:
    result = run("cluster", *command.split(), "--bootstrap", f"127.0.0.1:{free_port()}")
    assert result.exit_code == 3
    assert "no broker answers" in result.stderr


@pytest.mark.parametrize("command", ["describe", "reassign", "drain", "rebalance", "elect", "throttle"])
def test_each_command_shows_an_example(run: Run, command: str) -> None:
    result = run("cluster", command, "--help")
    assert result.exit_code == 0
    assert f"headrace cluster {command}" in result.stdout


def server(**state: str) -> ServerState:
    return ServerState(address=Address("zk", 2181), **state)  # type: ignore[arg-type]


def test_servers_of_a_store_are_found_in_its_address() -> None:
    assert parse_servers("zookeeper://a:1,b/path/x") == [Address("a", 1), Address("b", 2181)]
    for wrong in ("a:1", "zookeeper://", "zookeeper://a:b", "zookeeper://a:1,,b:2"):
        with pytest.raises(Failure, match="--store"):
            parse_servers(wrong)


def test_a_server_is_judged_by_what_it_says() -> None:
    assert assess_server(server(mode="leader", version="3.9.5")).status == "ok"
    assert assess_server(server()).status == "warn"
    assert assess_server(server(reason="connection refused")).status == "fail"


def test_an_ensemble_needs_most_of_its_servers() -> None:
    leader, follower, gone = server(mode="leader"), server(mode="follower"), server(reason="timed out")
    assert assess_ensemble([leader, follower, follower]).status == "ok"
    assert assess_ensemble([leader, follower, gone]).status == "ok"
    assert assess_ensemble([leader, gone, gone]).status == "fail"
    assert assess_ensemble([server(mode="standalone")]).status == "warn"
    assert assess_ensemble([server(mode="standalone"), server(mode="standalone"), leader]).status == "fail"
