"""The real disk, on a real directory."""

import errno
import itertools
import os
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from headrace.storage.disk import DirectoryLocked, RealDisk, StorageError


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


def test_a_file_grows_at_its_end_and_is_read_anywhere(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.create(f"{tmp_path}/f")
    file.append(b"hello ")
    file.append(memoryview(b"world"))
    assert file.size == 11
    assert file.pread(100, 6) == b"world"
    assert file.pread(5, 0) == b"hello"
    assert file.pread(5, 11) == b""


def test_appends_follow_a_truncation(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.create(f"{tmp_path}/f")
    file.append(b"0123456789")
    file.truncate(4)
    file.append(b"x")
    file.datasync()
    assert disk.read(f"{tmp_path}/f") == b"0123x"
    assert disk.open(f"{tmp_path}/f").size == 5


def test_a_short_write_is_completed(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:3]))
    file = disk.create(f"{tmp_path}/f")
    file.append(b"0123456789")
    assert file.size == 10
    assert disk.read(f"{tmp_path}/f") == b"0123456789"


def test_errors_name_the_path_and_tell_a_full_disk(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match="missing"):
        disk.open(f"{tmp_path}/missing")
    file = disk.create(f"{tmp_path}/f")

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError) as caught:
        file.append(b"x")
    assert caught.value.is_full
    assert caught.value.path == f"{tmp_path}/f"


def test_an_existing_file_is_never_created_over(disk: RealDisk, tmp_path: Path) -> None:
    disk.create(f"{tmp_path}/f").append(b"data")
    with pytest.raises(StorageError):
        disk.create(f"{tmp_path}/f")
    assert disk.read(f"{tmp_path}/f") == b"data"


def test_an_unlinked_file_can_be_read_until_its_last_reference_goes(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.create(f"{tmp_path}/f")
    file.append(b"data")
    disk.unlink(f"{tmp_path}/f")
    assert file.pread(4, 0) == b"data"
    descriptor = file.fileno()
    del file
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)


def test_a_file_is_replaced_as_a_whole(disk: RealDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/f"
    disk.write_atomically(path, b"one")
    disk.write_atomically(path, b"two")
    assert disk.read(path) == b"two"
    assert disk.listdir(str(tmp_path)) == ["f"]


def test_a_patch_keeps_the_beginning(disk: RealDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/f"
    disk.patch(path, 0, b"0123456789")
    disk.patch(path, 4, b"abc")
    assert disk.read(path) == b"0123abc"
    disk.patch(path, 2, b"")
    assert disk.read(path) == b"01"


def test_a_lock_is_held_by_one(disk: RealDisk, tmp_path: Path) -> None:
    lock = disk.lock(f"{tmp_path}/.lock")
    with pytest.raises(DirectoryLocked):
        disk.lock(f"{tmp_path}/.lock")
    lock.release()
    disk.lock(f"{tmp_path}/.lock").release()


def test_directories_are_listed_renamed_and_removed(disk: RealDisk, tmp_path: Path) -> None:
    disk.mkdir(f"{tmp_path}/a/b")
    disk.write(f"{tmp_path}/a/f", b"12345")
    assert sorted(disk.listdir(f"{tmp_path}/a")) == ["b", "f"]
    assert disk.sizes(f"{tmp_path}/a") == {"f": 5}
    disk.rename(f"{tmp_path}/a", f"{tmp_path}/c")
    disk.sync_directory(str(tmp_path))
    disk.rmtree(f"{tmp_path}/c")
    disk.rmtree(f"{tmp_path}/c")
    disk.unlink(f"{tmp_path}/nothing")
    assert not disk.exists(f"{tmp_path}/c")
    assert 0 < disk.free_bytes(str(tmp_path)) <= disk.total_bytes(str(tmp_path))


@pytest.mark.parametrize("most", [0, 1, 1000])
def test_what_waits_for_the_disk_is_all_done_with_as_many_threads_as_there_may_be(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    start, begun = Thread.start, itertools.count()

    def start_one(thread: Thread) -> None:
        if next(begun) >= most:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(Thread, "start", start_one)
    done: list[int] = []
    disk.do_all([partial(done.append, number) for number in range(100)])
    assert sorted(done) == list(range(100))
