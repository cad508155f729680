"""`headrace log dump` and `headrace log verify`, on the files of a broker that has stopped."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.protocol.batch import HEADER_SIZE
from headrace.testing import Broker
from tests.support.cli import Run

pytestmark = pytest.mark.slow

NAME = f"{0:020d}"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with 40 batches of `orders`, one of them of a transaction."""
    data = tmp_path_factory.mktemp("data")
    with Broker(data=data) as broker:
        broker.create_topic("orders", 1, index_interval_bytes=512)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "gzip", "linger.ms": 0})
        for number in range(39):
            producer.produce("orders", key=f"k{number}", value=b"x" * 100 + bytes([number]), headers=[("h", b"\xff")])
            assert producer.flush(30) == 0
        committing = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
        committing.init_transactions(30)
        committing.begin_transaction()
        committing.produce("orders", value=b"in a transaction")
        committing.commit_transaction(30)
    return data


@pytest.fixture
def data(written: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy, to be damaged."""
    import shutil

    return shutil.copytree(written, tmp_path / "data")  # type: ignore[return-value]


def log_of(data: Path) -> Path:
    return data / "orders-0" / f"{NAME}.log"


def positions(log: Path) -> list[int]:
    """Where the batches begin."""
    content, found, position = log.read_bytes(), [], 0
    while position < len(content):
        found.append(position)
        position += 12 + struct.unpack_from(">i", content, position + 8)[0]
    return found


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def verified(run: Run, path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    result = run("log", "verify", str(path), "--json", *options)
    return result.exit_code, json.loads(result.stdout)


def test_a_sound_directory_is_verified(run: Run, data: Path) -> None:
    code, found = verified(run, data, "--records")
    assert (code, found["sound"], found["faults"]) == (0, True, [])
    code, found = verified(run, data / "orders-0")
    assert (code, found["logs"], found["batches"], found["records"]) == (0, 1, 41, 41)
    assert "no faults" in run("log", "verify", str(log_of(data))).stdout


def test_a_flipped_bit_is_found_and_what_follows_is_still_checked(run: Run, data: Path) -> None:
    log = log_of(data)
    third, fifth = positions(log)[2], positions(log)[4]
    for position in (third, fifth):
        overwrite(log, position + HEADER_SIZE + 5, b"\xee")
    code, found = verified(run, data)
    assert code == 1
    assert [(fault["log"], fault["position"]) for fault in found["faults"]] == [
        ("orders-0", third),
        ("orders-0", fifth),
    ]
    assert found["faults"][0]["reason"] == "the batch at offset 2 does not match its CRC-32C"
    assert "damaged" in run("log", "verify", str(data)).stdout


def test_an_end_that_is_torn_is_found(run: Run, data: Path) -> None:
    log = log_of(data)
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 7)
    code, found = verified(run, data)
    assert (code, "is cut off after" in found["faults"][0]["reason"]) == (1, True)


def test_indexes_that_lie_are_found(run: Run, data: Path) -> None:
    index = data / "orders-0" / f"{NAME}.index"
    assert index.stat().st_size >= 8
    overwrite(index, 4, struct.pack(">i", 13))
    code, found = verified(run, data)
    assert (code, found["faults"][0]["path"]) == (1, str(index))
    (data / "orders-0" / f"{NAME}.timeindex").write_bytes(b"x" * 13)
    assert len(verified(run, data)[1]["faults"]) == 2


def test_batches_are_dumped_with_their_records(run: Run, data: Path) -> None:
    lines = [
        json.loads(line) for line in run("log", "dump", str(data / "orders-0"), "-r", "--json").stdout.splitlines()
    ]
    assert [line["base_offset"] for line in lines] == list(range(41))
    assert (lines[3]["codec"], lines[3]["log"], lines[3]["position"]) == (
        "gzip",
        "orders-0",
        positions(log_of(data))[3],
    )
    (record,) = lines[3]["records"]
    assert (record["key"], record["headers"]) == ("k3", [["h", {"base64": "/w=="}]])
    assert (lines[39]["is_transactional"], lines[40]["records"][0]["marker"]) == (True, "commit")


def test_a_dump_may_be_of_a_part(run: Run, data: Path) -> None:
    shown = run("log", "dump", str(log_of(data)), "--from", "5", "--count", "2").stdout.splitlines()
    assert [line.split()[1] for line in shown[1:]] == ["5-5", "6-6"]


def test_a_dump_of_damage_fails_and_shows_the_rest(run: Run, data: Path) -> None:
    overwrite(log_of(data), positions(log_of(data))[2] + HEADER_SIZE + 5, b"\xee")
    result = run("log", "dump", str(data / "orders-0"), "--json")
    assert (result.exit_code, "does not match its CRC-32C" in result.stderr) == (1, True)
    assert len(result.stdout.splitlines()) == 40


def test_indexes_are_dumped(run: Run, data: Path) -> None:
    entries = json.loads(run("log", "dump", str(data / "orders-0" / f"{NAME}.index"), "--json").stdout)
    places = positions(log_of(data))
    assert entries
    assert all(places[entry["offset"]] == entry["position"] for entry in entries)
    times = json.loads(run("log", "dump", str(data / "orders-0" / f"{NAME}.timeindex"), "--json").stdout)
    assert times[0].keys() == {"timestamp", "offset"}


@pytest.mark.parametrize("name", ["nowhere", "meta.properties", "empty"])
def test_what_is_no_log_is_told(run: Run, data: Path, name: str) -> None:
    (data / "empty").mkdir()
    for command in ("dump", "verify"):
        result = run("log", command, str(data / name))
        assert (result.exit_code, name in result.stderr) == (2, True)


def test_the_log_of_a_broker_that_runs_is_sound(run: Run, tmp_path: Path) -> None:
    with Broker(data=tmp_path / "live", topics=["t"]) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", b"v")
        assert producer.flush(30) == 0
        with (tmp_path / "live" / "t-0" / f"{NAME}.log").open("ab") as file:
            file.write(b"\0" * 30)  # as much as is there of a batch that is being written
        assert verified(run, tmp_path / "live")[0] == 0
        with (tmp_path / "live" / "t-0" / f"{NAME}.log").open("r+b") as file:
            file.truncate((tmp_path / "live" / "t-0" / f"{NAME}.log").stat().st_size - 30)
