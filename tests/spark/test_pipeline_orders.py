"""The orders example: what comes out is what a plain program makes of what went in."""

from pathlib import Path
from typing import Any

import pytest

from headrace.spark.pipeline.loading import load
from headrace.spark.pipeline.paths import paths_of
from headrace.spark.pipeline.run import RunOptions, run_with
from tests.support.spark.pipelines import Silent, pipeline_settings
from tests.support.spark.shop import FILE, open_shop


@pytest.mark.timeout(600)
def test_orders_are_joined_summed_up_and_watched(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHIVE", str(tmp_path / "archive"))
    with open_shop() as shop, pipeline_settings(spark):
        declaration = load(FILE)
        paths = paths_of(declaration, str(tmp_path / "checkpoint"))
        ended = run_with(spark, declaration, paths, RunOptions(bootstrap=shop.bootstrap, once=True), Silent())
        assert shop.wrong(tmp_path / "archive", ended[0].watermark) == []
    assert {sink.sink: sink.lag for sink in ended} == {"revenue": 0, "frauds": 0, "archive": 0}
