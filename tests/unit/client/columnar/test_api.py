"""Topics as tables, in one call."""

import datetime
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.columnar import (
    SCHEMA,
    SCHEMA_WITH_HEADERS,
    OffsetsGone,
    TopicPartition,
    UnknownTopic,
    read_arrow,
    scan_arrow,
    write_arrow,
)
from headrace.client.errors import ClientError
from headrace.testing import Broker

NOON = datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t", 2)
        times = [NOON + datetime.timedelta(minutes=n // 2) for n in range(20)]
        rows = pa.table(
            {
                "value": [f"{n % 2}:{n // 2}" for n in range(20)],
                "partition": pa.array([n % 2 for n in range(20)], pa.int32()),
                "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
            }
        )
        counts = write_arrow(rows, "t", bootstrap=running.bootstrap)
        assert counts == {TopicPartition("t", 0): 10, TopicPartition("t", 1): 10}
        yield running


def values(table: pa.Table) -> list[str]:
    return [value.decode() for value in table["value"].to_pylist()]


def expected(first: int, last: int, *partitions: int) -> list[str]:
    return [f"{number}:{offset}" for number in partitions or (0, 1) for offset in range(first, last)]


def test_a_topic_is_a_table_one_partition_after_the_other(broker: Broker) -> None:
    table = read_arrow("t", bootstrap=broker.bootstrap)
    assert values(table) == expected(0, 10)
    assert table.schema.equals(SCHEMA)
    assert table["offset"].to_pylist() == [*range(10), *range(10)]


@pytest.mark.parametrize(
    ("bounds", "first", "last"),
    [
        ({"start": 3}, 3, 10),
        ({"end": 3}, 0, 3),
        ({"start": 3, "end": 7}, 3, 7),
        ({"start": "latest"}, 10, 10),
        ({"end": "earliest"}, 0, 0),
        ({"start": 7, "end": 3}, 0, 0),
        ({"start": {0: 4, 1: 4}, "end": {0: 6, 1: 6}}, 4, 6),
        ({"start": NOON + datetime.timedelta(minutes=5)}, 5, 10),
        ({"end": NOON + datetime.timedelta(minutes=5)}, 0, 5),
        ({"start": NOON + datetime.timedelta(days=5)}, 0, 0),
        ({"end": NOON + datetime.timedelta(days=5)}, 0, 10),
        ({"start": NOON - datetime.timedelta(days=5)}, 0, 10),
    ],
)
def test_both_ends_can_be_words_offsets_or_times(broker: Broker, bounds: Any, first: int, last: int) -> None:
    assert values(read_arrow("t", bootstrap=broker.bootstrap, **bounds)) == expected(first, last)


def test_a_time_is_met_to_the_millisecond(broker: Broker) -> None:
    broker.create_topic("times")
    times = [NOON + datetime.timedelta(milliseconds=n) for n in range(1000)]
    rows = pa.table({"value": ["v"] * 1000, "timestamp": pa.array(times, pa.timestamp("ms", "UTC"))})
    write_arrow(rows, "times", bootstrap=broker.bootstrap)
    for offset in range(0, 1000, 41):
        found = read_arrow("times", bootstrap=broker.bootstrap, start=times[offset], columns=["offset"])
        assert found["offset"][0].as_py() == offset
    between = NOON + datetime.timedelta(microseconds=500_500)
    assert read_arrow("times", bootstrap=broker.bootstrap, start=between)["offset"][0].as_py() == 501
    assert read_arrow("times", bootstrap=broker.bootstrap, end=between.astimezone(None)).num_rows == 501


def test_partitions_columns_and_headers_are_chosen(broker: Broker) -> None:
    where: dict[str, Any] = {"bootstrap": broker.bootstrap}
    assert values(read_arrow("t", partitions=[1], start={1: 8}, **where)) == expected(8, 10, 1)
    assert read_arrow("t", columns=["offset", "value"], **where).schema.names == ["offset", "value"]
    assert read_arrow("t", columns=["headers"], **where).schema.names == ["headers"]
    assert read_arrow("t", headers=True, **where).schema.equals(SCHEMA_WITH_HEADERS)
    assert read_arrow("t", start="latest", columns=["key"], **where).num_rows == 0


def test_several_topics_are_one_table(broker: Broker) -> None:
    broker.create_topic("u")
    write_arrow(pa.table({"value": ["x"]}), "u", bootstrap=broker.bootstrap)
    table = read_arrow(["u", "t"], bootstrap=broker.bootstrap)
    assert values(table) == ["x", *expected(0, 10)]
    assert table["topic"].to_pylist() == ["u"] + ["t"] * 20


def test_a_stream_gives_the_same_as_the_table(broker: Broker) -> None:
    stream = scan_arrow("t", bootstrap=broker.bootstrap, columns=["value", "partition"], start=2)
    assert isinstance(stream, pa.RecordBatchReader)
    table = stream.read_all().sort_by("partition")
    assert values(table) == expected(2, 10)


def test_columns_get_the_names_that_topics_have_for_them(broker: Broker) -> None:
    import pandas as pd

    broker.create_topic("frames")
    frame = pd.DataFrame({"id": ["a", "b"], "json": ["{}", None], "amount": [1, 2]})
    counts = write_arrow(frame, "frames", bootstrap=broker.bootstrap, key="id", value="json", compression_type="zstd")
    assert counts == {TopicPartition("frames", 0): 2}
    found = read_arrow("frames", bootstrap=broker.bootstrap, columns=["key", "value"])
    assert found.to_pydict() == {"key": [b"a", b"b"], "value": [b"{}", None]}
    write_arrow(pa.table({"key": ["c"], "value": ["1"]}), "frames", bootstrap=broker.bootstrap, key=None)
    assert read_arrow("frames", bootstrap=broker.bootstrap, start=2)["key"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda where: read_arrow("nope", **where), "topic 'nope' does not exist"),
        (lambda where: read_arrow("t", start="first", **where), "start is earliest, latest, an offset"),
        (lambda where: read_arrow("t", end=True, **where), "end is earliest, latest, an offset"),
        (lambda where: read_arrow("t", start={0: 1}, **where), "start has no offset for partition 1"),
        (lambda where: read_arrow("t", start=-5, **where), "start is an offset from 0 on, not -5"),
        (lambda where: read_arrow("t", end={0: 3, 1: -1}, **where), "end is an offset from 0 on, not -1"),
        (lambda where: read_arrow("t", columns=["vlaue"], **where), "no column 'vlaue'.*did you mean value"),
        (lambda where: read_arrow("t", partitions=[5], **where), "there is no partition 5"),
        (lambda where: read_arrow("t", secrity_protocol="SSL", **where), "did you mean security.protocol"),
        (lambda where: write_arrow(pa.table({"a": [1]}), "t", **where), "no column 'value' for the value"),
        (lambda where: write_arrow(pa.table({"value": ["1"]}), "t", key="id", **where), "no column 'id' for the key"),
        (lambda where: write_arrow(pa.table({"value": ["1"]}), **where), "rows need a topic"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(broker: Broker, call: Any, words: str) -> None:
    with pytest.raises(ClientError, match=words):
        call({"bootstrap": broker.bootstrap})


def test_errors_keep_their_kinds(broker: Broker) -> None:
    with pytest.raises(UnknownTopic):
        read_arrow("nope", bootstrap=broker.bootstrap)
    with pytest.raises(OffsetsGone):
        read_arrow("t", end=99, bootstrap=broker.bootstrap)


def test_naming_what_there_is_loads_neither_arrow_nor_numba() -> None:
    code = (
        "import sys, headrace.client.columnar as c; assert 'read_arrow' in c.__all__\n"
        "assert not {'pyarrow', 'numba', 'numpy'} & set(sys.modules)\n"
        "sys.modules['pyarrow'] = None\n"
        "try: c.read_arrow\n"
        "except ImportError as error: assert \"pip install 'headrace[arrow]'\" in str(error), error\n"
        "else: raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
