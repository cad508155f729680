"""Archiving topics, beside Spark's own writer of Parquet files with the same rows; and one job with many topics."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from ..model import Aim, Figure, Of, Sample, Work
from ..produce import RELAXED
from ..setting import Server, Setting
from . import topics
from .session import driver

_MANY_ROWS: Final = 1_000_000
_MANY: Final = (10, 100)
Filled = Callable[[Setting], AbstractContextManager[Server]]


def _stream(setting: Setting, server: Server, names: str, rows: int, row_bytes: int, **task: Any) -> Sample:
    """One micro-batch over everything that topics have, the second of two: the first starts workers."""
    options = {
        "kafka.bootstrap.servers": server.bootstrap,
        "subscribe": names,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }
    for _ in range(2):
        with setting.directory() as directory:
            seconds = driver().run(
                kind="archive",
                options=options,
                checkpoint=str(directory / "checkpoint"),
                path=str(directory / "tables"),
                **task,
            )["seconds"]
    return {"rows": rows / seconds, "bytes": rows * row_bytes / seconds / 1e6}


def _one(filled: Filled, rows: int, row_bytes: int, form: str, compression: str) -> Callable[[Setting], Sample]:
    def measure(setting: Setting) -> Sample:
        with filled(setting) as server:
            return _stream(setting, server, topics.TOPIC, rows, row_bytes, format=form, compression=compression)

    return measure


def _many(count: int, row_bytes: int) -> Callable[[Setting], Sample]:
    """The same rows, in so many topics of one partition each."""

    def measure(setting: Setting) -> Sample:
        from headrace.client.columnar import Cluster, Writer

        from .synthetic import BATCH_ROWS
        from .synthetic import rows as synthetic

        batch = synthetic(BATCH_ROWS).select(["key", "value"])
        names = [f"bench-{number}" for number in range(count)]
        with topics.broker(setting) as server:
            for name in names:
                server.create_topic(name, RELAXED, 1)
            with Cluster({"bootstrap.servers": server.bootstrap}) as cluster, Writer(cluster) as writer:
                share = max(_MANY_ROWS // count, 1)
                for name in names:
                    for start in range(0, share, len(batch)):
                        writer.write(batch.slice(0, min(len(batch), share - start)), name)
            return _stream(
                setting, server, ",".join(names), _MANY_ROWS, row_bytes, format="parquet-table", compression="zstd"
            )

    return measure


def works(filled: Filled, rows: int, row_bytes: int) -> list[Work]:
    aimed = Figure(key="rows", label="rows", unit="/s", aim=Aim(of=Of.RATIO, bound=0.5, at_least=True))
    plain = Figure(key="rows", label="rows", unit="/s")
    size = Figure(key="bytes", label="", unit="MB/s")
    own = _one(filled, rows, row_bytes, "parquet", "zstd")
    return [
        *(
            Work(
                name=f"archive-{form}",
                title=f"Spark, a topic to a table of {title}",
                against="Spark's own Parquet files of the same rows (zstd both)",
                figures=(aimed, size),
                broker=_one(filled, rows, row_bytes, f"{form}-table", "zstd"),
                ceiling=own,
                rounds=2,
            )
            for form, title in (("parquet", "Parquet"), ("delta", "Delta Lake"), ("iceberg", "Iceberg"))
        ),
        *(
            Work(
                name=f"archive-{count}-topics",
                title=f"Spark, {count} topics to tables in one job",
                against="the same rows in one topic",
                figures=(plain, size),
                broker=_many(count, row_bytes),
                ceiling=_many(1, row_bytes),
                rounds=1,
            )
            for count in _MANY
        ),
    ]
