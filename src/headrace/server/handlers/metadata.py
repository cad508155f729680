"""Metadata, versions 0-13, and DescribeTopicPartitions, version 0.

Metadata tells clients the brokers, the topics and who leads each partition. Topics are found by name, or from v10 on
by id. One that does not exist is created where `auto.create.topics.enable` and the request allow it, and stands in
the same answer with its leader (Kafka answers LEADER_NOT_AVAILABLE first and lets the client ask again). The answer
is returned as bytes, put together from topics that are kept encoded: see `metadata_cache`.

Brokers are told by their endpoints of the listener on which the request came; those that have none there are left out,
and what they lead is LISTENER_NOT_FOUND (LEADER_NOT_AVAILABLE before v6).

- v0: an empty list of topics asks for all; from v1 on null asks for all, an empty list for none.
- v4 lets the client forbid creation; older ones cannot.
- v8 adds authorized operations (of the cluster only up to v10), INT32_MIN where they were not asked for.
- v10 adds topic ids; v12 null names, for ids that are not known; v13 an error at the top.

DescribeTopicPartitions pages through topics in the order of their names, at most `PAGE` partitions at a time. The
lists of eligible leaders (KIP-966) may be empty, never null: the Java client does not expect null. A cursor before the
first partition is INVALID_REQUEST for each topic asked for, as the answer has no other place for it.

Left out: internal topics are never created by asking for them; who needs one creates it.
"""

import asyncio
from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

from headrace.cluster.image import BrokerNode, ClusterImage, Endpoint, Topic
from headrace.cluster.metadata_writer import TopicSpec
from headrace.cluster.topics import INTERNAL, validate_name
from headrace.net.pacing import paced
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo, reachable_controller
from ..dispatch import Handler
from .authorized import NOT_ASKED, cluster_operations, is_free, may, may_see, operations, require
from .metadata_cache import ReachableBrokers, TopicCache, assemble, describe_partition, encode_topic
from .topics import may_create

PAGE: Final = 2000
_BREATH: Final = 1000
_SHARDS: Final = 0xFF
_CACHES: Final[WeakKeyDictionary[ClusterImage, TopicCache]] = WeakKeyDictionary()
_SORTED: Final[WeakKeyDictionary[ClusterImage, tuple[int, list[str]]]] = WeakKeyDictionary()


async def handle_metadata(ctx: Context, request: Any, info: RequestInfo) -> bytearray:
    """Answers in bytes; see above."""
    asks_for_all = request.topics is None or (info.version == 0 and not request.topics)
    problems = _Problems(info.version)
    topics = await _visible(ctx, info) if asks_for_all else await _find_topics(ctx, request, info, problems)
    encoded: list[bytes] = []
    if getattr(request, "include_topic_authorized_operations", False):
        for allowed, some in (await _by_operations(ctx, info, topics)).items():
            encoded += await _encoded(ctx.image, some, info, allowed)
    else:
        encoded = await _encoded(ctx.image, topics, info, NOT_ASKED)
    return assemble(info.version, _cluster(ctx, request, info), encoded, problems.encoded, problems.count)


async def _visible(ctx: Context, info: RequestInfo) -> list[Topic]:
    """The topics that whoever asks may describe."""
    topics = list(ctx.image.topics())
    if is_free(ctx, info):
        return topics
    kind, describe = ResourceType.TOPIC, AclOperation.DESCRIBE
    return [topic async for topic in paced(topics) if may_see(ctx, info, describe, kind, topic.name)]


async def _by_operations(ctx: Context, info: RequestInfo, topics: list[Topic]) -> dict[int, list[Topic]]:
    """The topics by what may be done with them, as many can be done the same with."""
    if is_free(ctx, info):
        return {operations(ctx, info, ResourceType.TOPIC, ""): topics}
    grouped: dict[int, list[Topic]] = {}
    async for topic in paced(topics):
        grouped.setdefault(operations(ctx, info, ResourceType.TOPIC, topic.name), []).append(topic)
    return grouped


async def _encoded(image: ClusterImage, topics: list[Topic], info: RequestInfo, allowed: int) -> list[bytes]:
    """The topics in bytes, with a breath for others every now and then."""
    cache = _CACHES.setdefault(image, TopicCache())
    version, listener = info.version, info.listener
    encoded = cache.encoded(topics[:_BREATH], image, version, allowed, listener)
    for start in range(_BREATH, len(topics), _BREATH):
        await asyncio.sleep(0)
        encoded += cache.encoded(topics[start : start + _BREATH], image, version, allowed, listener)
    return encoded


def _cluster(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    image = ctx.image
    wants_operations = getattr(request, "include_cluster_authorized_operations", False)
    return {
        "throttle_time": 0,
        "brokers": [
            _broker(broker, endpoint)
            for broker in image.brokers.values()
            if (endpoint := broker.endpoint(info.listener)) is not None
        ],
        "cluster_id": image.cluster_id,
        "controller_id": reachable_controller(ctx, info),
        "cluster_authorized_operations": cluster_operations(ctx, info) if wants_operations else NOT_ASKED,
        "error_code": ErrorCode.none,
    }


def _broker(broker: BrokerNode, endpoint: Endpoint) -> dict[str, Any]:
    return {"node_id": broker.id, "host": endpoint.host, "port": endpoint.port, "rack": broker.rack}


class _Problems:
    """Answers for topics that cannot be given, each once, in bytes.

    A request may have a hundred thousand: nothing here is large and has to be made larger, looked at or let go at once.
    """

    def __init__(self, version: int) -> None:
        self.encoded = bytearray()
        self.count = 0
        self._version = version
        self._seen: dict[int, set[object]] = {}

    def add(self, name: str | None, topic_id: object, code: ErrorCode) -> None:
        """v10 and v11 can ask by id but cannot answer without a name."""
        key = topic_id or name
        seen = self._seen.setdefault(hash(key) & _SHARDS, set())
        if key not in seen:
            seen.add(key)
            self.encoded += encode_topic(self._version, _problem(name, topic_id, code))
            self.count += 1

    async def end(self) -> None:
        """No more are to be added."""
        async for names in paced(self._seen.values(), 1):
            names.clear()


async def _find_topics(ctx: Context, request: Any, info: RequestInfo, problems: _Problems) -> list[Topic]:
    """The topics that were asked for, each once."""
    creates = getattr(request, "allow_auto_topic_creation", True) and bool(ctx.config["auto.create.topics.enable"])
    topics: dict[str, Topic] = {}
    async for asked in paced(request.topics):
        topic_id = getattr(asked, "topic_id", None)
        try:
            topic = _by_id(ctx, asked, info) if topic_id is not None else await _by_name(ctx, asked.name, info, creates)
        except CodedError as error:
            problems.add(asked.name, topic_id, error.code)
        else:
            topics[topic.name] = topic
    await problems.end()
    return list(topics.values())


def _by_id(ctx: Context, asked: Any, info: RequestInfo) -> Topic:
    topic = ctx.image.topic_by_id(asked.topic_id)
    if topic is None:
        raise CodedError(ErrorCode.unknown_topic_id)
    require(ctx, info, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name)
    return topic


async def _by_name(ctx: Context, name: str | None, info: RequestInfo, creates: bool) -> Topic:
    """Whether a topic exists is told to those who may describe it."""
    if name is None:
        raise CodedError(ErrorCode.invalid_request, "a topic without a name and without an id")
    require(ctx, info, AclOperation.DESCRIBE, ResourceType.TOPIC, name)
    topic = ctx.image.topic(name)
    if topic is not None:
        return topic
    if creates and not may_create(ctx, info, name):
        raise CodedError(ErrorCode.topic_authorization_failed)
    validate_name(name)
    if not creates or name in INTERNAL:
        raise CodedError(ErrorCode.unknown_topic_or_partition)
    try:
        return await ctx.controller.create_topic(TopicSpec(name=name))
    except CodedError as error:
        created = ctx.image.topic(name)
        if error.code is ErrorCode.topic_already_exists and created is not None:
            return created
        raise


def _problem(name: str | None, topic_id: object, code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "name": name or "", "topic_id": topic_id, "partitions": ()}


async def handle_describe_topic_partitions(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:
        refused = [_problem(topic.name, None, ErrorCode.invalid_request) for topic in request.topics or ()]
        return {"throttle_time": 0, "topics": refused, "next_cursor": None}
    left = max(1, min(PAGE, request.response_partition_limit))
    answered: list[dict[str, Any]] = []
    reach = ReachableBrokers.of(ctx.image, info.listener)
    next_cursor = None
    is_named = bool(request.topics)
    async for name, first in paced(_from_cursor(ctx.image, request)):
        if not _may_page(ctx, info, name, is_named=is_named):
            if is_named:
                answered.append(_problem(name, None, ErrorCode.topic_authorization_failed))
            continue
        topic = ctx.image.topic(name)
        if topic is None:
            answered.append(_missing(name))
            continue
        if not left:
            next_cursor = {"topic_name": name, "partition_index": first}
            break
        allowed = operations(ctx, info, ResourceType.TOPIC, name)
        page, left = _page(topic, first, left, reach, allowed)
        answered.append(page)
        reached = first + len(page["partitions"])
        if reached < len(topic.partitions):
            next_cursor = {"topic_name": name, "partition_index": reached}
            break
    return {"throttle_time": 0, "topics": answered, "next_cursor": next_cursor}


def _may_page(ctx: Context, info: RequestInfo, name: str, *, is_named: bool) -> bool:
    asks = may if is_named else may_see
    return asks(ctx, info, AclOperation.DESCRIBE, ResourceType.TOPIC, name)


def _from_cursor(image: ClusterImage, request: Any) -> Iterator[tuple[str, int]]:
    """The names to answer, in order, each with the partition to begin at."""
    names = sorted({topic.name for topic in request.topics}) if request.topics else _names_in_order(image)
    cursor = request.cursor
    for name in names:
        if cursor is None or name > cursor.topic_name:
            yield name, 0
        elif name == cursor.topic_name:
            yield name, cursor.partition_index


def _names_in_order(image: ClusterImage) -> list[str]:
    version, names = _SORTED.get(image, (-1, []))
    if version != image.version:
        names = sorted(topic.name for topic in image.topics())
        _SORTED[image] = (image.version, names)
    return names


def _page(topic: Topic, first: int, limit: int, reach: ReachableBrokers, allowed: int) -> tuple[dict[str, Any], int]:
    states = topic.partitions[first : first + limit]
    page = {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": [describe_partition(first + step, state, reach) for step, state in enumerate(states)],
        "topic_authorized_operations": allowed,
    }
    return page, limit - len(states)


def _missing(name: str) -> dict[str, Any]:
    try:
        validate_name(name)
        code = ErrorCode.unknown_topic_or_partition
    except CodedError as error:
        code = error.code
    return {"error_code": code, "name": name, "topic_id": None, "partitions": ()}


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.METADATA: handle_metadata,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: handle_describe_topic_partitions,
}
