"""The orders example on a Spark standalone cluster and behind Spark Connect, each from what pip installs."""

from pathlib import Path

import pytest

from tests.support.spark.pipelines import PipelineProcess
from tests.support.spark.shop import FILE, open_shop
from tests.support.spark.standalone import LEAN, connect_server, standalone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.long]


def test_a_cluster_runs_the_pipeline(tmp_path: Path) -> None:
    settings = {
        "spark.executor.memory": "700m",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": LEAN,
        "spark.executor.extraJavaOptions": LEAN,
    }
    with open_shop() as shop, standalone(tmp_path) as master:
        arguments = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        watermark = run_once(tmp_path, shop.bootstrap, "--master", master, *arguments)
        assert shop.wrong(tmp_path / "archive", watermark) == []
    assert len(list(tmp_path.glob("worker-*/app-*"))) == 2, "an executor on each worker"


def test_spark_connect_runs_the_pipeline(tmp_path: Path) -> None:
    with open_shop() as shop, connect_server(tmp_path) as remote:
        watermark = run_once(tmp_path, shop.bootstrap, "--remote", remote)
        assert shop.wrong(tmp_path / "archive", watermark) == []


def run_once(directory: Path, bootstrap: str, *arguments: str) -> str | None:
    """Run the example over what is there; the watermark that the sums of revenue came to."""
    paths = ("--bootstrap", bootstrap, "--checkpoint", str(directory / "checkpoint"), "--once")
    with PipelineProcess(FILE, *paths, *arguments, environment={"ARCHIVE": str(directory / "archive")}) as run:
        assert run.ended() == 0, run.errors
        sinks = {sink["sink"]: sink for sink in run.event("ended")["sinks"]}
    watermark: str | None = sinks["revenue"]["watermark"]
    return watermark
