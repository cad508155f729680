"""Columns of a table as values change: fields that come, go and get wider.

A table's numbers are 64 bits wide from the start (`BIGINT`, `DOUBLE`), so a field that grows from an int to a long
changes nothing. What remains is a field more, in any depth. A field that is missing is null. A field of another kind
than before cannot be both: its records are bad, and say why.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

_WIDE_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32())


class Incompatible(Exception):
    """A value that a column cannot have."""


def widened(kind: pa.DataType) -> pa.DataType:
    """The type a new table has for values of a type."""
    if kind in _WIDE_INTEGERS:
        return pa.int64()
    if kind in (pa.float16(), pa.float32()):
        return pa.float64()
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return widened(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz and "UTC")
    if pa.types.is_null(kind):
        return pa.string()
    return _rebuilt(kind, widened)


def plain_field(field: pa.Field) -> pa.Field:
    """A column as tables of any format have it: without metadata, and with offsets of 32 bits."""
    return pa.field(field.name, plain_type(field.type))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The same of its type."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return kind
    return _rebuilt(kind, plain_type) if pa.types.is_nested(kind) else widened(kind)


def _rebuilt(kind: pa.DataType, inner: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A nested type with its parts changed; fields are nullable."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, inner(one.type)) for one in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", inner(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(inner(kind.key_type), inner(kind.item_type))
    return kind


def merged(table: pa.DataType, values: pa.DataType, where: str = "") -> pa.DataType:
    """The type that has what a table has and what values have; Incompatible if there is none."""
    if pa.types.is_struct(table) and pa.types.is_struct(values):
        return pa.struct(_merged_fields(list(table), list(values), where))
    if _is_list(table) and _is_list(values):
        return pa.list_(pa.field("element", merged(table.value_type, values.value_type, f"{where}[]")))
    if pa.types.is_map(table) and pa.types.is_map(values):
        return pa.map_(table.key_type, merged(table.item_type, values.item_type, f"{where}{{}}"))
    if can_hold(table, values):
        return table
    raise Incompatible(f"field '{where}' is {name_of(values)}, and the table has {name_of(table)}")


def _merged_fields(table: list[pa.Field], values: list[pa.Field], where: str) -> list[pa.Field]:
    new = {one.name: one for one in values}
    known = {one.name.lower(): one.name for one in table}
    fields = []
    for one in table:
        found = new.pop(one.name, None)
        kind = one.type if found is None else merged(one.type, found.type, _below(where, one.name))
        fields.append(one.with_type(kind))
    for name, found in new.items():
        if name.lower() in known:
            raise Incompatible(
                f"field '{_below(where, name)}' differs from '{known[name.lower()]}' by its case alone, which most "
                "engines cannot tell apart"
            )
        known[name.lower()] = name
        fields.append(pa.field(name, widened(found.type)))
    return fields


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def merged_schema(table: pa.Schema, values: pa.Schema) -> pa.Schema:
    """The columns of a table with those that values have beside; Incompatible names a column that cannot be both."""
    return pa.schema(_merged_fields(list(table), list(values), ""))


def can_hold(table: pa.DataType, values: pa.DataType) -> bool:
    """Whether each value of one plain type is one of another."""
    if table.equals(values) or widened(values).equals(table) or pa.types.is_null(values):
        return True
    if pa.types.is_floating(table):
        return bool(pa.types.is_integer(values) or pa.types.is_floating(values)) and table.bit_width == 64
    if pa.types.is_integer(table) and pa.types.is_integer(values):
        return bool(table.bit_width >= values.bit_width and pa.types.is_signed_integer(values))
    if pa.types.is_decimal(table) and pa.types.is_decimal(values):
        whole = table.precision - table.scale >= values.precision - values.scale
        return bool(whole and table.scale >= values.scale)
    if pa.types.is_timestamp(table) and pa.types.is_timestamp(values):
        return (table.tz is None) == (values.tz is None)
    return False


def name_of(kind: pa.DataType) -> str:
    """A type in words of SQL."""
    words = {"int64": "BIGINT", "double": "DOUBLE", "string": "STRING", "binary": "BINARY", "bool": "BOOLEAN"}
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{one.name}: {name_of(one.type)}' for one in kind)}>"
    return words.get(str(kind), str(kind).upper())


def fits(table: pa.DataType, values: pa.DataType) -> bool:
    """Whether a table has all fields that values have, so that nothing is lost when these are written."""
    try:
        return bool(merged(table, values).equals(table))
    except Incompatible:
        return False


def conformed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values as a table's type: fields by name, missing ones null, numbers as wide as the table's."""
    if values.type.equals(kind):
        return values
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), kind)
    if pa.types.is_dictionary(values.type):
        return conformed(values.dictionary_decode(), kind)
    if pa.types.is_struct(kind):
        return _struct(values, kind)
    if _is_list(kind):
        return _list(values, kind)
    if pa.types.is_map(kind):
        return _map(values, kind)
    return values.cast(kind)


def _struct(values: pa.StructArray, kind: pa.StructType) -> pa.Array:
    rows = len(values)
    there = {one.name: number for number, one in enumerate(values.type)}
    # `field` takes neither slices nor nulls of the struct into account, `flatten` does both.
    parts = values.flatten()
    columns = [
        conformed(parts[there[one.name]], one.type) if one.name in there else pa.nulls(rows, one.type) for one in kind
    ]
    mask = pc.is_null(values) if values.null_count else None
    if not columns:
        return pa.array([None if one is None else {} for one in values.to_pylist()], kind)
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _list(values: pa.Array, kind: pa.ListType) -> pa.Array:
    inner = conformed(values.flatten(), kind.value_type)
    return pa.ListArray.from_arrays(_offsets(values), inner, type=kind, mask=_mask(values))


def _map(values: pa.MapArray, kind: pa.MapType) -> pa.Array:
    if values.offset or values.null_count:
        values = pa.concat_arrays([values, values.slice(0, 0)]) if values.offset else values
        values = values.take(pa.array(range(len(values)), pa.int64())) if values.offset else values
    keys, items = conformed(values.keys, kind.key_type), conformed(values.items, kind.item_type)
    if values.null_count:
        return pa.array(values.to_pylist(), kind)
    return pa.MapArray.from_arrays(values.offsets, keys, items, type=kind)


def _offsets(values: pa.Array) -> pa.Array:
    """Where each list begins among the flattened ones."""
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    total = pc.cumulative_sum(lengths)
    return pa.concat_arrays([pa.array([0], pa.int32()), total.cast(pa.int32())])


def _mask(values: pa.Array) -> pa.Array | None:
    return pc.is_null(values) if values.null_count else None


def conformed_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with exactly the columns of a schema."""
    columns = []
    for one in schema:
        number = batch.schema.get_field_index(one.name)
        columns.append(pa.nulls(len(batch), one.type) if number < 0 else conformed(batch.column(number), one.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
