"""v2: records into a topic or one of its partitions, in any format."""

from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headrace.client.aio import admin
from headrace.client.aio.client import Client
from headrace.client.registry import RegisteredSchema
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record
from headrace.registry.parsing import Posted
from headrace.web.checking import decoder
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.routes import Body, Routes

from ..credentials import Clients
from ..names import Partition, TopicPath
from ..publishing import MessageToPublish, Publisher, PublishOutcome, now_ms
from ..read_routes import PartitionPath
from .failures import V2_MEDIA, V2_NUMBERS, Refusal, numbered
from .media import FORMATS, ValueFormat, format_of, require_taken
from .operations import V2
from .values import JsonValue, Values, given

MOST_RECORDS: Final = 10_000
_ANY_VALUE: Final[dict[str, Any]] = {"type": ["object", "array", "string", "number", "boolean", "null"]}


class ProxyRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A record to write: base64 for the binary format, else JSON."""

    key: Annotated[Raw | UnsetType, Meta(extra_json_schema=_ANY_VALUE, examples=["YWxpY2U="])] = UNSET
    value: Annotated[Raw | UnsetType, Meta(extra_json_schema=_ANY_VALUE, examples=["eyJ0b3RhbCI6IDN9"])] = UNSET
    partition: Partition | None = None


SchemaId = Annotated[int, Meta(ge=1, le=2**31 - 1, examples=[1])]
_IdText = Annotated[str, Meta(pattern=r"^[0-9]{1,9}$", examples=["1"])]


class ProxyRecords(Struct, frozen=True, forbid_unknown_fields=True):
    """Records, and for formats with schemas which schema: its text, or its id."""

    records: Annotated[list[ProxyRecord], Meta(min_length=1, max_length=MOST_RECORDS)]
    key_schema: Annotated[str | None, Meta(examples=[None])] = None
    key_schema_id: SchemaId | _IdText | None = None
    value_schema: Annotated[str | None, Meta(examples=[None])] = None
    value_schema_id: SchemaId | _IdText | None = None


class ProxyOffset(Struct):
    """Where a record is, or why it was not written."""

    partition: Annotated[int | None, Meta(examples=[0])]
    offset: Annotated[int | None, Meta(examples=[41])]
    error_code: Annotated[int | None, Meta(examples=[None])] = None
    error: Annotated[str | None, Meta(examples=[None])] = None


class ProxyProduced(Struct):
    """What became of each record."""

    offsets: list[ProxyOffset]
    key_schema_id: Annotated[int | None, Meta(examples=[None])]
    value_schema_id: Annotated[int | None, Meta(examples=[None])]


BODIES: Final = {f"application/vnd.kafka.{name}.v2+json": ProxyRecords for name in FORMATS}
"""What is taken, by media type."""
BODY_EXAMPLES: Final = {
    media: {"records": [{"value": "AP8=" if ".binary." in media else {"total": 3}}]}
    | ({} if ".binary." in media or ".json." in media else {"value_schema_id": 1})
    for media in BODIES
}
_read: Final = decoder(ProxyRecords, "the body")
_SCHEMA_MISSING: Final = {
    "key": (
        42201,
        "Request includes keys and uses a format that requires schemas, but does not include key_schema or ",
    ),
    "value": (
        42202,
        "Request includes values and uses a format that requires schemas, but does not include value_schema or ",
    ),
}


class ProxyProducer:
    """Takes the records of requests."""

    def __init__(self, clients: Clients, publisher: Publisher, values: Values) -> None:
        self._clients = clients
        self._publisher = publisher
        self._values = values

    def add_partition_route(self, routes: Routes) -> None:
        """POST …/partitions/{partition}; that of whole topics has a path with the gateway's own."""
        body = Body("Records of the format that the type names.", media=BODIES, examples=BODY_EXAMPLES)
        answers = V2.answered("What became of each record.", ProxyProduced)
        url = "/topics/{topic}/partitions/{partition}"
        V2.add(
            routes,
            "POST",
            url,
            "Produce to a partition.",
            self._to_partition,
            path=PartitionPath,
            body=body,
            answers=answers,
        )

    async def to_topic(self, request: Request, path: TopicPath) -> Answer:
        """The answer to records for a topic."""
        return await self._produce(request, path.topic, None)

    async def _to_partition(self, request: Request, path: PartitionPath) -> Answer:
        return await self._produce(request, path.topic, path.partition)

    async def _produce(self, request: Request, topic: str, partition: int | None) -> Answer:
        require_taken(request)
        data = await request.body()
        await V2.check_counts(data)
        asked: ProxyRecords = V2.body_of(data, _read)
        if partition is not None and any(each.partition is not None for each in asked.records):
            raise Refusal(422, 422, "the path names the partition; records do not")
        client, form = self._clients.of(request), format_of(request.media_type)
        await client.cluster.topic(topic)
        keys = [each.key for each in asked.records]
        values = [each.value for each in asked.records]
        key_schema = await self._schema(client, topic, form, "key", keys, asked.key_schema, asked.key_schema_id)
        value_schema = await self._schema(
            client, topic, form, "value", values, asked.value_schema, asked.value_schema_id
        )
        key_bytes = await self._values.encoded(form, key_schema, keys, "the key of record")
        value_bytes = await self._values.encoded(form, value_schema, values, "the value of record")
        now = now_ms()
        records = [
            MessageToPublish(Record(0, now, key, value), each.partition if partition is None else partition)
            for key, value, each in zip(key_bytes, value_bytes, asked.records, strict=True)
        ]
        outcomes = await self._publisher.many(client, topic, records, -1, None)
        return _told(outcomes, key_schema, value_schema)

    async def _schema(
        self,
        client: Client,
        topic: str,
        form: ValueFormat,
        what: str,
        values: list[JsonValue],
        text: str | None,
        schema_id: int | str | None,
    ) -> RegisteredSchema | None:
        """The schema of keys or values; None where they need none."""
        if form.schema_type is None:
            return None
        subject = f"{topic}-{what}"
        if schema_id is not None:
            found = await self._values.of_id(client, int(schema_id), subject)
        elif text is not None:
            found = await registered_for(self._values, client, topic, subject, Posted(type=form.schema_type, text=text))
        elif any(map(given, values)):
            number, message = _SCHEMA_MISSING[what]
            raise Refusal(422, number, f"{message}{what}_schema_id")
        else:
            return None
        return found


async def registered_for(values: Values, client: Client, topic: str, subject: str, posted: Posted) -> RegisteredSchema:
    """A schema for records of a topic; only who may write there, and to the subject, may have it registered."""
    if not values.is_registered(subject, posted) and not await admin.may_write(client.cluster, topic):
        raise CodedError(ErrorCode.topic_authorization_failed, f"topic '{topic}' may not be written to")
    return await values.registered(client, subject, posted)


def _told(outcomes: list[PublishOutcome], key: RegisteredSchema | None, value: RegisteredSchema | None) -> Answer:
    offsets = [_offset(each) for each in outcomes]
    numbers = {each.error_code for each in offsets}
    status = 401 if 40101 in numbers else 403 if 40301 in numbers else 200
    body = ProxyProduced(offsets, None if key is None else key.id, None if value is None else value.id)
    return json_answer(body, status, content_type=V2_MEDIA)


def _offset(outcome: PublishOutcome) -> ProxyOffset:
    if outcome.problem is None:
        return ProxyOffset(outcome.partition, outcome.offset)
    number = numbered(outcome.problem, V2_NUMBERS)[1]
    return ProxyOffset(None, None, 50002 if number < 1000 else number, outcome.problem.detail)
