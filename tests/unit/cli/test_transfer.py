"""`headrace produce` and `headrace consume` against a broker."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocol.partitioner import partition_for
from headrace.testing import Broker
from tests.support.cli import Headrace, command, environment

pytestmark = pytest.mark.slow


@pytest.fixture
def topic(cluster: Broker, request: pytest.FixtureRequest) -> str:
    return cluster.create_topic(request.node.originalname[:200])


def test_lines_come_back_in_order(headrace: Headrace, topic: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(5000))
    sent = headrace("produce", topic, stdin=lines)
    assert (sent.returncode, sent.stderr) == (0, b"")
    assert sent.stdout.startswith(b"5000 records")
    received = headrace("consume", topic)
    assert (received.returncode, received.stderr, received.stdout) == (0, b"", lines)


def test_an_empty_topic_ends_at_once(headrace: Headrace, topic: str) -> None:
    received = headrace("consume", topic)
    assert (received.returncode, received.stdout, received.stderr) == (0, b"", b"")


def test_files_of_any_bytes_are_whole_records(headrace: Headrace, topic: str, tmp_path: Path) -> None:
    blob = bytes(range(256)) * 100
    (tmp_path / "blob").write_bytes(blob)
    sent = headrace("produce", topic, str(tmp_path / "blob"), "--whole-file", "--compression", "zstd", "--json")
    assert json.loads(sent.stdout)["delivered"] == 1
    assert headrace("consume", topic, "--format", "raw").stdout == blob


def test_keys_land_as_with_the_java_client(headrace: Headrace, cluster: Broker) -> None:
    topic = cluster.create_topic("keyed", partitions=7)
    keys = [f"user-{number}" for number in range(50)]
    headrace("produce", topic, "-K", ":", stdin="".join(f"{key}:x\n" for key in keys).encode())
    received = [json.loads(line) for line in headrace("consume", topic, "--json").stdout.splitlines()]
    assert {r["key"]: r["partition"] for r in received} == {key: partition_for(key.encode(), 7) for key in keys}


def test_a_record_keeps_all_its_parts(headrace: Headrace, topic: str) -> None:
    extras = ["-H", "a=1", "-H", "a=2", "--timestamp", "1600000000000", "--null-value", "NULL", "--key", "k"]
    headrace("produce", topic, *extras, stdin=b"NULL\n")
    assert json.loads(headrace("consume", topic, "--json").stdout) == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": 1_600_000_000_000,
        "key": "k",
        "value": None,
        "headers": [["a", "1"], ["a", "2"]],
    }


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_delivers(headrace: Headrace, cluster: Broker, acks: str) -> None:
    topic = cluster.create_topic(f"acks-{acks}")
    assert headrace("produce", topic, "--acks", acks, "--json", stdin=b"a\nb").returncode == 0
    assert headrace("consume", topic, "--follow", "--count", "2").stdout == b"a\nb\n"


def test_ranges_of_offsets(headrace: Headrace, topic: str) -> None:
    headrace("produce", topic, stdin=b"0\n1\n2\n3\n4\n")
    for arguments, expected in [
        (["--from", "3"], b"3\n4\n"),
        (["--from", "-1"], b"4\n"),
        (["--until", "2"], b"0\n1\n"),
        (["--from", "1", "--until", "-1"], b"1\n2\n3\n"),
        (["--from", "end"], b""),
        (["--from", "-1h", "--count", "2"], b"0\n1\n"),
        (["--from", "2020-01-01", "--until", "2020-01-02"], b""),
    ]:
        assert headrace("consume", topic, *arguments).stdout == expected, arguments


def test_times_choose_records(headrace: Headrace, topic: str) -> None:
    for hour in (1, 2, 3):
        headrace("produce", topic, "--timestamp", f"2020-01-01T0{hour}:00:00Z", stdin=b"%d" % hour)
    found = headrace("consume", topic, "--from", "2020-01-01T01:30:00Z", "--until", "2020-01-01T02:30:00Z")
    assert found.stdout == b"2\n"


def test_one_partition_of_several(headrace: Headrace, cluster: Broker) -> None:
    topic = cluster.create_topic("parts", partitions=3)
    for partition in "012":
        headrace("produce", topic, "-p", partition, stdin=partition.encode())
    assert headrace("consume", topic, "-p", "1").stdout == b"1\n"
    assert headrace("consume", topic, "-p", "3").returncode == 2
    assert headrace("produce", topic, "-p", "3", stdin=b"x").returncode == 2


def test_a_refused_record_is_the_exit_code(headrace: Headrace, cluster: Broker) -> None:
    topic = cluster.create_topic("small", max_message_bytes=1000)
    result = headrace("produce", topic, "--json", stdin=b"x" * 5000)
    assert result.returncode == 1
    assert json.loads(result.stdout)["failed"] == 1
    assert result.stderr.startswith(b"headrace: 1 record refused by topic 'small'")


def test_a_refused_record_ends_the_reading(headrace: Headrace, cluster: Broker) -> None:
    topic = cluster.create_topic("refusing", max_message_bytes=1000)
    with subprocess.Popen(
        command("produce", topic),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(cluster.bootstrap),
    ) as process:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(b"x" * 5000 + b"\n")
            for _ in range(200):
                process.stdin.write(b"y\n")
                process.stdin.flush()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.1)
        assert process.poll() is not None, "it still reads"
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        assert process.returncode == 1
        assert process.stderr is not None
        assert b"refused by topic 'refusing'" in process.stderr.read()


@pytest.mark.parametrize(
    ("options", "lines", "wrong"),
    [
        (["--format", "json"], b'{"value": "a"}\n{"value": "b"}\n{oops\n', "record 3 of standard input is not JSON"),
        (["-K", ":"], b"k:a\nk:b\nc\nk:d\n", "record 3 of standard input has no key separator"),
        (["--format", "csv", "--columns", "x,y"], b"1,2\n3,4\n5\n", "row 3 of standard input has 1 cells"),
    ],
    ids=["json", "lines", "csv"],
)
def test_what_stands_before_malformed_input_is_delivered_and_counted(
    headrace: Headrace, cluster: Broker, options: list[str], lines: bytes, wrong: str
) -> None:
    topic = cluster.create_topic(f"malformed-{options[-1].replace(',', '').replace(':', 'k')}")
    result = headrace("produce", topic, *options, stdin=lines)
    assert (result.returncode, result.stdout) == (2, b"")
    assert wrong.encode() in result.stderr
    assert result.stderr.endswith(b"; 2 records before that delivered\n")
    assert len(headrace("consume", topic).stdout.splitlines()) == 2
    result = headrace("produce", topic, *options, "--json", stdin=lines)
    told = json.loads(result.stdout)
    assert (result.returncode, told["delivered"], told["failed"]) == (2, 2, 0)
    assert wrong in told["error"]


@pytest.mark.parametrize("verb", ["produce", "consume"])
def test_a_topic_that_is_not_there(headrace: Headrace, verb: str) -> None:
    result = headrace(verb, "nowhere", stdin=b"x")
    assert result.returncode == 1
    assert b"topic 'nowhere' does not exist" in result.stderr


def test_the_count_ends_a_stream(headrace: Headrace, topic: str) -> None:
    headrace("produce", topic, "--count", "2", stdin=b"a\nb\nc\n")
    assert headrace("consume", topic).stdout == b"a\nb\n"


def _heed_interrupts() -> None:
    """What a script starts in the background ignores them, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def following(cluster: Broker, topic: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        command("consume", topic, "--follow"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(cluster.bootstrap),
        preexec_fn=_heed_interrupts,  # noqa: PLW1509 - it takes no lock
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_following_sees_new_records_and_ends_quietly(
    headrace: Headrace, following: "subprocess.Popen[bytes]", topic: str
) -> None:
    assert following.stdout is not None
    for word in (b"one\n", b"two\n"):
        headrace("produce", topic, stdin=word)
        assert following.stdout.readline() == word
    following.send_signal(signal.SIGINT)
    rest, errors = following.communicate(timeout=60)
    assert (following.returncode, rest, errors) == (130, b"", b"")


def test_a_reader_that_has_seen_enough_is_no_error(headrace: Headrace, cluster: Broker, topic: str) -> None:
    headrace("produce", topic, stdin=b"".join(b"line %d\n" % number for number in range(50_000)))
    with subprocess.Popen(
        command("consume", topic), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(cluster.bootstrap)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line 0\n"
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""
