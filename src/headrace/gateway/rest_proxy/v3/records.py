"""v3: records into a topic, as a stream of JSON documents that is answered while it comes in.

Each record has an answer of its own, in order, with its `error_code`: 200 where it was written. What cannot be told
apart from what follows ends the stream. Five hundred records wait for the brokers; a sender that is faster waits.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headrace.client.registry import RegisteredSchema
from headrace.protocol.records import Headers, Record
from headrace.registry.parsing import Posted
from headrace.web.checking import decoder
from headrace.web.messages import MOST_BODY, RECEIVING, Answer, BadBody, Disconnected, Request, Stream, json_answer
from headrace.web.problem import Problem
from headrace.web.routes import Body, Reply, Routes

from ...credentials import Clients, using
from ...messages import decode_base64
from ...names import Partition
from ...publishing import MessageToPublish, Publisher, PublishOutcome, now_ms
from ...read_routes import time_ms
from ...translate import translate
from ..failures import V3_MEDIA, V3_NUMBERS, ErrorBody, Refusal, numbered
from ..media import ValueFormat
from ..operations import V3
from ..producing import registered_for
from ..values import Values
from .documents import DocumentSplitter, NoDocumentError
from .resources import Here, TopicNamePath, here
from .topics import TOPIC

IDLE_SECONDS: Final = 300.0
"""How long a stream may stand still."""
_MOST_WAITING: Final = 500
_MOST_HELD: Final = MOST_BODY
"""Bytes of the documents that wait."""
_LOOKED_AT_ONCE: Final = 32 * 1024
_LARGEST_CHUNK: Final = 64 * 1024
_MOST_ENTRIES: Final = 1000
_ANY_VALUE: Final[dict[str, Any]] = {"type": ["object", "array", "string", "number", "boolean", "null"]}
_FORMATS: Final = {form.name: form for form in ValueFormat}
_TYPES: Final = {form.schema_type: form for form in ValueFormat if form.schema_type is not None}
_PROTOBUF_NAME: Final = re.compile(r"\bmessage\s+(\w{1,250})")
_PROTOBUF_PACKAGE: Final = re.compile(r"\bpackage\s+([\w.]{1,250})\s*;")
_Subject = Annotated[str, Meta(min_length=1, max_length=1000)]


class ProducedData(Struct, forbid_unknown_fields=True, kw_only=True):
    """A key or value: in which format, by which schema, and what it is."""

    type: Annotated[
        Literal["BINARY", "JSON", "STRING", "AVRO", "JSONSCHEMA", "PROTOBUF"] | None,
        Meta(description="Left out it is that of the schema, or BINARY: base64.", examples=["JSON"]),
    ] = None
    subject: Annotated[_Subject | None, Meta(description="Where the schema is registered.", examples=[None])] = None
    subject_name_strategy: Annotated[
        Literal["TOPIC_NAME", "RECORD_NAME", "TOPIC_RECORD_NAME"] | None,
        Meta(description="What the subject is called where none is given.", examples=[None]),
    ] = None
    schema_id: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    schema_version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | Literal["latest"] | None = None
    schema: Annotated[str | None, Meta(description="The schema itself, to be registered.", examples=[None])] = None
    data: Annotated[Raw | UnsetType, Meta(extra_json_schema=_ANY_VALUE, examples=[{"total": 3}])] = UNSET


class ProducedHeader(Struct, forbid_unknown_fields=True):
    """A header of a record."""

    name: Annotated[str, Meta(max_length=10_000, examples=["source"])]
    value: Annotated[str | None, Meta(description="Base64.", examples=["d2Vi"])] = None


class RecordToProduce(Struct, forbid_unknown_fields=True, kw_only=True):
    """A record to write."""

    partition_id: Partition | None = None
    headers: Annotated[list[ProducedHeader], Meta(max_length=1000)] = []
    key: ProducedData | None = None
    value: ProducedData | None = None
    timestamp: Annotated[str | None, Meta(examples=["2026-01-31T12:00:00Z"])] = None


_EntryId = Annotated[str, Meta(min_length=1, max_length=80, examples=["1"])]


class EntryToProduce(RecordToProduce, forbid_unknown_fields=True, kw_only=True):
    """A record of a batch."""

    id: _EntryId


class BatchToProduce(Struct, forbid_unknown_fields=True):
    """Records to write, each with an id of its own."""

    entries: Annotated[list[EntryToProduce], Meta(min_length=1, max_length=_MOST_ENTRIES)]


class DataReport(Struct, omit_defaults=True):
    """What a key or value became."""

    type: Annotated[str, Meta(examples=["JSON"])]
    size: Annotated[int, Meta(examples=[11])]
    subject: Annotated[str | UnsetType, Meta(examples=["orders-value"])] = UNSET
    schema_id: Annotated[int | UnsetType, Meta(examples=[1])] = UNSET
    schema_version: Annotated[int | UnsetType, Meta(examples=[1])] = UNSET


class DeliveryReport(Struct, omit_defaults=True, kw_only=True):
    """Where a record is."""

    id: Annotated[_EntryId | UnsetType, Meta(description="In a batch.")] = UNSET
    error_code: Annotated[int | UnsetType, Meta(description="200; left out in a batch.", examples=[200])] = UNSET
    cluster_id: Annotated[str, Meta(examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]
    topic_name: Annotated[str, Meta(examples=["orders"])]
    partition_id: Annotated[int, Meta(examples=[0])]
    offset: Annotated[int, Meta(examples=[41])]
    timestamp: Annotated[str, Meta(examples=["2026-01-31T12:00:00.000Z"])]
    key: DataReport | UnsetType = UNSET
    value: DataReport | UnsetType = UNSET


class BatchFailure(Struct):
    """Why a record of a batch was not written."""

    id: _EntryId
    error_code: Annotated[int, Meta(examples=[40002])]
    message: str


class BatchReport(Struct):
    """What became of the records of a batch."""

    successes: list[DeliveryReport]
    failures: list[BatchFailure]


class _Ready(NamedTuple):
    """A record as it will be written, and what is to be told of it."""

    message: MessageToPublish
    key: DataReport | UnsetType
    value: DataReport | UnsetType


_read: Final = decoder(RecordToProduce, "the record")
_encode: Final = msgspec.json.Encoder().encode
_ABOUT: Final = (
    "One record, or many as JSON documents one behind the other; with a chunked body for as long as the connection is "
    "open. Each is answered as soon as it is written, in order, with its own `error_code`: 200 where it was."
)


class RecordResources:
    """Takes records."""

    def __init__(self, clients: Clients, publisher: Publisher, values: Values) -> None:
        self._clients = clients
        self._publisher = publisher
        self._values = values

    def add_to(self, routes: Routes) -> None:
        """All operations."""
        media = V3_MEDIA.decode()
        V3.add(
            routes,
            "POST",
            f"{TOPIC}/records",
            "Produce records.",
            self._produce_records,
            about=_ABOUT,
            path=TopicNamePath,
            body=Body("Records.", media={media: RecordToProduce}, examples={media: _EXAMPLE}),
            answers={200: Reply("What became of each record.", (DeliveryReport, ErrorBody), V3.answer_types)},
        )
        V3.add(
            routes,
            "POST",
            f"{TOPIC}/records:batch",
            "Produce a batch of records.",
            self._produce_batch,
            path=TopicNamePath,
            kind=BatchToProduce,
            answers={207: Reply("What became of each record.", BatchReport, V3.answer_types)},
        )

    async def _produce_records(self, request: Request, path: TopicNamePath) -> Stream:
        V3.require_taken(request)
        place = await self._writable(request, path)
        documents = _documents(request)
        try:
            first = await anext(documents, None)
        except NoDocumentError as error:
            raise Refusal(400, 400, str(error)) from None
        if first is None:
            raise Refusal(422, 422, "Payload error. Request body is empty. Data is required.")
        producing = _Producing(self, place, path.topic_name)
        return Stream(200, producing.answers(first, documents), V3_MEDIA, reads_body=True)

    async def _produce_batch(self, request: Request, path: TopicNamePath, body: BatchToProduce) -> Answer:
        place, topic = await self._writable(request, path), path.topic_name
        if len({each.id for each in body.entries}) != len(body.entries):
            raise Refusal(422, 42208, "Batch entry IDs are not distinct.")
        ready: list[_Ready | Problem] = []
        for each in body.entries:
            try:
                ready.append(await self.prepared(place, topic, each))
            except Problem as problem:
                ready.append(problem)
        outcomes = await asyncio.gather(*(self.report(place, topic, each) for each in ready))
        report = BatchReport([], [])
        for entry, outcome in zip(body.entries, outcomes, strict=True):
            if isinstance(outcome, DeliveryReport):
                outcome.id, outcome.error_code = entry.id, UNSET
                report.successes.append(outcome)
            else:
                report.failures.append(BatchFailure(entry.id, outcome.error_code, outcome.message))
        return json_answer(report, 207)

    async def _writable(self, request: Request, path: TopicNamePath) -> Here:
        place = await here(self._clients, request, path.cluster_id)
        await place.client.cluster.topic(path.topic_name)
        return place

    async def prepared(self, place: Here, topic: str, record: RecordToProduce) -> _Ready:
        """The record that is described, in bytes; a `Problem` says why that cannot be."""
        key, key_report = await self._data(place, topic, record.key, "key")
        value, value_report = await self._data(place, topic, record.value, "value")
        made = Record(0, _milliseconds(record.timestamp), key, value, _headers(record))
        return _Ready(MessageToPublish(made, record.partition_id), key_report, value_report)

    async def report(self, place: Here, topic: str, ready: "_Ready | Problem") -> DeliveryReport | ErrorBody:
        """What becomes of a record when it is written."""
        if isinstance(ready, Problem):
            return _failure(ready)
        try:
            outcome = await self._publisher.one(place.client, topic, ready.message, -1, None)
        except Exception as error:
            problem = error if isinstance(error, Problem) else translate(error)
            if problem is None:
                raise
            return _failure(problem)
        return _report(place, topic, outcome, ready)

    async def _data(
        self, place: Here, topic: str, data: ProducedData | None, what: str
    ) -> tuple[bytes | None, DataReport | UnsetType]:
        if data is None:
            return None, UNSET
        schema = await self._schema(place, topic, data, what)
        form = _TYPES[schema.type] if schema is not None else _FORMATS[data.type or "BINARY"]
        (encoded,) = await self._values.encoded(form, schema, [data.data], f"the {what} of record")
        report = DataReport(form.name, len(encoded or b""))
        if schema is not None:
            report.schema_id = schema.id
            if schema.subject:
                report.subject, report.schema_version = schema.subject, schema.version
        return encoded, report

    async def _schema(self, place: Here, topic: str, data: ProducedData, what: str) -> RegisteredSchema | None:
        """The schema that a key or value is written with; None where its format has none."""
        kind = None if data.type is None else _FORMATS[data.type].schema_type
        names_schema = (data.schema_id, data.schema_version, data.schema, data.subject) != (None,) * 4
        if data.type is not None and kind is None:
            if names_schema:
                raise Refusal(400, 400, f"{data.type} has no schema")
            return None
        if kind is None and not names_schema:
            return None
        if data.schema is not None:
            if kind is None:
                raise Refusal(400, 400, "a schema needs a type: AVRO, JSONSCHEMA or PROTOBUF")
            subject = _subject(topic, data, what, kind)
            posted = Posted(type=kind, text=data.schema)
            return await registered_for(self._values, place.client, topic, subject, posted)
        if data.schema_id is not None:
            found = await self._values.of_id(place.client, data.schema_id, data.subject)
        else:
            version = data.schema_version if isinstance(data.schema_version, int) else -1
            found = await self._values.of_version(place.client, _subject(topic, data, what, None), version)
        if kind is not None and found.type != kind:
            raise Refusal(422, 42205, f"Invalid schema. schema {found.id} is {found.type}, not {kind}")
        return found


class _Producing:
    """One stream of records under way: begun in order, and told of in order."""

    def __init__(self, records: RecordResources, place: Here, topic: str) -> None:
        self._records = records
        self._place = place
        self._topic = topic
        self._reports: deque[tuple[asyncio.Task[DeliveryReport | ErrorBody], int]] = deque()
        """Of records that are being written, with the sizes of their documents."""
        self._held = 0
        self._changed = asyncio.Event()
        self._is_over = False

    async def answers(self, first: bytes, documents: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Reports, as records are written; ends once the stream has."""
        taking = asyncio.ensure_future(self._take(first, documents))
        try:
            async with using(self._place.client):
                while self._reports or not self._is_over:
                    if self._reports:
                        yield await self._told()
                    else:
                        await self._change()
            await taking
        finally:
            left = [taking, *(task for task, _ in self._reports)]
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _told(self) -> bytes:
        """The next report, and those behind it that are there already."""
        chunk = bytearray()
        while not chunk or (self._reports and self._reports[0][0].done() and len(chunk) < _LARGEST_CHUNK):
            task, size = self._reports[0]
            chunk += _encode(await task) + b"\r\n"
            self._reports.popleft()
            self._held -= size
        self._changed.set()
        return bytes(chunk)

    async def _take(self, first: bytes, documents: AsyncIterator[bytes]) -> None:
        """Begin to write records as they come in."""
        try:
            await self._begin(first)
            async for document in documents:
                await self._begin(document)
                await asyncio.sleep(0)  # reports of small records are made as fast as they come in
        except NoDocumentError as error:
            await self._add(_now(ErrorBody(400, str(error))), 0)
        except BadBody as error:
            await self._add(_now(ErrorBody(error.status, str(error))), 0)
        except Disconnected:
            pass
        finally:
            self._is_over = True
            self._changed.set()

    async def _begin(self, document: bytes) -> None:
        ready: _Ready | Problem
        try:
            ready = await self._records.prepared(self._place, self._topic, V3.body_of(document, _read))
        except Exception as error:
            problem = error if isinstance(error, Problem) else translate(error)
            if problem is None:
                raise
            ready = problem
        await self._add(self._records.report(self._place, self._topic, ready), len(document))

    async def _add(self, report: Coroutine[Any, Any, DeliveryReport | ErrorBody], size: int) -> None:
        self._held += size
        self._reports.append((asyncio.ensure_future(report), size))
        self._changed.set()
        while len(self._reports) > _MOST_WAITING or self._held > _MOST_HELD:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


async def _now(report: ErrorBody) -> ErrorBody:
    return report


async def _documents(request: Request) -> AsyncGenerator[bytes, None]:
    """The documents of a body; `NoDocumentError` where what comes is none."""
    splitter, held = DocumentSplitter(MOST_BODY), 0
    try:
        async for part in request.parts(IDLE_SECONDS):
            for start in range(0, len(part), _LOOKED_AT_ONCE):
                for document in splitter.feed(part[start : start + _LOOKED_AT_ONCE]):
                    yield document
                RECEIVING.grow(splitter.held - held)
                held = splitter.held
                await asyncio.sleep(0)  # what is here already lets nobody else run
    finally:
        RECEIVING.grow(-held)
    if held:
        raise NoDocumentError("the last record is cut short")


_EXAMPLE: Final = {
    "key": {"type": "STRING", "data": "alice"},
    "value": {"type": "JSON", "data": {"total": 3}},
    "headers": [{"name": "source", "value": "d2Vi"}],
}


def _failure(problem: Problem) -> ErrorBody:
    return ErrorBody(numbered(problem, V3_NUMBERS)[1], problem.detail)


def _report(place: Here, topic: str, outcome: PublishOutcome, ready: _Ready) -> DeliveryReport:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(outcome.timestamp, _LAST_MS))
    return DeliveryReport(
        error_code=200,
        cluster_id=place.cluster_id,
        topic_name=topic,
        partition_id=outcome.partition,
        offset=outcome.offset,
        timestamp=moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        key=ready.key,
        value=ready.value,
    )


_LAST_MS: Final = 253_402_300_799_999


def _headers(record: RecordToProduce) -> Headers:
    try:
        return tuple(
            (
                each.name,
                None if each.value is None else decode_base64(each.value.encode(), f"header '{each.name[:80]}'"),
            )
            for each in record.headers
        )
    except Problem as problem:
        raise Refusal(400, 400, problem.detail) from None


def _milliseconds(text: str | None) -> int:
    if text is None:
        return now_ms()
    try:
        return time_ms(text)
    except Problem as problem:
        raise Refusal(400, 400, problem.detail) from None


def _subject(topic: str, data: ProducedData, what: str, kind: str | None) -> str:
    """The subject of a schema: the one that is named, or what the strategy calls it."""
    if data.subject is not None:
        return data.subject
    strategy = data.subject_name_strategy or "TOPIC_NAME"
    if strategy == "TOPIC_NAME":
        return f"{topic}-{what}"
    name = _record_name(kind, data.schema or "") if kind is not None else ""
    if not name:
        raise Refusal(400, 400, f"{strategy} needs a schema that has a name")
    return name if strategy == "RECORD_NAME" else f"{topic}-{name}"


def _record_name(kind: str, text: str) -> str:
    """The full name of what a schema describes; empty where it has none."""
    if kind == "PROTOBUF":
        message, package = _PROTOBUF_NAME.search(text), _PROTOBUF_PACKAGE.search(text)
        return "" if message is None else f"{package[1]}.{message[1]}" if package else message[1]
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(schema, dict):
        return ""
    if kind == "JSON":
        return str(schema.get("title", ""))
    name, namespace = str(schema.get("name", "")), schema.get("namespace")
    return f"{namespace}.{name}" if namespace and name and "." not in name else name
