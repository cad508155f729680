"""Brokers with a topic, and a registry beside them, on all cores as Spark is."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.request import Request, urlopen

import pyarrow as pa

from .. import machine
from ..produce import RELAXED
from ..setting import Server, Setting
from . import orders

TOPIC: Final = "bench"
PARTITIONS: Final = 4
_DISTINCT: Final = 40_000
_SECONDS: Final = 10.0


@contextmanager
def broker(setting: Setting) -> Iterator[Server]:
    """A broker with an empty topic."""
    with setting.broker() as server:
        machine.free(server.pid)
        server.create_topic(TOPIC, RELAXED, PARTITIONS)
        yield server


@contextmanager
def registry(setting: Setting, server: Server) -> Iterator[str]:
    """The URL of a gateway, which is a schema registry."""
    command = [sys.executable, "-m", "headrace.cli", "gateway", "--bootstrap", server.bootstrap]
    with (
        setting.directory() as own,
        setting.running([*command, "--http", "127.0.0.1:0"], own) as gateway,
    ):
        machine.free(gateway.pid)
        yield f"http://{gateway.bootstrap}"


def register(url: str, schema: str) -> int:
    """The id of an Avro schema, registered for the values of the topic."""
    request = Request(f"{url}/subjects/{TOPIC}-value/versions", json.dumps({"schema": schema}).encode())
    request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
    with urlopen(request, timeout=_SECONDS) as answer:
        found: int = json.load(answer)["id"]
    return found


def fill(server: Server, batch: pa.RecordBatch, rows: int) -> None:
    """Write a batch again and again until there are so many rows."""
    from headrace.client.columnar import Cluster, Writer

    with Cluster({"bootstrap.servers": server.bootstrap}) as cluster, Writer(cluster) as writer:
        for _ in range(rows // len(batch)):
            writer.write(batch, TOPIC)


def orders_in(encode: Callable[[dict[str, Any]], bytes]) -> pa.RecordBatch:
    """Some thousand different orders."""
    numbers = range(_DISTINCT)
    keys = pa.array([str(number).encode() for number in numbers], pa.binary())
    return pa.record_batch({"key": keys, "value": pa.array([encode(orders.order(n)) for n in numbers], pa.binary())})


def count_records(server: Server) -> int:
    """How many records the topic has that are committed."""
    from headrace.client.columnar import scan_arrow

    batches = scan_arrow(TOPIC, bootstrap=server.bootstrap, isolation_level="read_committed")
    return sum(batch.num_rows for batch in batches)
