"""Orders: the same values in JSON, in Avro and in Protobuf, and as columns of Spark."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

FIELDS: Final = ("id", "customer", "at", "amount", "quantity", "paid", "tags", "note")
DDL: Final = (
    "id BIGINT, customer STRING, at TIMESTAMP, amount DOUBLE, quantity INT, paid BOOLEAN, tags ARRAY<STRING>, "
    "note STRING"
)
AVRO: Final = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "customer", "type": "string"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "amount", "type": "double"},
            {"name": "quantity", "type": "int"},
            {"name": "paid", "type": "boolean"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "note", "type": ["null", "string"]},
        ],
    }
)
MESSAGE: Final = "bench.Order"
CHECKSUM: Final = (
    "count(value.id) AS rows",
    f"sum(xxhash64({', '.join(f'value.{name}' for name in FIELDS)}) & 4294967295) AS checksum",
)
"""What a query makes of all rows: each field of each of them counts."""
FROM_ID: Final = """named_struct(
    'id', id, 'customer', concat('customer-', id % 10000), 'at', timestamp_micros(1700000000000000 + id * 1001),
    'amount', id * 0.25D, 'quantity', CAST(id % 100 AS INT), 'paid', id % 3 = 0,
    'tags', array('new', concat('t', id % 7)), 'note', IF(id % 2 = 0, concat('left at the door, ', id), NULL))"""
"""The order of that id, in Spark's SQL."""
_START_US: Final = 1_700_000_000_000_000


def order(number: int) -> dict[str, Any]:
    """The order of that id; its time in microseconds."""
    return {
        "id": number,
        "customer": f"customer-{number % 10_000}",
        "at": _START_US + number * 1001,
        "amount": number * 0.25,
        "quantity": number % 100,
        "paid": number % 3 == 0,
        "tags": ["new", f"t{number % 7}"],
        "note": f"left at the door, {number}" if number % 2 == 0 else None,
    }


def as_json(values: dict[str, Any]) -> bytes:
    seconds, micros = divmod(values["at"], 1_000_000)
    when = f"{_iso(seconds)}.{micros:06}Z"
    return json.dumps({name: value for name, value in (values | {"at": when}).items() if value is not None}).encode()


def _iso(seconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


_parsed_avro: Final = fastavro.parse_schema(json.loads(AVRO))


def as_avro(values: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, _parsed_avro, values)
    return written.getvalue()


def framed(encode: Callable[[dict[str, Any]], bytes], schema_id: int) -> Callable[[dict[str, Any]], bytes]:
    """As a serializer of a schema registry writes values: with a zero byte and the id of their schema before them."""
    head = b"\x00" + schema_id.to_bytes(4, "big")
    return lambda values: head + encode(values)


def descriptors() -> bytes:
    """What `protoc --include_imports --descriptor_set_out` makes of the message, whose fields can be absent."""
    field = descriptor_pb2.FieldDescriptorProto
    types = {
        "id": field.TYPE_INT64,
        "customer": field.TYPE_STRING,
        "at": field.TYPE_MESSAGE,
        "amount": field.TYPE_DOUBLE,
        "quantity": field.TYPE_INT32,
        "paid": field.TYPE_BOOL,
        "tags": field.TYPE_STRING,
        "note": field.TYPE_STRING,
    }
    time_file = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(time_file)
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="bench", syntax="proto2", dependency=[time_file.name]
    )
    message = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(types.items(), 1):
        one = message.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
        if name == "tags":
            one.label = field.LABEL_REPEATED
        if name == "at":
            one.type_name = ".google.protobuf.Timestamp"
    data: bytes = descriptor_pb2.FileDescriptorSet(file=[time_file, file]).SerializeToString()
    return data


def message_class() -> Any:
    """The class of the message."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(MESSAGE))


_message: Final = message_class()


def as_protobuf(values: dict[str, Any]) -> bytes:
    at = values["at"]
    given = {name: value for name, value in values.items() if value is not None and name != "at"}
    message = _message(**given)
    message.at.FromMicroseconds(at)
    data: bytes = message.SerializeToString()
    return data


def messages_to_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: Protobuf messages as Google's library reads them, which is how it is done without a jar."""
    for batch in batches:
        yield pa.record_batch({"value": _structs(batch.column("value"))})


def _structs(values: pa.Array) -> pa.Array:
    messages = [_message.FromString(value) for value in values.to_pylist()]
    columns: dict[str, pa.Array] = {
        "id": pa.array([one.id for one in messages], pa.int64()),
        "customer": pa.array([one.customer for one in messages], pa.string()),
        "at": pa.array([one.at.ToMicroseconds() for one in messages], pa.timestamp("us", "UTC")),
        "amount": pa.array([one.amount for one in messages], pa.float64()),
        "quantity": pa.array([one.quantity for one in messages], pa.int32()),
        "paid": pa.array([one.paid for one in messages], pa.bool_()),
        "tags": pa.array([list(one.tags) for one in messages], pa.list_(pa.string())),
        "note": pa.array([one.note if one.HasField("note") else None for one in messages], pa.string()),
    }
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def columns_to_messages(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: the same the other way."""
    for batch in batches:
        rows = batch.column("value")
        times = rows.field("at").cast(pa.int64())
        values = [as_protobuf(row | {"at": at}) for row, at in zip(rows.to_pylist(), times.to_pylist(), strict=True)]
        yield pa.record_batch({"key": batch.column("key"), "value": pa.array(values, pa.binary())})
