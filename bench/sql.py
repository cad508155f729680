"""`headrace sql` beside DuckDB on a Parquet file of the same rows: the same engine and the same query.

The file has its columns apart and typed, so that DuckDB reads two of them; a topic has whole records of JSON, which are
fetched over the network and decoded first. The ratio says what that costs, and what writing a file first would gain.
"""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .model import CPU, BenchError, Figure, Sample, Work
from .produce import RELAXED, TOPIC
from .setting import Server, Setting

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 1_000_000
_PARTITIONS: Final = 4
_LAST: Final = _ROWS // _PARTITIONS - 1000
_QUERIES: Final = {
    "group": "SELECT customer, count(*) AS n, sum(total) AS total FROM {table} GROUP BY customer",
    "filter": "SELECT count(*) AS n FROM {table} WHERE status = 'failed' AND total > 90",
    "offsets": f"SELECT sum(total) AS total FROM {{table}} WHERE _offset >= {_LAST}",
}
_TITLES: Final = {
    "group": "groups 1,000,000 records of JSON by a field",
    "filter": "counts those of 1,000,000 records of JSON that meet conditions on fields",
    "offsets": "sums up the last 4,000 of 1,000,000 records of JSON, by their offsets",
}
Ask = Callable[[str], Any]


def topic(setting: Setting, *, query: str) -> Sample:
    """Rows of the topic per second of a query."""
    import headrace.sql
    from headrace.client.columnar import write_arrow

    with setting.broker() as server:
        server.create_topic(TOPIC, RELAXED, _PARTITIONS)
        write_arrow(_records(), TOPIC, bootstrap=server.bootstrap)
        read = {TOPIC: {"schema": "id BIGINT, customer STRING, status STRING, total DOUBLE", "keyFormat": "raw"}}

        def ask(text: str) -> Any:
            return headrace.sql.query(text, bootstrap=server.bootstrap, read=read)

        return _measured(ask, _QUERIES[query].format(table=f'"{TOPIC}"'), setting.seconds, server)


def file(setting: Setting, *, query: str) -> Sample:
    """The same of DuckDB on a file."""
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

    with setting.directory() as directory:
        path = directory / "rows.parquet"
        rows = pa.Table.from_pylist([json.loads(value) for value in _values()])
        offsets = pa.array([n // _PARTITIONS for n in range(_ROWS)], pa.int64())
        pq.write_table(rows.append_column("_offset", offsets), path, compression="zstd")
        connection = duckdb.connect()

        def ask(text: str) -> Any:
            return connection.sql(text).to_arrow_table()

        return _measured(ask, _QUERIES[query].format(table=f"'{path}'"), setting.seconds, None)


def _measured(ask: Ask, query: str, least: float, server: Server | None) -> Sample:
    if not len(ask(query)):
        raise BenchError("the query had no answer")
    cpu, start, asked = server.cpu_seconds() if server else 0.0, time.perf_counter(), 0
    while not asked or time.perf_counter() < start + least:
        ask(query)
        asked += 1
    seconds = time.perf_counter() - start
    sample = {"records": asked * _ROWS / seconds, "time": seconds / asked * 1000}
    return {**sample, CPU: (server.cpu_seconds() - cpu) / asked} if server else sample


def _records() -> "pa.Table":
    import pyarrow as pa

    partitions = pa.array([n % _PARTITIONS for n in range(_ROWS)], pa.int32())
    return pa.table({"value": list(_values()), "partition": partitions})


def _values() -> Iterator[str]:
    for n in range(_ROWS):
        status = "failed" if n % 50 == 0 else "paid"
        yield f'{{"id":{n},"customer":"customer-{n % 1000}","status":"{status}","total":{n * 7 % 10000 / 100}}}'


def works() -> list[Work]:
    return [
        Work(
            name=f"sql-{name}",
            title=f"headrace sql {title}",
            against="DuckDB on a Parquet file of the same rows",
            figures=(
                Figure(key="records", label="", unit="records/s"),
                Figure(key="time", label="one query", unit="ms"),
            ),
            broker=partial(topic, query=name),
            ceiling=partial(file, query=name),
            cpu_unit="s/query",
        )
        for name, title in _TITLES.items()
    ]
