import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.cli.doctor.data_directory import check_directory, check_port
from headrace.cli.doctor.machine import (
    GIB,
    MIB,
    Finding,
    Status,
    assess_clock,
    assess_crc32c,
    assess_file_size,
    assess_filesystem,
    assess_memory,
    assess_open_files,
    assess_python,
    assess_space,
    assess_swap,
    assess_syncs,
    filesystem_of,
    nearest_existing,
    read_meminfo,
)
from tests.support.cli import Run

OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (assess_python((3, 10, 1)), FAIL),
        (assess_python((3, 11, 0)), OK),
        (assess_crc32c(hardware=False), WARN),
        (assess_open_files(256), FAIL),
        (assess_open_files(4096), WARN),
        (assess_open_files(100_000), OK),
        (assess_open_files(-1), OK),
        (assess_file_size(1000), FAIL),
        (assess_memory(64 * MIB, None), FAIL),
        (assess_memory(GIB, 300 * MIB), WARN),
        (assess_memory(GIB, None), OK),
        (assess_memory(None, None), WARN),
        (assess_swap(0, 60), OK),
        (assess_swap(GIB, 60), WARN),
        (assess_swap(GIB, 1), OK),
        (assess_clock(0.0, 0.0), FAIL),
        (assess_clock(1.8e9, 0.3), WARN),
        (assess_clock(1.8e9, 0.001), OK),
        (assess_space(MIB, 100 * GIB), FAIL),
        (assess_space(4 * GIB, 10 * GIB), WARN),
        (assess_space(50 * GIB, 100 * GIB), OK),
        (assess_filesystem("tmpfs"), WARN),
        (assess_filesystem("nfs4"), WARN),
        (assess_filesystem("xfs"), OK),
        (assess_syncs([0.05, 0.06]), WARN),
        (assess_syncs([0.001, 0.5, 0.001]), OK),
    ],
    ids=lambda value: f"{value.check}: {value.found}" if isinstance(value, Finding) else None,
)
def test_judgements(finding: Finding, expected: Status) -> None:
    assert finding.status is expected
    assert bool(finding.advice) is (expected is not OK)


def test_meminfo_is_read_in_bytes() -> None:
    assert read_meminfo("MemAvailable:  2048 kB\nHugePages_Total: 1\nOdd line\n")["MemAvailable"] == 2 * MIB


def test_the_innermost_mount_names_the_file_system() -> None:
    mounts = "a / ext4 rw 0 0\nb /var tmpfs rw 0 0\nc /var/my\\040disk xfs rw 0 0\n"
    assert filesystem_of(Path("/var/my disk/data"), mounts) == "xfs"
    assert filesystem_of(Path("/variable"), mounts) == "ext4"


def test_a_directory_to_be_is_judged_by_its_parent(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "meta.properties").write_text("#x\nversion=1\nnode.id=4\ncluster.id=abc\n")
    return tmp_path


def test_an_unclean_directory_is_named_with_its_owner(data: Path) -> None:
    (finding,) = check_directory(data)
    assert finding.status is WARN
    assert "broker 4 of cluster abc, 1 logs, not shut down cleanly" in finding.found


def test_a_clean_directory_is_well(data: Path) -> None:
    (data / ".kafka_cleanshutdown").touch()
    (finding,) = check_directory(data)
    assert finding.status is OK


def test_a_locked_directory_is_in_use(data: Path) -> None:
    with (data / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (finding,) = check_directory(data)
    assert (finding.status, "in use by a running broker" in finding.found) == (OK, True)


def test_a_directory_from_the_future_tells_of_the_clock(data: Path) -> None:
    os.utime(data / "orders-0", (9e9, 9e9))
    (finding,) = check_directory(data)
    assert "clock went back" in finding.advice


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    (finding,) = check_directory(tmp_path / "x")
    assert finding.status is FAIL


@contextmanager
def listening() -> Iterator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield int(holder.getsockname()[1])


def test_ports_are_free_or_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.doctor.data_directory._PROBE_SECONDS", 0.05)
    with listening() as port:
        assert check_port("broker", port).status is WARN
    assert check_port("broker", port).status is OK


def test_the_command_reports_in_json(run: Run, data: Path) -> None:
    result = run("doctor", "--json", "--data", str(data))
    report = json.loads(result.stdout)
    assert report["ok"] is (result.exit_code == 0)
    assert {"python", "open files", "disk sync", "data directory"} <= {c["check"] for c in report["checks"]}


def test_a_failed_check_is_the_exit_code(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    result = run("doctor", "--data", str(tmp_path / "x"))
    assert result.exit_code == 1
    assert "fail  data directory" in result.stdout
