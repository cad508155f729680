"""Random Avro schemas, each with values and what Arrow should show for them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from itertools import count
from typing import Any

from hypothesis import strategies as st

Pair = tuple[Any, Any]
"""A value as fastavro takes it, and as it is decoded."""


@dataclass(frozen=True)
class Case:
    """A schema, and a strategy of values for it."""

    schema: Any
    pairs: st.SearchStrategy[Pair]


def _same(schema: Any, values: st.SearchStrategy[Any]) -> Case:
    return Case(schema, values.map(lambda value: (value, value)))


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_instants = st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1))


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)


def _to_millis(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _logical(base: str, name: str, values: st.SearchStrategy[Any]) -> Case:
    return _same({"type": base, "logicalType": name}, values)


_SCALARS = [
    _same("boolean", st.booleans()),
    _same("int", st.integers(-(2**31), 2**31 - 1)),
    _same("long", st.integers(-(2**63), 2**63 - 1)),
    _same("float", st.floats(width=32, allow_nan=False)),
    _same("double", st.floats(allow_nan=False)),
    _same("bytes", st.binary(max_size=12)),
    _same("string", _texts),
    Case({"type": "string", "logicalType": "uuid"}, st.uuids().map(lambda value: (value, str(value)))),
    _logical("int", "date", st.dates(date(1600, 1, 1), date(2300, 1, 1))),
    _logical("long", "timestamp-micros", _instants.map(_utc)),
    _logical("long", "timestamp-millis", _instants.map(_to_millis).map(_utc)),
    _logical("long", "local-timestamp-micros", _instants),
    _logical("long", "local-timestamp-millis", _instants.map(_to_millis)),
]


def _decimals(draw: Callable[..., Any]) -> Case:
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    limit = 10**precision - 1
    values = st.integers(-limit, limit).map(lambda digits: Decimal(digits).scaleb(-scale, Context(prec=80)))
    return _same({"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}, values)


class Schemas:
    """Draws schemas; names are numbered, as Avro's must differ."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self._draw = draw
        self._names = count()

    def record(self, depth: int) -> Case:
        """A record of up to four fields."""
        fields = [self.any(depth - 1) for _ in range(self._draw(st.integers(1, 4)))]
        schema = {
            "type": "record",
            "name": f"Record{next(self._names)}",
            "fields": [{"name": f"f{place}", "type": case.schema} for place, case in enumerate(fields)],
        }
        pairs = st.tuples(*(case.pairs for case in fields)).map(
            lambda drawn: tuple({f"f{place}": pair[side] for place, pair in enumerate(drawn)} for side in (0, 1))
        )
        return Case(schema, pairs)  # type: ignore[arg-type]

    def any(self, depth: int) -> Case:
        """Any type, nesting so deep at most."""
        makers: list[Callable[[], Case]] = [self._scalar, self._scalar, self._scalar, self._enum, self._fixed]
        makers += [lambda: _decimals(self._draw)]
        if depth > 0:
            deeper = [self._optional, self._list, self._map, self.record, self._members]
            makers += [lambda make=make: make(depth) for make in deeper]  # type: ignore[misc]
        return self._draw(st.sampled_from(makers))()  # type: ignore[no-any-return]

    def _scalar(self) -> Case:
        return self._draw(st.sampled_from(_SCALARS))  # type: ignore[no-any-return]

    def _enum(self) -> Case:
        symbols = ["ADDED", "PAID", "SENT"]
        return _same({"type": "enum", "name": f"Enum{next(self._names)}", "symbols": symbols}, st.sampled_from(symbols))

    def _fixed(self) -> Case:
        size = self._draw(st.integers(1, 5))
        schema = {"type": "fixed", "name": f"Fixed{next(self._names)}", "size": size}
        return _same(schema, st.binary(min_size=size, max_size=size))

    def _optional(self, depth: int) -> Case:
        case = self.any(0)
        nothing: st.SearchStrategy[Pair] = st.just((None, None))
        branches = ["null", case.schema] if self._draw(st.booleans()) else [case.schema, "null"]
        return Case(branches, nothing | case.pairs)

    def _list(self, depth: int) -> Case:
        case = self.any(depth - 1)
        pairs = st.lists(case.pairs, max_size=4).map(
            lambda drawn: tuple([pair[side] for pair in drawn] for side in (0, 1))
        )
        return Case({"type": "array", "items": case.schema}, pairs)  # type: ignore[arg-type]

    def _map(self, depth: int) -> Case:
        case = self.any(depth - 1)
        pairs = st.dictionaries(_texts, case.pairs, max_size=4).map(
            lambda drawn: (
                {key: pair[0] for key, pair in drawn.items()},
                [(key, pair[1]) for key, pair in drawn.items()],
            )
        )
        return Case({"type": "map", "values": case.schema}, pairs)

    def _members(self, depth: int) -> Case:
        text, number = _texts, st.integers(-(2**31), 2**31 - 1)
        pairs = text.map(lambda value: (value, {"member0": value, "member1": None})) | number.map(
            lambda value: (value, {"member0": None, "member1": value})
        )
        return Case(["string", "int"], pairs)


@st.composite
def records(draw: Any) -> tuple[Any, list[Any], list[Any]]:
    """A record's schema, values to encode, and what they should be decoded to."""
    case = Schemas(draw).record(3)
    drawn = draw(st.lists(case.pairs, max_size=6))
    return case.schema, [pair[0] for pair in drawn], [pair[1] for pair in drawn]
