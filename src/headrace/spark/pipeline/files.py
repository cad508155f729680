"""Which files of a Parquet sink count, for readers other than Spark.

A batch that was cut off leaves files behind which its repetition writes anew. Spark therefore keeps a log of the files
that finished batches wrote, `_spark_metadata`, and reads only those: one text file for each batch, and now and then one
that sums up all before it.

    pyarrow.parquet.read_table(committed_files("out/orders"))
"""

import json
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_LOG: Final = "_spark_metadata"
_SUMMARY: Final = ".compact"


def committed_files(directory: str | Path) -> list[str]:
    """The paths of the files that finished batches wrote to a sink's directory on this machine."""
    log = Path(directory) / _LOG
    if not log.is_dir():
        return []
    batches = {int(file.name.removesuffix(_SUMMARY)): file for file in log.iterdir() if _is_batch(file)}
    start = max((number for number, file in batches.items() if file.name.endswith(_SUMMARY)), default=-1)
    paths: dict[str, None] = {}
    for _, file in sorted((number, file) for number, file in batches.items() if number >= start):
        for line in file.read_text().splitlines()[1:]:
            entry = json.loads(line)
            paths[unquote(urlsplit(entry["path"]).path)] = None
    return list(paths)


def _is_batch(file: Path) -> bool:
    return file.name.removesuffix(_SUMMARY).isdigit()
