"""The simulated disk forgets what a real one may forget, and nothing else."""

import errno

import pytest

from headrace.storage.disk import DirectoryLocked, StorageError
from headrace.testing.disk import PowerLost, SimulatedDisk


def with_file(synced: bytes, unsynced: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    file = disk.create("/d/f")
    file.append(synced)
    file.datasync()
    disk.sync_directory("/")
    disk.sync_directory("/d")
    file.append(unsynced)
    return disk


def test_synced_bytes_survive_and_others_are_lost() -> None:
    disk = with_file(b"safe", b"gone")
    disk.crash()
    assert disk.read("/d/f") == b"safe"


def test_a_cut_decides_about_unsynced_bytes_only() -> None:
    disk = with_file(b"safe", b"gone")
    disk.crash(cut=lambda _, lost: lost[:2] + b"??")
    assert disk.read("/d/f") == b"safego??"


def test_a_name_is_lost_unless_its_directory_was_synced() -> None:
    disk = with_file(b"", b"")
    disk.create("/d/new").datasync()
    disk.rename("/d/f", "/d/g")
    disk.crash()
    assert disk.paths() == ["/d/f"]


def test_changes_of_names_survive_in_their_order() -> None:
    disk = with_file(b"", b"")
    disk.create("/d/new")
    disk.rename("/d/f", "/d/g")
    disk.crash(names_kept=1)
    assert disk.paths() == ["/d/f", "/d/new"]


def test_a_synced_directory_keeps_its_names() -> None:
    disk = with_file(b"x", b"")
    disk.rename("/d", "/e")
    disk.sync_directory("/")
    disk.crash()
    assert disk.paths() == ["/e/f"]


def test_what_is_lost_stays_lost_and_uses_up_no_fault() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/data")
    disk.mkdir("/data/t-0")
    disk.create("/data/t-0/x").close()
    for directory in ("/", "/data", "/data/t-0"):
        disk.sync_directory(directory)
    disk.fail(errno.EIO)
    disk.lose("/data/t-0")
    assert disk.has_faults
    disk.heal()
    disk.crash()
    assert disk.listdir("/data") == []


@pytest.mark.parametrize("names_kept", range(4))
def test_nothing_of_a_lost_directory_comes_back_in_a_new_one_of_its_name(names_kept: int) -> None:
    disk = with_file(b"safe", b"")
    disk.create("/d/unsafe").close()
    disk.lose("/d")
    disk.mkdir("/d")
    disk.sync_directory("/")
    disk.crash(names_kept=names_kept)
    assert disk.listdir("/d") == []


def test_a_truncation_may_be_undone() -> None:
    disk = with_file(b"0123456789", b"")
    file = disk.open("/d/f")
    file.truncate(4)
    file.append(b"abc")
    disk.crash()
    assert disk.read("/d/f") == b"0123456789"


def test_a_replaced_file_is_old_or_new_wherever_the_power_goes() -> None:
    seen = set()
    for step in range(8):
        disk = with_file(b"old", b"")
        disk.lose_power(step)
        try:
            disk.write_atomically("/d/f", b"new")
        except PowerLost:
            pass
        disk.crash()
        seen.add(disk.read("/d/f"))
    assert seen == {b"old", b"new"}


def test_nothing_works_while_the_power_is_off() -> None:
    disk = with_file(b"", b"")
    file = disk.open("/d/f")
    disk.lose_power(0)
    for _ in range(2):
        with pytest.raises(PowerLost):
            file.append(b"x")
    disk.crash()
    with pytest.raises(PowerLost):
        file.append(b"x")


def test_a_fault_strikes_the_operation_it_is_meant_for() -> None:
    disk = with_file(b"", b"")
    disk.fail(errno.EIO, kind="append", path="/d/f", after=1, written=2)
    file = disk.open("/d/f")
    file.append(b"first")
    with pytest.raises(StorageError) as caught:
        file.append(b"second")
    assert caught.value.errno == errno.EIO
    assert disk.content("/d/f") == b"firstse"
    file.append(b"third")


def test_after_a_failed_sync_later_ones_lie() -> None:
    disk = with_file(b"safe", b"gone")
    disk.fail(errno.EIO, kind="datasync")
    file = disk.open("/d/f")
    with pytest.raises(StorageError):
        file.datasync()
    file.datasync()
    disk.crash()
    assert disk.read("/d/f") == b"safe"


def test_a_full_disk_takes_what_fits() -> None:
    disk = SimulatedDisk(capacity=5)
    file = disk.create("/f")
    with pytest.raises(StorageError) as caught:
        file.append(b"1234567")
    assert caught.value.is_full
    assert disk.content("/f") == b"12345"
    assert disk.free_bytes("/") == 0


def test_locks_end_with_the_process() -> None:
    disk = SimulatedDisk()
    disk.lock("/l")
    with pytest.raises(DirectoryLocked):
        disk.lock("/l")
    disk.kill()
    disk.lock("/l").release()
    disk.lock("/l")
