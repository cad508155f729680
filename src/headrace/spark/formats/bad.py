"""What becomes of records that cannot be decoded."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from headrace.client.columnar.model import HEADERS

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


def bad_column(batch: pa.RecordBatch, errors: Mapping[int, str]) -> pa.Array:
    """A struct of the error, the original value and the original key for each bad row, null for good ones."""
    if not errors:
        return pa.nulls(len(batch), _ARROW_TYPE)
    rows = sorted(errors)
    taken = pa.array(rows, pa.int64())
    found = pa.StructArray.from_arrays(
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
    return found.take(pa.array(places, mask=good))


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
