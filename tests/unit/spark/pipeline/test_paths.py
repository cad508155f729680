import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark.pipeline.failures import PipelineFailed
from headrace.spark.pipeline.paths import PipelinePaths, only_runner, paths_of
from headrace.spark.pipeline.session import SparkTarget, settings_for
from tests.support.spark.declarations import MINIMAL, declare


def test_progress_is_kept_beside_the_file(tmp_path: Path) -> None:
    paths = paths_of(declare(tmp_path, MINIMAL), None)
    assert paths.checkpoint_of("copy") == str(tmp_path / ".headrace" / "small" / "copy")
    assert paths.log == tmp_path / ".headrace" / "small" / "spark.log"


def test_a_declared_directory_starts_at_the_file_and_a_given_one_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = declare(tmp_path, MINIMAL + "checkpoint: state\n")
    assert paths_of(pipeline, None).local == tmp_path / "state"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert paths_of(pipeline, "mine").local == tmp_path / "elsewhere" / "mine"


def test_a_checkpoint_out_of_reach_leaves_lock_and_log_beside_the_file(tmp_path: Path) -> None:
    paths = paths_of(declare(tmp_path, MINIMAL), "s3a://bucket/dir/")
    assert paths.checkpoint_of("copy") == "s3a://bucket/dir/copy"
    assert paths.local == tmp_path / ".headrace" / "small"


def test_a_pipeline_has_one_runner(tmp_path: Path) -> None:
    paths = PipelinePaths(str(tmp_path), tmp_path)
    with (
        only_runner(paths),
        pytest.raises(PipelineFailed, match=rf"runs already \(process {os.getpid()}\)"),
        only_runner(paths),
    ):
        pass
    with only_runner(paths):
        pass


def test_a_child_of_a_killed_runner_keeps_the_next_one_waiting(tmp_path: Path) -> None:
    paths = PipelinePaths(str(tmp_path), tmp_path)
    code = (
        "import sys, os, subprocess; from pathlib import Path\n"
        "from headrace.spark.pipeline.paths import PipelinePaths, only_runner\n"
        "with only_runner(PipelinePaths(sys.argv[1], Path(sys.argv[1]))) as lock:\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0, stdout=2, pass_fds=[lock])\n"
        "    print(child.pid, flush=True)\n"
        "    os._exit(9)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as killed:
        assert killed.stdin is not None
        assert killed.wait() == 9
        with pytest.raises(BlockingIOError):
            _take_at_once(paths)
        killed.stdin.close()
        with only_runner(paths):
            pass


def _take_at_once(paths: PipelinePaths) -> None:
    import fcntl

    with paths.lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_users_setting_of_spark_comes_before_ours() -> None:
    settings = settings_for(SparkTarget(), "shop", {"spark.sql.session.timeZone": "Europe/Paris"}, cores=4)
    assert settings["spark.sql.session.timeZone"] == "Europe/Paris"
    assert settings["spark.sql.shuffle.partitions"] == "4"
    assert settings["spark.sql.streaming.stateStore.providerClass"].endswith("RocksDBStateStoreProvider")


def test_a_cluster_and_spark_connect_get_no_settings_of_this_machine() -> None:
    cluster = settings_for(SparkTarget(master="spark://h:7077"), "shop", {}, cores=4)
    assert "spark.sql.shuffle.partitions" not in cluster
    remote = settings_for(SparkTarget(remote="sc://h:15002"), "shop", {}, cores=4)
    assert "spark.master" not in remote
