import json
from pathlib import Path

from headrace.spark.pipeline.files import committed_files


def write(log: Path, batch: str, *names: str) -> None:
    entries = [json.dumps({"path": f"file:///out/{name}", "size": 1, "action": "add"}) for name in names]
    (log / batch).write_text("\n".join(["v1", *entries]))


def test_files_of_finished_batches_count(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    write(log, "8", "country=DE/a%20b.parquet")
    write(log, "9.compact", "country=DE/a%20b.parquet", "c.parquet")
    write(log, "10", "d.parquet")
    write(log, "11")
    (log / ".11.crc").write_text("")
    (tmp_path / "left-behind.parquet").write_text("")
    assert committed_files(tmp_path) == ["/out/country=DE/a b.parquet", "/out/c.parquet", "/out/d.parquet"]


def test_a_sink_that_never_finished_a_batch_has_no_files(tmp_path: Path) -> None:
    assert committed_files(tmp_path / "nothing") == []
