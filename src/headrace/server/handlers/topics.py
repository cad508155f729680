"""CreateTopics, versions 2-7, DeleteTopics, versions 1-6, and CreatePartitions, versions 0-3.

Each topic of a request succeeds or fails by itself, with its own code and message. A name that stands twice in one
request fails (INVALID_REQUEST), and nothing is done for it. The topics of one CreateTopics are created side by side.
Changes are done when the answer is sent, so timeouts are not looked at.

- CreateTopics: -1 partitions or replicas are the broker's defaults. From v5 on the answer has the topic's settings,
  an empty array on an error and never null (the Java client does not expect it); from v7 on its id.
- DeleteTopics v6 names topics by name or by id; v5 adds messages. With `delete.topic.enable=false` the code is
  TOPIC_DELETION_DISABLED from v3 on, INVALID_REQUEST before.
- CreatePartitions can only add partitions; records already there stay where they are. Assignments that are null leave
  the placing to us; an empty array of them is too few.
- `validate_only` answers as if it had been done.
- Partitions made and deleted count against `controller_mutation_rate` (KIP-599), those of `validate_only` as well.
  Who owes some is refused (THROTTLING_QUOTA_EXCEEDED) from CreateTopics v6, DeleteTopics v5 and CreatePartitions v3 on,
  topic by topic; before, the requests are carried out, and the client has to wait afterwards.
"""

from collections.abc import Iterable
from math import ceil
from typing import Any, Final
from uuid import UUID

from headrace.cluster.image import Topic
from headrace.cluster.metadata_writer import TopicSpec
from headrace.config import shown
from headrace.net.pacing import gather_limited, paced
from headrace.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from .authorized import may, may_see, refused, require
from .describe import describe_topic_configs

_FIRST_WITH_DELETION_DISABLED: Final = 3
_FIRST_WITH_TOPIC_IDS: Final = 6
_FIRST_STRICT: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""The versions from which on clients know THROTTLING_QUOTA_EXCEEDED."""


class _Mutations:
    """The partitions that one request makes or deletes, and what its client may."""

    def __init__(self, ctx: Context, info: RequestInfo) -> None:
        self._is_strict = info.version >= _FIRST_STRICT[ApiKey(info.api_key)]
        user, client_id = info.principal.partition(":")[2], info.client_id or ""
        is_limited = ctx.quotas is not None and ctx.quotas.is_on and info.peer_broker is None
        self._now = ctx.clock.monotonic if ctx.quotas is None else ctx.quotas.now
        self._bucket = ctx.quotas.mutations_of(user, client_id) if ctx.quotas is not None and is_limited else None
        self._seconds = 0.0

    @property
    def throttle_ms(self) -> int:
        """How long the client has to wait."""
        return ceil(self._seconds * 1000)

    def take(self, count: int) -> float:
        """Partitions are about to be made or deleted; `CodedError` where some are owed already. What was taken for
        them: less where it is more than anybody is made to owe."""
        if self._bucket is None:
            return 0
        taken = min(count, self._bucket.room(self._now()))
        if not self._is_strict:
            self._seconds = self._bucket.charge(taken, self._now())
            return taken
        owed = self._bucket.pause(self._now())
        if owed > 0:
            self._seconds = owed
            raise CodedError(ErrorCode.throttling_quota_exceeded, "The throttling quota has been exceeded.")
        self._bucket.charge(taken, self._now())
        return taken

    def give_back(self, taken: float) -> None:
        """They were not, after all."""
        if self._bucket is not None:
            self._bucket.charge(-taken, self._now())


async def handle_create_topics(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    wanted = request.topics or ()
    repeated = await _repeated(topic.name for topic in wanted)
    once = [topic async for topic in paced(wanted) if topic.name not in repeated]
    mutations = _Mutations(ctx, info)
    answers = await gather_limited(lambda topic: _create(ctx, info, topic, mutations, request.validate_only), once)
    refused = [_not_created(name, _duplicate()) for name in repeated]
    return {"throttle_time": mutations.throttle_ms, "topics": [*answers, *refused]}


async def _create(
    ctx: Context, info: RequestInfo, creation: Any, mutations: _Mutations, validate_only: bool
) -> dict[str, Any]:
    taken = 0.0
    try:
        if not may_create(ctx, info, creation.name):
            raise refused(info, AclOperation.CREATE, ResourceType.TOPIC, creation.name)
        spec = _spec(creation)
        if ctx.image.topic(spec.name) is None:
            needed = len(spec.assignments) or spec.partitions
            needed = needed if needed > 0 else int(ctx.config["num.partitions"])
            taken = mutations.take(needed)
        topic = await ctx.controller.create_topic(spec, validate_only=validate_only)
    except CodedError as error:
        mutations.give_back(taken)
        return _not_created(creation.name, error)
    if not may_see(ctx, info, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        return _created_unseen(topic, validate_only)
    return {
        "name": topic.name,
        "topic_id": None if validate_only else topic.id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": len(topic.partitions),
        "replication_factor": len(topic.partitions[0].replicas),
        "configs": describe_topic_configs(ctx.config, topic),
    }


def may_create(ctx: Context, info: RequestInfo, name: str) -> bool:
    """Whether the client may create a topic of that name."""
    return may_see(ctx, info, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) or may(
        ctx, info, AclOperation.CREATE, ResourceType.TOPIC, name
    )


def _created_unseen(topic: Topic, validate_only: bool) -> dict[str, Any]:
    """What is told of a new topic to who may not see its settings."""
    return {
        "name": topic.name,
        "topic_id": None if validate_only else topic.id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "topic_config_error_code": ErrorCode.topic_authorization_failed,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": (),
    }


def _spec(creation: Any) -> TopicSpec:
    assignments = creation.assignments or ()
    configs = creation.configs or ()
    if len({assignment.partition_index for assignment in assignments}) != len(assignments):
        raise CodedError(ErrorCode.invalid_replica_assignment, "a partition is assigned more than once")
    for config in configs:
        if config.value is None:
            raise CodedError(
                ErrorCode.invalid_config,
                f"Null value not supported for topic configs: {shown(config.name)}; leave it out",
            )
    return TopicSpec(
        name=creation.name,
        partitions=creation.num_partitions,
        replication_factor=creation.replication_factor,
        assignments={assignment.partition_index: assignment.broker_ids or () for assignment in assignments},
        configs={config.name: config.value for config in configs},
    )


def _not_created(name: str, error: CodedError) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error.code,
        "error_message": error.message,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": (),
    }


async def handle_delete_topics(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    if info.version >= _FIRST_WITH_TOPIC_IDS:
        topics = [(topic.name, topic.topic_id) for topic in request.topics or ()]
    else:
        topics = [(name, None) for name in request.topic_names or ()]
    repeated = await _repeated(topics)
    answers = []
    mutations = _Mutations(ctx, info)
    async for name, topic_id in paced(dict.fromkeys(topics)):
        try:
            if (name, topic_id) in repeated:
                raise _duplicate()
            topic = await _delete(ctx, name, topic_id, info, mutations)
        except CodedError as error:
            answers.append(_not_deleted(ctx, info, name, topic_id, error))
        else:
            answers.append(_deleted(topic.name, topic.id, ErrorCode.none, None))
    return {"throttle_time": mutations.throttle_ms, "responses": answers}


async def _delete(
    ctx: Context, name: str | None, topic_id: UUID | None, info: RequestInfo, mutations: _Mutations
) -> Topic:
    if not ctx.config["delete.topic.enable"]:
        disabled = info.version >= _FIRST_WITH_DELETION_DISABLED
        code = ErrorCode.topic_deletion_disabled if disabled else ErrorCode.invalid_request
        raise CodedError(code, "Topic deletion is disabled; set delete.topic.enable=true on the broker to allow it")
    if (name is None) == (topic_id is None):
        raise CodedError(ErrorCode.invalid_request, "Name a topic to delete by its name or by its id, and not by both")
    if topic_id is not None:
        found = ctx.image.topic_by_id(topic_id)
        if found is None:
            raise CodedError(ErrorCode.unknown_topic_id, f"There is no topic with the id {topic_id}")
        name = found.name
    assert name is not None
    _require_delete(ctx, info, name)
    known = ctx.image.topic(name)
    count = 0 if known is None else len(known.partitions)
    taken = mutations.take(count) if count else 0.0
    try:
        return await ctx.controller.delete_topic(name, topic_id)
    except CodedError:
        mutations.give_back(taken)
        raise


def _require_delete(ctx: Context, info: RequestInfo, name: str) -> None:
    """That a topic does not exist is told to those who may describe it."""
    if may_see(ctx, info, AclOperation.DELETE, ResourceType.CLUSTER, CLUSTER_NAME):
        return
    if may(ctx, info, AclOperation.DELETE, ResourceType.TOPIC, name):
        return
    if ctx.image.topic(name) is None and may_see(ctx, info, AclOperation.DESCRIBE, ResourceType.TOPIC, name):
        raise CodedError(ErrorCode.unknown_topic_or_partition, f"There is no topic '{shown(name)}'")
    raise refused(info, AclOperation.DELETE, ResourceType.TOPIC, name)


def _not_deleted(
    ctx: Context, info: RequestInfo, name: str | None, topic_id: UUID | None, error: CodedError
) -> dict[str, Any]:
    """Who may describe a topic is told the name of its id, as by Kafka."""
    if error.code is ErrorCode.topic_authorization_failed and topic_id is not None:
        topic = ctx.image.topic_by_id(topic_id)
        if topic is not None and may_see(ctx, info, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name):
            name = topic.name
        return _deleted(name, topic_id, error.code, None)
    return _deleted(name, topic_id, error.code, error.message)


def _deleted(name: str | None, topic_id: UUID | None, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}


async def handle_create_partitions(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    wanted = request.topics or ()
    repeated = await _repeated(topic.name for topic in wanted)
    mutations = _Mutations(ctx, info)
    results = [
        await _grow(ctx, info, topic, mutations, request.validate_only)
        async for topic in paced(wanted)
        if topic.name not in repeated
    ]
    refused = [_grown(name, _duplicate()) for name in repeated]
    return {"throttle_time": mutations.throttle_ms, "results": [*results, *refused]}


async def _grow(
    ctx: Context, info: RequestInfo, growth: Any, mutations: _Mutations, validate_only: bool
) -> dict[str, Any]:
    given = growth.assignments
    assignments = None if given is None else [assignment.broker_ids or () for assignment in given]
    known = ctx.image.topic(growth.name)
    more, taken = 0 if known is None else growth.count - len(known.partitions), 0.0
    try:
        require(ctx, info, AclOperation.ALTER, ResourceType.TOPIC, growth.name)
        if more > 0:
            taken = mutations.take(more)
        await ctx.controller.create_partitions(growth.name, growth.count, assignments, validate_only=validate_only)
    except CodedError as error:
        mutations.give_back(taken)
        return _grown(growth.name, error)
    return _grown(growth.name, None)


def _grown(name: str, error: CodedError | None) -> dict[str, Any]:
    code = ErrorCode.none if error is None else error.code
    return {"name": name, "error_code": code, "error_message": None if error is None else error.message}


async def _repeated(names: Iterable[Any]) -> dict[Any, None]:
    """What stands more than once, in the order of the first time."""
    seen: set[Any] = set()
    repeated: dict[Any, None] = {}
    async for name in paced(names):
        if name in seen:
            repeated[name] = None
        seen.add(name)
    return repeated


def _duplicate() -> CodedError:
    return CodedError(ErrorCode.invalid_request, "Duplicate topic name.")


HANDLERS: Final = {
    ApiKey.CREATE_TOPICS: handle_create_topics,
    ApiKey.DELETE_TOPICS: handle_delete_topics,
    ApiKey.CREATE_PARTITIONS: handle_create_partitions,
}
