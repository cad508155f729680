"""Records that cannot be decoded: the column that shows them, and dead letters on their way to a topic."""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from headrace.client.columnar.model import HEADERS, UnknownTopic
from headrace.client.columnar.settings import ALIASES, SETTINGS, WITHOUT_EFFECT

from . import types as t
from .errors import OptionError

if TYPE_CHECKING:
    from headrace.client.columnar.writer import Writer

BAD: Final = "bad"
BAD_TYPE: Final = t.StructType(
    [
        t.StructField("error", t.StringType()),
        t.StructField("value", t.BinaryType()),
        t.StructField("key", t.BinaryType()),
    ]
)
BAD_FIELD: Final = t.StructField(BAD, BAD_TYPE)

_ARROW_TYPE: Final = pa.struct(
    [pa.field("error", pa.string()), pa.field("value", pa.binary()), pa.field("key", pa.binary())]
)
_HEADERS_NAMED: Final = ("headrace.error", "headrace.topic", "headrace.partition", "headrace.offset")

DeadLetters = Callable[[pa.RecordBatch], None]
"""Writes rows of `key`, `value` and `headers`; when it returns, they are safe."""

_TRANSACTIONAL = "transactional.id"
_writers: dict[tuple[int, str, frozenset[tuple[str, str]]], "Writer"] = {}


def bad_column(batch: pa.RecordBatch, errors: Mapping[int, str]) -> pa.Array:
    """A struct of the error, the original value and the original key for each bad row, null for good ones."""
    if not errors:
        return pa.nulls(len(batch), _ARROW_TYPE)
    rows = sorted(errors)
    taken = pa.array(rows, pa.int64())
    values = pa.StructArray.from_arrays(
        [
            pa.array([errors[row] for row in rows], pa.string()),
            batch.column("value").take(taken),
            batch.column("key").take(taken),
        ],
        fields=list(_ARROW_TYPE),
    )
    places = np.zeros(len(batch), np.int64)
    places[rows] = np.arange(len(rows))
    good = np.ones(len(batch), np.bool_)
    good[rows] = False
    return values.take(pa.array(places, mask=good))


def dead_letters(batch: pa.RecordBatch, errors: Mapping[int, str]) -> pa.RecordBatch:
    """The bad rows of a batch as records: what they were, with the reason and their origin as further headers."""
    rows = batch.take(pa.array(sorted(errors), pa.int64()))
    places = zip(*(rows.column(name).to_pylist() for name in ("topic", "partition", "offset")), strict=True)
    kept = rows.column("headers").to_pylist() if "headers" in rows.schema.names else [None] * len(rows)
    headers = [
        [*(own or ()), *_reasons(errors[row], place)]
        for row, own, place in zip(sorted(errors), kept, places, strict=True)
    ]
    columns = [rows.column("key"), rows.column("value"), pa.array(headers, HEADERS)]
    return pa.RecordBatch.from_arrays(columns, names=["key", "value", "headers"])


def _reasons(error: str, place: tuple[Any, ...]) -> list[dict[str, Any]]:
    texts = (error, *(str(part) for part in place))
    return [{"key": name, "value": text.encode()} for name, text in zip(_HEADERS_NAMED, texts, strict=True)]


def dead_letter_writer(topic: str, client: Mapping[str, str]) -> DeadLetters:
    """What writes to a topic, given the client's settings. A process has one writer for both, as an executor's worker
    outlives its tasks; a process that was forked from it has its own.
    """
    known = {*SETTINGS, *ALIASES, *WITHOUT_EFFECT} - {_TRANSACTIONAL}
    settings = {name: value for name, value in client.items() if name in known}
    key = (os.getpid(), topic, frozenset(settings.items()))

    # Spark imports the source to find its columns, and most queries have no dead letters: none of them needs a client.
    from headrace.client.columnar.cluster import shared_cluster
    from headrace.client.columnar.writer import Writer

    def write(rows: pa.RecordBatch) -> None:
        writer = _writers.pop(key, None) or Writer(shared_cluster(settings), acks="all", idempotent=True)
        try:
            writer.write(rows, topic)
            writer.flush()
        except UnknownTopic as error:
            raise OptionError(f"deadLetterTopic={topic}: there is no such topic; create it") from error
        _writers[key] = writer  # one that failed is of no further use

    return write
