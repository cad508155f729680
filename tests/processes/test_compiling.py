"""Kernels are compiled once, wherever a cache can be kept, and work where none can."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

_SCRIPT = """
import pyarrow as pa
from headrace.client.columnar import decode, encode, hashing
import sys
assert "numba" not in sys.modules
rows = pa.RecordBatch.from_pydict({"key": [b"k"], "value": [b"v"]})
(batch,) = encode.encode_rows(rows, now_ms=5)
encode.seal_for(batch, -1, -1, -1, transactional=False)
found, following = decode.FetchDecoder("t", 0, with_headers=True).decode(batch.data, 0, 9)
assert found.column("value").to_pylist() == [b"v"], found
assert hashing.partitions_of(rows.column("key"), 1, 0).tolist() == [0]
from headrace.client.columnar import _decoding, _encoding
kernels = [one for module in (_decoding, _encoding) for one in vars(module).values() if hasattr(one, "stats")]
print("loaded", sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels))
"""
_KERNELS = 7


def _started(**environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _loaded(process: subprocess.Popen[str]) -> int:
    """How many kernels came out of the cache."""
    out, err = process.communicate(timeout=500)
    assert process.returncode == 0, err
    return int(out.split()[-1])


@pytest.fixture(scope="module")
def filled_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that two processes filled at the same time."""
    cache = tmp_path_factory.mktemp("cache")
    for process in [_started(NUMBA_CACHE_DIR=str(cache)) for _ in range(2)]:
        _loaded(process)
    return cache


def test_processes_that_compile_at_once_leave_a_cache_that_is_whole(filled_cache: Path) -> None:
    assert _loaded(_started(NUMBA_CACHE_DIR=str(filled_cache))) == _KERNELS


def test_a_cache_that_cannot_be_read_is_not_used(filled_cache: Path, tmp_path: Path) -> None:
    broken = tmp_path / "cache"
    shutil.copytree(filled_cache, broken)
    for index in broken.rglob("*.nbi"):
        index.write_bytes(b"nothing that anyone pickled")
    assert _loaded(_started(NUMBA_CACHE_DIR=str(broken))) == 0


def test_the_users_directory_serves_when_the_package_cannot_be_written_to(tmp_path: Path) -> None:
    only_the_users = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserWideCacheLocator", "XDG_CACHE_HOME": str(tmp_path)}
    _loaded(_started(**only_the_users))
    assert _loaded(_started(**only_the_users)) == _KERNELS
    assert list(tmp_path.rglob("*.nbi"))


def test_kernels_work_where_no_cache_can_be_kept() -> None:
    nowhere = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator", "NUMBA_CACHE_DIR": "/proc/nowhere"}
    assert _loaded(_started(**nowhere)) == 0
