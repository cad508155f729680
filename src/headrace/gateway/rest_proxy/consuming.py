"""v2: consumers over HTTP, from their creation to their deletion."""

import secrets
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from msgspec import Meta, Struct, field

from headrace.client.aio.reader import FetchedRecord
from headrace.client.core.groups import CommittedOffset
from headrace.protocol.topic_partition import TopicPartition
from headrace.web.checking import text_meta
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.problem import Problem
from headrace.web.routes import Reply, Routes

from ..consumer_routes import gateway_url
from ..consumers import Consumers
from ..credentials import Clients
from ..group_routes import refuse
from ..names import Group, GroupPath, Offset, Partition, Topic
from ..read_routes import MOST_BYTES, MOST_WAIT_MS, offset_at, time_ms
from .failures import V2_MEDIA, Refusal
from .instances import Instance, InstanceSettings
from .media import FORMATS, ValueFormat, accepted
from .operations import DONE, V2
from .values import UnshownError, Values

_MOST_RECORDS: Final = 10_000
_INVALID_CONFIG: Final = 42204
_EXISTS: Final = 40902
_MISMATCH: Final = 40601
_NOT_CONVERTED: Final = 42203
_NEUTRAL: Final = (V2_MEDIA.decode(), "application/vnd.kafka+json", "application/json")
"""Types that leave the format to the consumer."""
_GROUP: Final = "/consumers/{group}"
_INSTANCE: Final = f"{_GROUP}/instances/{{instance}}"
_Name = Annotated[
    str,
    text_meta(r"^[^\x00-\x1f\x7f]{1,255}\Z", "a name: 1 to 255 characters, none of them control", "reader-1", most=255),
]
_Note = Annotated[str, Meta(max_length=4096, examples=[""])]
_Refresh = Annotated[int, Meta(ge=100, le=3_600_000, description="How often a topic_pattern is looked up again.")]


class NewInstance(Struct, forbid_unknown_fields=True, kw_only=True):
    """How a consumer is to read."""

    id: _Name | None = None
    name: _Name | None = None
    format: Literal["binary", "json", "avro", "jsonschema", "protobuf"] = "binary"
    reset: Literal["earliest", "latest"] = field(default="latest", name="auto.offset.reset")
    auto_commit: Annotated[bool, Meta(description="Each read commits what the one before it gave.")] = field(
        default=True, name="auto.commit.enable"
    )
    least_bytes: Annotated[int, Meta(ge=-1, le=10_000_000)] = field(default=-1, name="fetch.min.bytes")
    wait_ms: Annotated[int, Meta(ge=1, le=MOST_WAIT_MS)] = field(default=1000, name="consumer.request.timeout.ms")
    idle_ms: Annotated[int, Meta(ge=1000, le=3_600_000)] = field(default=300_000, name="consumer.instance.timeout.ms")
    refresh_ms: _Refresh = field(default=30_000, name="topic.metadata.refresh.interval.ms")


class InstanceView(Struct):
    """A consumer."""

    instance_id: Annotated[str, Meta(examples=["reader-1"])]
    base_uri: Annotated[
        str,
        Meta(
            description="Where it is to be asked: it lives in one gateway.",
            examples=["http://127.0.0.1:8080/consumers/billing/instances/reader-1"],
        ),
    ]


class Subscription(Struct, forbid_unknown_fields=True):
    """Topics by name, or by a regular expression (RE2)."""

    topics: Annotated[list[Topic], Meta(max_length=1000)] | None = None
    topic_pattern: Annotated[str, Meta(max_length=2000, examples=["orders-.*"])] | None = None


class SubscribedTopics(Struct):
    """Topics by name."""

    topics: Annotated[list[str], Meta(examples=[["orders"]])]


class PartitionName(Struct, forbid_unknown_fields=True):
    """A partition."""

    topic: Topic
    partition: Partition


class PartitionNames(Struct, forbid_unknown_fields=True):
    """Partitions."""

    partitions: Annotated[list[PartitionName], Meta(max_length=10_000)]


class NextOffset(PartitionName, forbid_unknown_fields=True, kw_only=True):
    """The next offset to read of a partition."""

    offset: Offset
    metadata: _Note | None = None


class FirstTime(PartitionName, forbid_unknown_fields=True, kw_only=True):
    """The time from which to read a partition."""

    timestamp: Annotated[str, Meta(max_length=40, examples=["2026-01-31T12:00:00Z"])]
    metadata: _Note | None = None


class NextOffsets(Struct, forbid_unknown_fields=True):
    """Where to go on."""

    offsets: Annotated[list[NextOffset], Meta(max_length=10_000)] = []
    timestamps: Annotated[list[FirstTime], Meta(max_length=10_000, examples=[[]])] = []


class ReadOffset(PartitionName, forbid_unknown_fields=True, kw_only=True):
    """The offset of the last record that was dealt with: the next one is committed."""

    offset: Annotated[int, Meta(ge=0, le=2**63 - 2, examples=[41])]
    metadata: _Note | None = None


class ReadOffsets(Struct, forbid_unknown_fields=True):
    """What was dealt with."""

    offsets: Annotated[list[ReadOffset], Meta(max_length=10_000)] | None = None


class GroupOffset(Struct):
    """What a group has committed: the next offset to read."""

    topic: Annotated[str, Meta(examples=["orders"])]
    partition: Annotated[int, Meta(examples=[0])]
    offset: Annotated[int, Meta(examples=[42])]
    metadata: Annotated[str, Meta(examples=[""])]


class GroupOffsets(Struct):
    """Of partitions without a commit there is none."""

    offsets: list[GroupOffset]


class InstanceRecord(Struct):
    """A record that was read, with key and value in the consumer's format."""

    topic: Annotated[str, Meta(examples=["orders"])]
    key: Annotated[Any, Meta(examples=["YWxpY2U="])]
    value: Annotated[Any, Meta(examples=["eyJ0b3RhbCI6IDN9"])]
    partition: Annotated[int, Meta(examples=[0])]
    offset: Annotated[int, Meta(examples=[41])]
    timestamp: Annotated[int, Meta(description="Milliseconds since 1970.", examples=[1_700_000_000_000])]


class InstancePath(Struct, frozen=True):
    """A path with a consumer."""

    group: Group
    instance: _Name


class RecordsQuery(Struct, frozen=True):
    """How much to read; -1 for what the consumer was made with."""

    timeout: Annotated[int, Meta(ge=-1, description="Milliseconds to wait for records.")] = -1
    max_bytes: Annotated[int, Meta(ge=-1, description="Of keys and values; one record always comes.")] = -1


class ProxyConsumers:
    """Makes consumers and hands requests to them."""

    def __init__(self, clients: Clients, instances: Consumers[Instance], values: Values) -> None:
        self._clients = clients
        self._instances = instances
        self._values = values

    def add_to(self, routes: Routes) -> None:
        """All operations."""
        made = V2.answered("The consumer.", InstanceView)
        about = "It lives in this gateway, until it is deleted or nobody has asked for it for so long."
        V2.add(
            routes,
            "POST",
            _GROUP,
            "Create a consumer.",
            self._create,
            about=about,
            path=GroupPath,
            kind=NewInstance,
            required=False,
            unfit=_INVALID_CONFIG,
            answers=made,
        )
        self._add_reading(routes)
        for method, part, summary, handler, kind, answers in (
            ("POST", "subscription", "Subscribe.", self._subscribe, Subscription, DONE),
            ("GET", "subscription", "Show topics.", self._subscription, None, V2.answered("Topics.", SubscribedTopics)),
            ("DELETE", "subscription", "Unsubscribe.", self._unsubscribe, None, DONE),
            ("POST", "assignments", "Assign partitions.", self._assign, PartitionNames, DONE),
            ("GET", "assignments", "Show partitions.", self._assignment, None, V2.answered("These.", PartitionNames)),
            ("POST", "positions", "Go on elsewhere.", self._seek, NextOffsets, DONE),
            (
                "POST",
                "positions/beginning",
                "Go on at the first offset.",
                self._seek_to_beginning,
                PartitionNames,
                DONE,
            ),
            ("POST", "positions/end", "Go on at the end.", self._seek_to_end, PartitionNames, DONE),
            (
                "GET",
                "offsets",
                "Show committed offsets.",
                self._committed,
                PartitionNames,
                V2.answered("These.", GroupOffsets),
            ),
        ):
            V2.add(
                routes, method, f"{_INSTANCE}/{part}", summary, handler, path=InstancePath, kind=kind, answers=answers
            )
        V2.add(routes, "DELETE", _INSTANCE, "Delete a consumer.", self._delete, path=InstancePath, answers=DONE)

    def _add_reading(self, routes: Routes) -> None:
        media = tuple(f"application/vnd.kafka.{name}.v2+json" for name in FORMATS)
        V2.add(
            routes,
            "GET",
            f"{_INSTANCE}/records",
            "Read records.",
            self._read,
            about="Records since the last read, once there are some. Where one cannot be shown in the consumer's "
            "format (42203) nothing is passed over: go on behind it with `positions`.",
            path=InstancePath,
            query=RecordsQuery,
            answers={
                200: Reply(
                    "Records, perhaps none.", list[InstanceRecord], (*media, V2_MEDIA.decode(), "application/json")
                )
            },
        )
        V2.add(
            routes,
            "POST",
            f"{_INSTANCE}/offsets",
            "Commit.",
            self._commit,
            about="Without a body all that was read. An offset is that of the last record that was dealt with: the one "
            "after it is committed, as REST Proxy does.",
            path=InstancePath,
            kind=ReadOffsets,
            required=False,
            answers=V2.answered("Committed.", list[GroupOffset], example=[]),
        )

    async def _create(self, request: Request, path: GroupPath, body: NewInstance | None) -> Answer:
        asked = body or NewInstance()
        client = self._clients.of(request)
        await client.cluster.any()
        name = asked.id or asked.name or f"rest-consumer-{secrets.token_urlsafe(16)}"
        if self._instances.find(client, path.group, name) is not None:
            raise Refusal(
                409, _EXISTS, "Consumer with specified consumer ID already exists in the specified consumer group."
            )
        settings = InstanceSettings(
            group=path.group,
            name=name,
            form=ValueFormat(asked.format),
            reset=asked.reset,
            auto_commit=asked.auto_commit,
            least_bytes=max(asked.least_bytes, 1),
            wait_ms=asked.wait_ms,
            idle_ms=asked.idle_ms,
            refresh_ms=asked.refresh_ms,
        )
        self._instances.add(lambda: Instance(client, settings), client)
        own_path = f"/consumers/{quote(path.group, safe='')}/instances/{quote(name, safe='')}"
        return json_answer(InstanceView(name, gateway_url(request, self._clients.settings.advertise) + own_path))

    async def _delete(self, request: Request, path: InstancePath) -> Answer:
        await self._instances.remove(self._found(request, path))
        return Answer(204)

    async def _subscribe(self, request: Request, path: InstancePath, body: Subscription) -> Answer:
        instance = self._found(request, path)
        if body.topics and body.topic_pattern:
            raise Refusal(
                409, 40903, "Illegal state: Subscription to topics, partitions and pattern are mutually exclusive"
            )
        if body.topic_pattern:
            await instance.subscribe_pattern(body.topic_pattern)
        elif body.topics:
            await instance.subscribe(body.topics)
        elif body.topics is None:
            raise Refusal(422, 422, "the body must have topics or a topic_pattern")
        else:
            await instance.unsubscribe()
        return Answer(204)

    async def _subscription(self, request: Request, path: InstancePath) -> Answer:
        return json_answer(SubscribedTopics(list(self._found(request, path).topics)))

    async def _unsubscribe(self, request: Request, path: InstancePath) -> Answer:
        await self._found(request, path).unsubscribe()
        return Answer(204)

    async def _assign(self, request: Request, path: InstancePath, body: PartitionNames) -> Answer:
        await self._found(request, path).assign(_places(body))
        return Answer(204)

    async def _assignment(self, request: Request, path: InstancePath) -> Answer:
        return json_answer(PartitionNames([PartitionName(*place) for place in self._found(request, path).assignment]))

    async def _seek(self, request: Request, path: InstancePath, body: NextOffsets) -> Answer:
        instance = self._found(request, path)
        offsets = {TopicPartition(each.topic, each.partition): each.offset for each in body.offsets}
        for each in body.timestamps:
            at = await offset_at(instance.client, each.topic, each.partition, _milliseconds(each.timestamp))
            offsets[TopicPartition(each.topic, each.partition)] = at
        instance.seek(offsets)
        return Answer(204)

    async def _seek_to_beginning(self, request: Request, path: InstancePath, body: PartitionNames) -> Answer:
        await self._found(request, path).seek_to_end(_places(body), is_beginning=True)
        return Answer(204)

    async def _seek_to_end(self, request: Request, path: InstancePath, body: PartitionNames) -> Answer:
        await self._found(request, path).seek_to_end(_places(body), is_beginning=False)
        return Answer(204)

    async def _commit(self, request: Request, path: InstancePath, body: ReadOffsets | None) -> Answer:
        offsets = None
        if body is not None and body.offsets is not None:
            offsets = {
                TopicPartition(each.topic, each.partition): CommittedOffset(each.offset + 1, each.metadata or "")
                for each in body.offsets
            }
        refuse(await self._found(request, path).commit(offsets))
        return json_answer([])

    async def _committed(self, request: Request, path: InstancePath, body: PartitionNames) -> Answer:
        found = await self._found(request, path).committed(_places(body))
        return json_answer(GroupOffsets([GroupOffset(*place, *offset) for place, offset in sorted(found.items())]))

    async def _read(self, request: Request, path: InstancePath, query: RecordsQuery) -> Answer:
        instance = self._found(request, path)
        form = instance.settings.form
        media = _type_of(request, form)
        wait_ms = None if query.timeout <= 0 else min(query.timeout, MOST_WAIT_MS)
        most_bytes = MOST_BYTES if query.max_bytes <= 0 else min(query.max_bytes, MOST_BYTES)
        found = await instance.poll(_MOST_RECORDS, wait_ms, most_bytes)
        try:
            records = await self._shown(form, found)
        except Refusal:
            instance.give_back(found)
            raise
        return json_answer(records, content_type=media)

    async def _shown(self, form: ValueFormat, found: list[FetchedRecord]) -> list[InstanceRecord]:
        try:
            keys = await self._values.shown(form, [each.record.key for each in found], is_key=True)
            values = await self._values.shown(form, [each.record.value for each in found])
        except UnshownError as error:
            topic, partition, record = found[error.index]
            detail = f"{topic}-{partition} at offset {record.offset} cannot be shown as {form.value}: {error.reason}"
            raise Refusal(422, _NOT_CONVERTED, f"Conversion of JSON to Object failed: {detail}") from None
        return [
            InstanceRecord(topic, key, value, partition, record.offset, record.timestamp)
            for (topic, partition, record), key, value in zip(found, keys, values, strict=True)
        ]

    def _found(self, request: Request, path: InstancePath) -> Instance:
        return self._instances.get(self._clients.of(request), path.group, path.instance)


def _places(body: PartitionNames) -> list[TopicPartition]:
    return [TopicPartition(each.topic, each.partition) for each in body.partitions]


def _milliseconds(text: str) -> int:
    try:
        return time_ms(text)
    except Problem as problem:
        raise Refusal(422, 422, problem.detail) from None


def _type_of(request: Request, form: ValueFormat) -> bytes:
    """The type to answer records with; `Refusal` 406 where the caller takes none of the consumer's format."""
    for media in accepted(request):
        if f".{form.value}." in media or media in _NEUTRAL:
            return media.encode()
    detail = "The requested embedded data format does not match the deserializer for this consumer instance"
    raise Refusal(406, _MISMATCH, detail)
