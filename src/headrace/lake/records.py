"""The columns of a record in a table.

Their names begin with `_`, so that the fields of values can be columns beside them: a table of orders has `order_id`
and `cents`, and `_key`, `_offset` and `_timestamp` for where each row is from. With all of them a record can be written
to a topic again as it was.
"""

from typing import Final

import pyarrow as pa

from headrace.client.columnar.model import SCHEMA_WITH_HEADERS

HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
KEY: Final = "_key"
VALUE: Final = "_value"
PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
TIMESTAMP_TYPE: Final = "_timestamp_type"
HEADERS_COLUMN: Final = "_headers"
ERROR: Final = "_error"
DELETED: Final = "_deleted"
"""In rows that are to be merged by key: whether the record has no value."""

STAGING: Final = "_headrace_staging"
"""The directory of files whose rows are still to be merged into a table by key."""

TABLE_COLUMNS: Final = pa.schema(
    [
        pa.field(KEY, pa.binary()),
        pa.field(VALUE, pa.binary()),
        pa.field(PARTITION, pa.int32()),
        pa.field(OFFSET, pa.int64()),
        pa.field(TIMESTAMP, pa.timestamp("us", "UTC")),
        pa.field(TIMESTAMP_TYPE, pa.int32()),
        pa.field(HEADERS_COLUMN, HEADERS),
    ]
)
"""A record in a table of its topic."""

ALWAYS_THERE: Final = frozenset({PARTITION, OFFSET, TIMESTAMP, TIMESTAMP_TYPE})
"""What every record has."""

BAD_COLUMNS: Final = TABLE_COLUMNS.append(pa.field(ERROR, pa.string()))
"""A record that could not be decoded, as it was, and why."""

NAMES: Final[dict[str, str]] = {
    "key": KEY,
    "value": VALUE,
    "partition": PARTITION,
    "offset": OFFSET,
    "timestamp": TIMESTAMP,
    "timestampType": TIMESTAMP_TYPE,
    "headers": HEADERS_COLUMN,
}
"""The names of columns, as the client has them, and as a table has them."""
RESERVED: Final = frozenset({*TABLE_COLUMNS.names, ERROR, DELETED, "_day", "_hour"})


def to_table(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records as the client reads them (and one topic's) as rows of a table."""
    arrays = []
    for name, field in zip(NAMES, TABLE_COLUMNS, strict=True):
        number = batch.schema.get_field_index(name)
        column = pa.nulls(len(batch), field.type) if number < 0 else batch.column(number)
        arrays.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=TABLE_COLUMNS)


def to_records(batch: pa.RecordBatch, topic: str) -> pa.RecordBatch:
    """Rows of a table as the client reads records, with headers."""
    arrays = []
    for field in SCHEMA_WITH_HEADERS:
        if field.name == "topic":
            arrays.append(pa.repeat(pa.scalar(topic, pa.string()), len(batch)))
            continue
        number = batch.schema.get_field_index(NAMES[field.name])
        column = pa.nulls(len(batch), field.type) if number < 0 else batch.column(number)
        arrays.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA_WITH_HEADERS)
