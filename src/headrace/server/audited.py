"""Which APIs the audit log tells of, and how each names what it is about: the table, and events made by it.

A row looks at the request and at its answer, and gives a resource for each subject with what was asked for it and the
error it ended in. Subjects that were done, that failed and that were refused stand in events of their own. What the
answer has no place for (the error of the whole request) is the error of each.

Not to be told from daily work, and so recorded from level `all` on: producers that take up a transactional id, which is
also how an operator shuts one out. Offsets that are committed from outside a group are how tools reset them, and how
consumers work that assign their own partitions: the first of each ten minutes is told, and how many followed.
"""

from asyncio import sleep
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

import structlog

from headrace.config import broker_setting, group_setting, topic_setting
from headrace.config.setting import ConfigError, Setting
from headrace.protocol.acl import AclOperation, PatternType, PermissionType, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.decode import decode_response
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.security.audit import (
    LONG_WINDOW_SECONDS,
    MOST_RESOURCES,
    WINDOW_SECONDS,
    AuditedResource,
    AuditEvent,
    AuditKind,
    AuditLevel,
    AuditLog,
    AuditOutcome,
    titled,
)

from .context import RequestInfo

HIDDEN: Final = "********"
_DENIED: Final = frozenset(
    {
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.delegation_token_authorization_failed,
    }
)
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_CONFIG_TYPES: Final = {2: "Topic", 4: "Broker", 8: "BrokerLogger", 16: "ClientMetrics", 32: "Group"}
_CHANGES: Final = ("", "unset ", "append to ", "subtract from ")
_ELECTIONS: Final = {0: "preferred", 1: "unclean"}

log = structlog.get_logger(__name__)

Values = Any
"""A request or an answer: an entity, or a dictionary of its newest version's names."""


class Subject(NamedTuple):
    """What one part of a request is about, and the code that was answered for it."""

    type: str
    name: str
    details: Mapping[str, str] = {}
    code: object = ErrorCode.none


class Audited(NamedTuple):
    """How an API is recorded."""

    subjects: Callable[[Values, Values], Iterable[Subject]]
    level: AuditLevel = AuditLevel.ADMIN
    window_seconds: float = 0.0
    when: Callable[[Values], bool] = lambda _request: True


Ended = Mapping[str, Any] | bytes | bytearray | CodedError
"""What a request came to: an answer, in values or as a body, or an error."""


async def record(audit: AuditLog, info: RequestInfo, listener: str, request: Values, ended: Ended) -> None:
    """Record a request that was answered or ended in an error, with turns for others where it is about very much."""
    try:
        for number, event in enumerate(events(info, listener, request, ended)):
            if number:
                await sleep(0)
            audit.record(event)
    except Exception:  # a defect here must not keep anybody from an answer
        log.exception("request not recorded", api=titled(ApiKey(info.api_key)), principal=info.principal)


def record_unknown(audit: AuditLog, info: RequestInfo, listener: str, request: Values) -> None:
    """Record a request whose outcome is unknown."""
    error = CodedError(ErrorCode.unknown_server_error, "it was broken off")
    for event in events(info, listener, request, error):
        audit.record(event)


def events(info: RequestInfo, listener: str, request: Values, ended: Ended) -> Iterator[AuditEvent]:
    """What is to be recorded of a request: an event for each outcome, with no more than a hundred resources."""
    audited = AUDITED[info.api_key]
    if not audited.when(request):
        return
    whole, message, values = _read(info, ended)
    pending: dict[ErrorCode, list[AuditedResource]] = {}
    for subject in audited.subjects(request, values):
        code = whole if whole is not ErrorCode.none else _code(subject.code)
        resources = pending.setdefault(code, [])
        resources.append(
            AuditedResource(type=subject.type, name=subject.name, details=subject.details, error=_name(code))
        )
        if len(resources) == MOST_RESOURCES:
            yield _event(audited, info, listener, request, code, message, pending.pop(code))
    for code, resources in pending.items():
        yield _event(audited, info, listener, request, code, message, resources)


def _event(
    audited: Audited,
    info: RequestInfo,
    listener: str,
    request: Values,
    code: ErrorCode,
    message: str,
    resources: list[AuditedResource],
) -> AuditEvent:
    is_denied = code in _DENIED
    return AuditEvent(
        kind=AuditKind.DENIAL if is_denied else AuditKind.ADMIN,
        operation=titled(ApiKey(info.api_key)),
        outcome=_outcome(code),
        principal=info.principal,
        host=info.host,
        listener=listener,
        client_id=info.client_id,
        resources=tuple(resources),
        error=_name(code),
        message=message if code is not ErrorCode.none else "",
        is_dry_run=bool(_get(request, "validate_only", False)),
        level=AuditLevel.DENIALS if is_denied else audited.level,
        window_seconds=WINDOW_SECONDS if is_denied else audited.window_seconds,
    )


def _name(code: ErrorCode) -> str:
    return "" if code is ErrorCode.none else code.name.upper()


def _read(info: RequestInfo, answer: Ended) -> tuple[ErrorCode, str, Values]:
    """The error of the whole request, what was said of it, and the values of the answer."""
    if isinstance(answer, CodedError):
        return answer.code, answer.message, {}
    if isinstance(answer, bytes | bytearray):
        answer = decode_response(info.api_key, info.version, memoryview(answer))
    return _code(_get(answer, "error_code", ErrorCode.none)), _get(answer, "error_message", None) or "", answer


def _outcome(code: ErrorCode) -> AuditOutcome:
    if code is ErrorCode.none:
        return AuditOutcome.SUCCEEDED
    return AuditOutcome.DENIED if code in _DENIED else AuditOutcome.FAILED


def _code(code: Any) -> ErrorCode:
    return code if isinstance(code, ErrorCode) else ErrorCode(code)


def _get(values: Values, name: str, default: Any = ()) -> Any:
    found = values.get(name, default) if isinstance(values, Mapping) else getattr(values, name, default)
    return default if found is None else found


def _codes(results: Iterable[Values], *names: str) -> dict[Any, object]:
    """The code of each result, by the fields that name what it is about."""
    return {tuple(_get(each, name, None) for name in names): _get(each, "error_code", 0) for each in results}


# Topics


def _created_topics(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _codes(_get(answer, "topics"), "name")
    for topic in _get(request, "topics"):
        details = {each.name: _shown("Topic", each.name, each.value) for each in _get(topic, "configs")}
        for name in ("num_partitions", "replication_factor"):
            if _get(topic, name, -1) != -1:
                details[name] = str(_get(topic, name))
        yield Subject("Topic", topic.name, details, codes.get((topic.name,), 0))


def _deleted_topics(request: Values, answer: Values) -> Iterator[Subject]:
    """By the names in the answer, where topics were named by their ids and could be found."""
    for result in _get(answer, "responses"):
        topic_id = _get(result, "topic_id", None)
        name = _get(result, "name", None) or f"id {topic_id}"
        yield Subject("Topic", name, {}, _get(result, "error_code", 0))
    if not _get(answer, "responses"):
        for topic in _get(request, "topics"):
            yield Subject("Topic", _get(topic, "name", None) or f"id {_get(topic, 'topic_id', None)}")
        for name in _get(request, "topic_names"):
            yield Subject("Topic", name)


def _grown_topics(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _codes(_get(answer, "results"), "name")
    for topic in _get(request, "topics"):
        yield Subject("Topic", topic.name, {"partitions": str(topic.count)}, codes.get((topic.name,), 0))


def _trimmed_topics(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _partition_codes(_get(answer, "topics"), "name", "partitions", "partition_index")
    for topic in _get(request, "topics"):
        for part in _get(topic, "partitions"):
            before = {"before": "end" if part.offset == -1 else str(part.offset)}
            code = codes.get((topic.name, part.partition_index), 0)
            yield Subject("Partition", f"{topic.name}-{part.partition_index}", before, code)


def _partition_codes(topics: Iterable[Values], name: str, partitions: str, index: str) -> dict[tuple[str, int], object]:
    return {
        (_get(topic, name), _get(part, index)): _get(part, "error_code", 0)
        for topic in topics
        for part in _get(topic, partitions)
    }


# Settings


def _settings(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _codes(_get(answer, "responses"), "resource_type", "resource_name")
    for resource in _get(request, "resources"):
        kind = _CONFIG_TYPES.get(resource.resource_type, str(resource.resource_type))
        details = {}
        for config in _get(resource, "configs"):
            change = _CHANGES[_get(config, "config_operation", 0) % len(_CHANGES)]
            value = "" if config.value is None else _shown(kind, config.name, config.value)
            details[config.name] = f"{change}{value}".strip()
        code = codes.get((resource.resource_type, resource.resource_name), 0)
        yield Subject(kind, resource.resource_name, details, code)


def _shown(kind: str, name: str, value: str | None) -> str:
    """A value, but for what may be secret: what is marked so, and whatever nobody knows."""
    return (value or "") if _is_open(kind, name) else HIDDEN


def _is_open(kind: str, name: str) -> bool:
    if kind in ("BrokerLogger", "ClientMetrics"):
        return True
    find: Callable[[str], Setting] = {"Topic": topic_setting, "Broker": broker_setting}.get(kind, group_setting)
    try:
        return not find(name).sensitive
    except (CodedError, ConfigError):
        return False


# The cluster


def _reassigned(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _partition_codes(_get(answer, "responses"), "name", "partitions", "partition_index")
    for topic in _get(request, "topics"):
        for part in _get(topic, "partitions"):
            replicas = getattr(part, "replicas", None)
            to = {"replicas": "cancel" if replicas is None else ",".join(map(str, replicas))}
            code = codes.get((topic.name, part.partition_index), 0)
            yield Subject("Partition", f"{topic.name}-{part.partition_index}", to, code)


def _elected(request: Values, answer: Values) -> Iterator[Subject]:
    election = _get(request, "election_type", 0)
    details = {"election": _ELECTIONS.get(election, f"of replica {election}")}
    topics = _get(answer, "replica_election_results")
    codes = _partition_codes(topics, "topic", "partition_result", "partition_id")
    asked = _get(request, "topic_partitions", None)
    if asked is None:
        yield Subject("Cluster", "all partitions", details)
        return
    for topic in asked:
        for index in _get(topic, "partitions"):
            yield Subject("Partition", f"{topic.topic}-{index}", details, codes.get((topic.topic, index), 0))


def _features(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _codes(_get(answer, "results"), "feature")
    for update in _get(request, "feature_updates"):
        details = {"level": str(update.max_version_level)}
        yield Subject("Feature", update.feature, details, codes.get((update.feature,), 0))


def _moved_logs(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _partition_codes(_get(answer, "results"), "topic_name", "partitions", "partition_index")
    for directory in _get(request, "dirs"):
        for topic in _get(directory, "topics"):
            for index in _get(topic, "partitions"):
                to = {"directory": directory.path}
                yield Subject("Partition", f"{topic.name}-{index}", to, codes.get((topic.name, index), 0))


# Groups and transactions


def _deleted_groups(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _codes(_get(answer, "results"), "group_id")
    for group in _get(request, "groups_names"):
        yield Subject("Group", group, {}, codes.get((group,), 0))


def _deleted_offsets(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _partition_codes(_get(answer, "topics"), "name", "partitions", "partition_index")
    topics = _get(request, "topics")
    for topic in topics:
        indexes = [part.partition_index for part in _get(topic, "partitions")]
        of = {"topic": topic.name, "partitions": ",".join(map(str, indexes))}
        code = next((code for index in indexes if (code := codes.get((topic.name, index), 0))), 0)
        yield Subject("Group", request.group_id, of, code)


def _share_state(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _partition_codes(_get(answer, "results"), "topic_id", "partitions", "partition")
    for topic in _get(request, "topics"):
        indexes = [part.partition for part in _get(topic, "partitions")]
        of = {"topic_id": str(topic.topic_id), "partitions": ",".join(map(str, indexes))}
        code = next((code for index in indexes if (code := codes.get((topic.topic_id, index), 0))), 0)
        yield Subject("Group", request.group_id, of, code)


def _set_share_offsets(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _partition_codes(_get(answer, "responses"), "topic_name", "partitions", "partition_index")
    for topic in _get(request, "topics"):
        for part in _get(topic, "partitions"):
            of = {"topic": topic.topic_name, "partition": str(part.partition_index), "offset": str(part.start_offset)}
            yield Subject("Group", request.group_id, of, codes.get((topic.topic_name, part.partition_index), 0))


def _deleted_share_offsets(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _codes(_get(answer, "responses"), "topic_name")
    for topic in _get(request, "topics"):
        yield Subject("Group", request.group_id, {"topic": topic.topic_name}, codes.get((topic.topic_name,), 0))


def _reset_offsets(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _partition_codes(_get(answer, "topics"), "name", "partitions", "partition_index")
    for topic in _get(request, "topics"):
        # Offsets are left out: of those that repeat each other only the first is told.
        name = getattr(topic, "name", None) or f"id {getattr(topic, 'topic_id', None)}"
        parts = _get(topic, "partitions")
        code = next((code for part in parts if (code := codes.get((name, part.partition_index), 0))), 0)
        yield Subject("Group", request.group_id, {"topic": name}, code)


def _is_from_outside(request: Values) -> bool:
    """Whether offsets are committed by somebody who is no member of the group."""
    generation = _get(request, "generation_id_or_member_epoch", _get(request, "generation_id", -1))
    return int(generation) < 0 and not _get(request, "member_id", "")


def _markers(request: Values, answer: Values) -> Iterator[Subject]:
    codes = {
        (_get(marker, "producer_id"), _get(topic, "name"), _get(part, "partition_index")): _get(part, "error_code", 0)
        for marker in _get(answer, "markers")
        for topic in _get(marker, "topics")
        for part in _get(topic, "partitions")
    }
    for marker in _get(request, "markers"):
        details = {
            "producer_id": str(marker.producer_id),
            "transaction": "commit" if marker.transaction_result else "abort",
        }
        for topic in _get(marker, "topics"):
            for index in _get(topic, "partition_indexes"):
                code = codes.get((marker.producer_id, topic.name, index), 0)
                yield Subject("Partition", f"{topic.name}-{index}", details, code)


def _transactional_id(request: Values, _answer: Values) -> Iterator[Subject]:
    yield Subject("TransactionalId", request.transactional_id)


# Users and what they may do


def _created_acls(request: Values, answer: Values) -> Iterator[Subject]:
    results = list(_get(answer, "results"))
    for number, acl in enumerate(_get(request, "creations")):
        code = _get(results[number], "error_code", 0) if number < len(results) else 0
        pattern = _get(acl, "resource_pattern_type", 3)
        yield _acl(acl.resource_type, acl.resource_name, pattern, acl, code)


def _deleted_acls(request: Values, answer: Values) -> Iterator[Subject]:
    """The ACLs that are gone, and the filters that matched none."""
    results = list(_get(answer, "filter_results"))
    for number, acl_filter in enumerate(_get(request, "filters")):
        result = results[number] if number < len(results) else {}
        matching = _get(result, "matching_acls")
        for acl in matching:
            code = _get(acl, "error_code", 0)
            yield _acl(_get(acl, "resource_type"), _get(acl, "resource_name"), _get(acl, "pattern_type", 3), acl, code)
        if not matching:
            name = getattr(acl_filter, "resource_name_filter", None) or "*"
            pattern = _get(acl_filter, "pattern_type_filter", 3)
            found = _acl(acl_filter.resource_type_filter, name, pattern, acl_filter, _get(result, "error_code", 0))
            yield found._replace(details={**found.details, "matched": "0"})


def _acl(kind: int, name: str, pattern: int, acl: Values, code: object) -> Subject:
    details = {
        "pattern": _titled(PatternType, pattern),
        "permission": _titled(PermissionType, _get(acl, "permission_type", 0)),
        "operation": _titled(AclOperation, _get(acl, "operation", 0)),
        "principal": _get(acl, "principal", None) or _get(acl, "principal_filter", None) or "*",
        "host": _get(acl, "host", None) or _get(acl, "host_filter", None) or "*",
    }
    return Subject(_titled(ResourceType, kind), name, details, code)


def _titled(kind: type[IntEnum], value: int) -> str:
    try:
        return titled(kind(value))
    except ValueError:
        return str(value)


def _credentials(request: Values, answer: Values) -> Iterator[Subject]:
    codes = _codes(_get(answer, "results"), "user")
    for user in _get(request, "upsertions"):
        details = {"mechanism": _MECHANISMS.get(user.mechanism, str(user.mechanism)), "set": "password"}
        yield Subject("User", user.name, details | {"iterations": str(user.iterations)}, codes.get((user.name,), 0))
    for user in _get(request, "deletions"):
        details = {"mechanism": _MECHANISMS.get(user.mechanism, str(user.mechanism)), "set": "nothing"}
        yield Subject("User", user.name, details, codes.get((user.name,), 0))


def _quotas(request: Values, answer: Values) -> Iterator[Subject]:
    results = list(_get(answer, "entries"))
    for number, entry in enumerate(_get(request, "entries")):
        code = _get(results[number], "error_code", 0) if number < len(results) else 0
        details = {op.key: "removed" if op.remove else f"{op.value:g}" for op in _get(entry, "ops")}
        names = (f"{each.entity_type}={each.entity_name or '<default>'}" for each in _get(entry, "entity"))
        yield Subject("Quota", ",".join(names), details, code)


def _created_token(request: Values, answer: Values) -> Iterator[Subject]:
    owner = _get(answer, "principal_name", "") or _get(request, "owner_principal_name", "")
    details = {"owner": f"{_get(answer, 'principal_type', 'User')}:{owner}"} if owner else {}
    yield Subject("DelegationToken", _get(answer, "token_id", "") or "-", details)


def _token(_request: Values, _answer: Values) -> Iterator[Subject]:
    """These name a token by its secret, which has no place here."""
    yield Subject("DelegationToken", "-")


AUDITED: Final[Mapping[int, Audited]] = {
    ApiKey.CREATE_TOPICS: Audited(_created_topics),
    ApiKey.DELETE_TOPICS: Audited(_deleted_topics),
    ApiKey.DELETE_RECORDS: Audited(_trimmed_topics),
    ApiKey.CREATE_PARTITIONS: Audited(_grown_topics),
    ApiKey.ALTER_CONFIGS: Audited(_settings),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Audited(_settings),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Audited(_reassigned),
    ApiKey.ELECT_LEADERS: Audited(_elected),
    ApiKey.UPDATE_FEATURES: Audited(_features),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Audited(_moved_logs),
    ApiKey.DELETE_GROUPS: Audited(_deleted_groups),
    ApiKey.OFFSET_DELETE: Audited(_deleted_offsets),
    ApiKey.OFFSET_COMMIT: Audited(_reset_offsets, window_seconds=LONG_WINDOW_SECONDS, when=_is_from_outside),
    ApiKey.WRITE_TXN_MARKERS: Audited(_markers),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Audited(_set_share_offsets),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Audited(_deleted_share_offsets),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: Audited(_share_state),
    ApiKey.WRITE_SHARE_GROUP_STATE: Audited(_share_state),
    ApiKey.DELETE_SHARE_GROUP_STATE: Audited(_share_state),
    ApiKey.INIT_PRODUCER_ID: Audited(
        _transactional_id,
        level=AuditLevel.ALL,
        window_seconds=WINDOW_SECONDS,
        when=lambda request: bool(request.transactional_id),
    ),
    ApiKey.CREATE_ACLS: Audited(_created_acls),
    ApiKey.DELETE_ACLS: Audited(_deleted_acls),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Audited(_credentials),
    ApiKey.ALTER_CLIENT_QUOTAS: Audited(_quotas),
    ApiKey.CREATE_DELEGATION_TOKEN: Audited(_created_token),
    ApiKey.RENEW_DELEGATION_TOKEN: Audited(_token),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Audited(_token),
}
"""By API key."""
