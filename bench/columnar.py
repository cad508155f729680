"""The columnar client beside confluent-kafka: the same topic, the same records, one core for the client.

What stands where other works have their ceiling is the client that there was before.
"""

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from . import client
from .frames import batch_up_to
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from .produce import RELAXED, TOPIC, fill
from .setting import Server, Setting

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.columnar import Cluster, Range

_FILL_BYTES: Final = 400_000_000
_BATCH_SIZE: Final = 64 * 1024
_ROWS_BYTES: Final = 20_000_000
"""Of the rows that are written again and again."""
_WARM_ROWS: Final = 1000
_KEYS: Final = 100_000
_AIMS: Final = {100: Aim(of=Of.RATIO, bound=10, at_least=True), 1000: Aim(of=Of.RATIO, bound=3, at_least=True)}
"""By the size of records: the larger they are, the more of the work is moving bytes, which any client must."""


def read(setting: Setting, *, value_size: int) -> Sample:
    """Records per second of a topic in the page cache, read again and again."""
    from headrace.client.columnar import Range

    batch = batch_up_to(_BATCH_SIZE, value_size)
    count = _FILL_BYTES // len(batch.data)
    whole = Range(TOPIC, 0, 0, batch.records * count)
    with setting.broker() as server, _cluster(server) as cluster:
        server.create_topic(TOPIC, RELAXED)
        fill(server, TOPIC, batch, count)
        _read_until(cluster, whole, 0.0)
        cpu, start = server.cpu_seconds(), time.perf_counter()
        taken = _read_until(cluster, whole, start + setting.seconds)
        seconds, used = time.perf_counter() - start, server.cpu_seconds() - cpu
    return _sample(taken, value_size, seconds, used)


def _read_until(cluster: "Cluster", whole: "Range", deadline: float) -> int:
    """Read the range, and again as long as there is time."""
    from headrace.client.columnar import read_ranges

    taken = 0
    while True:
        before = taken
        for rows in read_ranges(cluster, [whole]):
            taken += rows.num_rows
        if taken - before != whole.end:
            raise BenchError(f"{taken - before} of {whole.end} records were read")
        if time.perf_counter() >= deadline:
            return taken


def write(setting: Setting, *, value_size: int, keyed: bool = False) -> Sample:
    """Records per second from the first row to the last acknowledgement."""
    from headrace.client.columnar import Writer

    rows = _rows(_ROWS_BYTES // value_size, value_size, keyed=keyed)
    partitions = 12 if keyed else 1
    with setting.broker() as server, _cluster(server) as cluster:
        server.create_topic(TOPIC, RELAXED, partitions)
        with Writer(cluster) as writer:
            writer.write(rows.slice(0, _WARM_ROWS), TOPIC)
        count = 0
        cpu, start = server.cpu_seconds(), time.perf_counter()
        with Writer(cluster) as writer:
            while time.perf_counter() < start + setting.seconds:
                writer.write(rows, TOPIC)
                count += rows.num_rows
        seconds, used = time.perf_counter() - start, server.cpu_seconds() - cpu
        if sum(writer.written.values()) != count:
            raise BenchError(f"{sum(writer.written.values())} of {count} records were written")
    return _sample(count, value_size, seconds, used)


def _rows(count: int, value_size: int, *, keyed: bool) -> "pa.RecordBatch":
    import pyarrow as pa

    value = bytes(n * 131 % 251 for n in range(value_size))
    columns = {"value": pa.array([value] * count)}
    if keyed:
        columns["key"] = pa.array([b"%d" % (n % _KEYS) for n in range(count)])
    return pa.record_batch(columns)


def _cluster(server: Server) -> "Cluster":
    from headrace.client.columnar import Cluster

    return Cluster({"bootstrap.servers": server.bootstrap})


def _sample(count: int, value_size: int, seconds: float, cpu: float) -> Sample:
    size = count * value_size
    return {"records": count / seconds, "rate": size / seconds / 1e6, CPU: cpu / (size / 1e9)}


def _figures(aim: Aim | None) -> tuple[Figure, ...]:
    return (
        Figure(key="records", label="", unit="records/s", aim=aim),
        Figure(key="rate", label="", unit="MB/s"),
    )


def _works() -> Iterator[Work]:
    for value_size, words in ((100, "100b"), (1000, "1k")):
        yield Work(
            name=f"columnar-read-{words}",
            title=f"columnar client reads, {value_size:,} B records",
            against="confluent-kafka's consume(10,000) on the same topic",
            figures=_figures(_AIMS[value_size]),
            broker=partial(read, value_size=value_size),
            ceiling=partial(client.consume, value_size=value_size),
            cpu_unit="s/GB",
        )
        yield Work(
            name=f"columnar-write-{words}",
            title=f"columnar client writes, {value_size:,} B records, no fsync",
            against="confluent-kafka's produce to the same topic",
            figures=_figures(_AIMS[value_size]),
            broker=partial(write, value_size=value_size),
            ceiling=partial(client.produce, value_size=value_size, durable=False),
            cpu_unit="s/GB",
        )
    yield Work(
        name="columnar-write-keys",
        title="columnar client writes by key to 12 partitions, 100 B records, no fsync",
        against="",
        figures=_figures(None),
        broker=partial(write, value_size=100, keyed=True),
        cpu_unit="s/GB",
    )


def works() -> list[Work]:
    return list(_works())
