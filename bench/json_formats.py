"""JSON values to columns on one thread: the compiled loop, beside `pyarrow.json` and what that refuses one by one.

It is what the loop has to be worth its lines for. Both give the same columns, which is checked, and are measured by
processor time. pyarrow has the best of it: documents are joined by newlines at once, none holds a newline, and no time,
decimal or text is in a form that it reads otherwise than Spark does.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from .model import Aim, BenchError, Figure, Measure, Of, Sample, Work
from .setting import Setting

if TYPE_CHECKING:
    from headrace.formats.json_codec import JsonColumnDecoder
    from headrace.formats.payload import Payload

_ROWS: Final = 20_000
_WORDS: Final = ("alpha", "beta", "order", "customer", "river", "stone", "Paris", "blue")
_BAD: Final = (b'{"id": 1, "customer"', b'{"id": "x"}', b"not json", b"", b'{"id": 12345678901234567890123}')
_PARTS: Final = (512, 128, 32)
"""Rows that pyarrow is asked again for where it refuses more of them; the last are read one by one. Smaller parts cost
more than they save: a call takes as long as thirty rows do."""


def _words(random: Random, count: int) -> str:
    return " ".join(random.choice(_WORDS) for _ in range(count))


def _flat(random: Random, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "customer": f"c-{random.randrange(10**6)}",
        "amount": round(random.random() * 1000, 2),
        "paid": random.random() < 0.5,
        "at": f"2024-01-05T10:11:{random.randrange(60):02}.{random.randrange(1000):03}Z",
        "note": _words(random, 6),
    }


def _wide(random: Random, _: int) -> dict[str, Any]:
    def value(column: int) -> Any:
        return (random.randrange(10**9), _words(random, 2), round(random.random() * 100, 4))[column % 3]

    return {f"column_{column}": value(column) for column in range(40)}


def _nested(random: Random, number: int) -> dict[str, Any]:
    place = {"lat": random.random() * 90, "lon": random.random() * 90}
    address = {"city": _words(random, 1), "zip": random.randrange(99_999), "geo": place}
    who = {"name": _words(random, 2), "address": address}
    return {"id": number, "who": who, "meta": {"source": "web", "version": random.randrange(9)}}


def _escaped(random: Random, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "a": f'say "{_words(random, 4)}"\n',
        "b": f"tab\t{_words(random, 3)}\\path\\{_words(random, 1)}",
        "c": f"ünï {_words(random, 2)}\u2028 \U0001f600",
    }


def _arrays(random: Random, number: int) -> dict[str, Any]:
    lines = [
        {"sku": _words(random, 1), "count": random.randrange(9), "price": round(random.random() * 50, 2)}
        for _ in range(random.randrange(5))
    ]
    tags = [_words(random, 1) for _ in range(random.randrange(8))]
    return {
        "id": number,
        "tags": tags,
        "values": [random.randrange(1000) for _ in range(random.randrange(20))],
        "lines": lines,
    }


@dataclass(frozen=True, slots=True)
class _Shape:
    title: str
    schema: str
    document: Callable[[Random, int], dict[str, Any]]
    bad: float = 0.0


_FLAT: Final = "id BIGINT, customer STRING, amount DOUBLE, paid BOOLEAN, at TIMESTAMP, note STRING"
_GEO: Final = "STRUCT<lat: DOUBLE, lon: DOUBLE>"
_ADDRESS: Final = f"STRUCT<city: STRING, zip: INT, geo: {_GEO}>"
_SHAPES: Final = {
    "flat": _Shape("flat, 140 B", _FLAT, _flat),
    "bad": _Shape("flat, 140 B, one in a hundred bad", _FLAT, _flat, 0.01),
    "wide": _Shape(
        "5 of 40 columns, 900 B",
        "column_0 BIGINT, column_10 STRING, column_20 DOUBLE, column_30 BIGINT, column_37 STRING",
        _wide,
    ),
    "nested": _Shape(
        "nested, 170 B",
        f"id BIGINT, who STRUCT<name: STRING, address: {_ADDRESS}>, meta STRUCT<source: STRING, version: INT>",
        _nested,
    ),
    "escaped": _Shape("strings with escapes, 150 B", "id BIGINT, a STRING, b STRING, c STRING", _escaped),
    "arrays": _Shape(
        "arrays, 190 B",
        "id BIGINT, tags ARRAY<STRING>, values ARRAY<INT>, lines ARRAY<STRUCT<sku: STRING, count: INT, price: DOUBLE>>",
        _arrays,
    ),
}


class _ByPyarrow:
    """Reads what `pyarrow.json` reads with it, and the rest one by one; a part that it refuses is cut smaller."""

    def __init__(self, codec: "JsonColumnDecoder") -> None:
        import pyarrow as pa
        import pyarrow.json

        self._arrow = pa
        self._codec = codec
        self._type = codec.decode(_payload([])).values.type
        self._options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(list(self._type)), unexpected_field_behavior="ignore"
        )

    def decode(self, payload: "Payload") -> tuple[Any, dict[int, str]]:
        parts: list[Any] = []
        errors: dict[int, str] = {}
        self._read(payload, 0, (payload.rows, *_PARTS), parts, errors)
        return self._arrow.concat_arrays(parts), errors

    def _read(
        self, payload: "Payload", first: int, sizes: tuple[int, ...], parts: list[Any], errors: dict[int, str]
    ) -> None:
        for at in range(0, payload.rows, sizes[0]):
            part = payload.rows_at(slice(at, at + sizes[0]))
            try:
                parts.append(self._whole(part))
            except self._arrow.ArrowInvalid:
                if len(sizes) > 1:
                    self._read(part, first + at, sizes[1:], parts, errors)
                    continue
                values, bad = self._codec.read_one_by_one(part, range(part.rows))
                parts.append(values)
                errors.update({first + at + row: reason for row, reason in bad.items()})

    def _whole(self, payload: "Payload") -> Any:
        import pyarrow.json

        pa = self._arrow
        data = _joined(payload)
        reading = pyarrow.json.ReadOptions(use_threads=False, block_size=data.size + 1)
        table = pyarrow.json.read_json(pa.BufferReader(data), reading, self._options)
        if table.num_rows != payload.rows:
            raise pa.ArrowInvalid("other rows than there are documents")
        return pa.StructArray.from_arrays(
            [column.combine_chunks() for column in table.columns], fields=list(self._type)
        )


def _joined(payload: "Payload") -> Any:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = np.append(payload.starts, payload.ends[-1]).astype(np.int32)
    rows = pa.Array.from_buffers(pa.binary(), payload.rows, [None, pa.py_buffer(offsets), pa.py_buffer(payload.data)])
    return pc.binary_join(pa.ListArray.from_arrays([0, payload.rows], rows), b"\n")[0].as_buffer()


def _payload(rows: "list[bytes | None]") -> "Payload":
    from headrace.formats.payload import payload_of_rows

    return payload_of_rows(rows)


@cache
def _case(name: str) -> "tuple[JsonColumnDecoder, Payload]":
    from headrace.formats.json_codec import JsonColumnDecoder

    shape, random = _SHAPES[name], Random(1)
    rows: list[bytes | None] = []
    for number in range(_ROWS):
        document = json.dumps(shape.document(random, number), separators=(",", ":")).encode()
        rows.append(random.choice(_BAD) if random.random() < shape.bad else document)
    codec, payload = JsonColumnDecoder(shape.schema, "UTC"), _payload(rows)
    ours, (values, errors) = codec.decode(payload), _ByPyarrow(codec).decode(payload)
    if not ours.values.equals(values) or ours.errors != errors:
        raise BenchError(f"{shape.title}: pyarrow reads other columns")
    return codec, payload


def _rate(setting: Setting, work: Callable[[], object]) -> Sample:
    work()
    count, before = 0, time.process_time()
    while time.process_time() < before + setting.seconds:
        work()
        count += _ROWS
    return {"records": count / (time.process_time() - before)}


def _by_loop(setting: Setting, *, name: str) -> Sample:
    codec, payload = _case(name)
    return _rate(setting, lambda: codec.decode(payload))


def _by_pyarrow(setting: Setting, *, name: str) -> Sample:
    codec, payload = _case(name)
    reader = _ByPyarrow(codec)
    return _rate(setting, lambda: reader.decode(payload))


def _work(name: str, shape: _Shape) -> Work:
    loop: Measure = partial(_by_loop, name=name)
    aim = Aim(of=Of.RATIO, bound=1.5, at_least=True)
    return Work(
        name=f"json-formats-{name}",
        title=f"JSON to columns, {shape.title}",
        against="pyarrow.json, and one by one what it refuses",
        figures=(Figure(key="records", label="per second of CPU", unit="records", aim=aim),),
        broker=loop,
        ceiling=partial(_by_pyarrow, name=name),
    )


def works() -> list[Work]:
    return [_work(name, shape) for name, shape in _SHAPES.items()]
