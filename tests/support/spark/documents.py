"""Random JSON schemas and documents, in the forms that people's serializers write and in some that none does."""

import json
from typing import Any

from hypothesis import strategies as st

from headrace.formats import types as t

_TEXTS = st.text(max_size=10)
_TIMES = [
    "2024-01-05T10:11:12Z",
    "2024-01-05 10:11:12.5",
    "1969-12-31T23:59:59.999999999+01:00",
    "2024-02-29T00:00:00-18:00",
    "2023-02-29T00:00:00",
    "2024-01-05T10:11:12.Z",
    "0002-01-01T00:00:00",
    "9999-12-31T23:59:59.999999",
    "2024-01-05T10:11",
    "2024-01-05T24:00:00Z",
    "2024-03-31T02:30:00",
    "2024-10-27T02:30:00",
    "2024-01-05T10:11:12 Europe/Paris",
    "2024-01-05",
    "2024-1-5",
    "20240105",
    "2024-13-05",
    "x",
]
SCALARS: list[t.DataType] = [
    t.BooleanType(),
    t.ByteType(),
    t.ShortType(),
    t.IntegerType(),
    t.LongType(),
    t.FloatType(),
    t.DoubleType(),
    t.DecimalType(5, 2),
    t.DecimalType(38, 10),
    t.StringType(),
    t.BinaryType(),
    t.DateType(),
    t.TimestampType(),
    t.TimestampNTZType(),
]
_NAMES = ["a", "b", "id", "a longer name than a word", "é", 'q"uote', ""]

_numerals = (
    st.integers(-(2**65), 2**65).map(str)
    | st.floats(allow_nan=False, allow_infinity=False).map(repr)
    | st.decimals(-(10**30), 10**30, allow_nan=False).map(str)
    | st.sampled_from(["0", "-0", "1e5", "1E-3", "01", "1.", ".5", "-", "1e", "NaN", "1e400", "0.10", "127", "-32769"])
)
_strings = (_TEXTS | st.sampled_from(_TIMES)).flatmap(
    lambda text: st.sampled_from([json.dumps(text), json.dumps(text, ensure_ascii=False)])
)
_odd_strings = st.sampled_from(
    ['"\\ud800"', '"\\ud83d\\ude00"', '"\\x"', '"\\u12"', '"a', '"\t"', '"\\/\\b\\f\\n\\r\\t"', "''"]
)
_literals = st.sampled_from(["true", "false", "null", "nul", "truE", "None"])
_spaces = st.sampled_from(["", "", "", " ", "\n\t", "\r "])


@st.composite
def structs(draw: Any, depth: int = 2) -> t.StructType:
    """A struct of some fields."""
    names = draw(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=4, unique=True))
    return t.StructType([t.StructField(name, draw(_types(depth))) for name in names])


def _types(depth: int) -> st.SearchStrategy[t.DataType]:
    scalars = st.sampled_from(SCALARS)
    if depth == 0:
        return scalars
    deeper = _types(depth - 1)
    return st.one_of(
        scalars,
        scalars,
        structs(depth - 1),
        deeper.map(t.ArrayType),
        deeper.map(lambda value: t.MapType(t.StringType(), value)),
    )


def document(draw: Any, spark_type: t.DataType) -> str:
    """A document that mostly fits the type."""
    if draw(st.integers(0, 19)) == 0:
        return str(draw(_anything))
    if isinstance(spark_type, t.StructType):
        fields = [field for field in spark_type.fields if draw(st.integers(0, 5))]
        items = [(json.dumps(field.name, ensure_ascii=False), document(draw, field.data_type)) for field in fields]
        if draw(st.integers(0, 5)) == 0:
            items.insert(draw(st.integers(0, len(items))), ('"unknown"', draw(_anything)))
        return _joined(draw, "{}", [f"{name}{draw(_spaces)}:{draw(_spaces)}{value}" for name, value in items])
    if isinstance(spark_type, t.ArrayType):
        return _joined(draw, "[]", [document(draw, spark_type.element_type) for _ in range(draw(st.integers(0, 3)))])
    if isinstance(spark_type, t.MapType):
        keys = draw(st.lists(_strings | st.just('"a"'), max_size=3))
        return _joined(draw, "{}", [f"{key}:{document(draw, spark_type.value_type)}" for key in keys])
    return str(draw(_likely(spark_type)))


def _joined(draw: Any, around: str, items: list[str]) -> str:
    comma = f"{draw(_spaces)},{draw(_spaces)}"
    return f"{around[0]}{draw(_spaces)}{comma.join(items)}{draw(_spaces)}{around[1]}"


def _likely(spark_type: t.DataType) -> st.SearchStrategy[str]:
    if isinstance(spark_type, t.BooleanType):
        return _literals
    if isinstance(spark_type, t.NumericType):
        return _numerals | _numerals.map(lambda text: f'"{text}"') | st.integers(-200, 200).map(str)
    if isinstance(spark_type, t.BinaryType):
        return st.sampled_from(['"aGk="', '"aGk"', '""', '"YQ=="', '"!"'])
    if isinstance(spark_type, t.StringType):
        return _strings | _odd_strings | _numerals
    return st.sampled_from([json.dumps(text) for text in _TIMES]) | _numerals


_anything: st.SearchStrategy[str] = st.recursive(
    _numerals | _strings | _odd_strings | _literals,
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda items: "[" + ", ".join(items) + "]")
        | st.dictionaries(_strings, inner, max_size=2).map(
            lambda items: "{" + ",".join(f"{key}: {value}" for key, value in items.items()) + "}"
        )
    ),
    max_leaves=4,
)


@st.composite
def batches(draw: Any) -> tuple[t.StructType, list[bytes | None]]:
    """A struct, and values of a topic that should hold it."""
    spark_type = draw(structs())
    rows: list[bytes | None] = []
    for _ in range(draw(st.integers(1, 5))):
        text = document(draw, spark_type).encode("utf-8", "surrogatepass")
        kind = draw(st.integers(0, 14))
        if kind == 0:
            text = text[: draw(st.integers(0, len(text)))]
        elif kind == 1 and text:
            place = draw(st.integers(0, len(text) - 1))
            text = text[:place] + bytes([draw(st.integers(0, 255))]) + text[place + 1 :]
        elif kind == 2:
            text += draw(st.sampled_from([b" ", b"\n", b"{}", b"x", b","]))
        rows.append(None if kind == 3 else text)
    return spark_type, rows
