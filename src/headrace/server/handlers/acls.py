"""DescribeAcls, CreateAcls and DeleteAcls, versions 1-3: who may do what, as `headrace.security.acl` has it.

Without an authorizer (`authorizer.class.name`) each is SECURITY_DISABLED. To describe takes DESCRIBE on the cluster, to
create and to delete ALTER: CLUSTER_AUTHORIZATION_FAILED, of everything that was asked for.

- v1 has patterns of names; v2 is flexible; v3 can be about users (who may make delegation tokens for them).
- CreateAcls answers each by itself. One that is there already is no error. What cannot be an ACL is INVALID_REQUEST.
- DeleteAcls answers each filter with what it has deleted; nothing is no error. What two filters take stands in both.
- More than `MOST_AT_ONCE` in one request are POLICY_VIOLATION; more than `MOST_OF_RESOURCE` about one resource pattern,
  or `MOST_ACLS` in all, INVALID_REQUEST: then prefixes, or fewer principals, say the same.
- A number that Kafka does not know makes its broker close the connection; here it is INVALID_REQUEST.
- Both are the controller's: other brokers forward them, and all that live know of a change before it is answered.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from headrace.cluster.entries import EntryKind, EntryValues
from headrace.net.pacing import paced
from headrace.protocol.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.security.acl import acl_of, check_binding, entry_key, entry_name, member, resource_of, taken

from ..context import Context, RequestInfo
from ..dispatch import Handler
from .authorized import may, refused, require_cluster

MOST_AT_ONCE: Final = 10_000
"""ACLs, or filters, of one request: as many as Kafka changes at once."""
MOST_BROAD: Final = 100
"""Filters of one DeleteAcls that are about more than one resource pattern: all ACLs are looked at for each."""
MOST_OF_RESOURCE: Final = 1_500
"""ACLs about one resource pattern: what the cluster keeps in one piece."""
MOST_ACLS: Final = 100_000
_NONE: Final = {"error_code": ErrorCode.none, "error_message": None}


async def handle_describe_acls(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require_cluster(ctx, info, AclOperation.DESCRIBE)
    if ctx.authorizer is None:
        raise CodedError(ErrorCode.security_disabled, "No Authorizer is configured on the broker")
    acl_filter = _filter(request)
    resources = []
    async for name, values in paced(list(ctx.image.entries[EntryKind.ACL].items())):
        found = taken(acl_filter, name, values)
        if found is not None:
            resource, entries = found
            resources.append({**_resource(resource), "acls": [_entry(entry) for entry in entries]})
    return {"throttle_time": 0, **_NONE, "resources": resources}


async def handle_create_acls(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    creations = request.creations or ()
    problem = _problem(ctx, info, len(creations))
    if problem is not None:
        return {"throttle_time": 0, "results": [_error(problem) for _ in creations]}
    results: list[dict[str, Any]] = []
    additions: dict[str, dict[str, int]] = {}
    room = _Room(ctx.image.entries[EntryKind.ACL])
    async for at, creation in paced(enumerate(creations)):
        try:
            binding = _binding(creation)
            room.take(binding)
        except CodedError as error:
            results.append(_error(error))
        else:
            results.append(dict(_NONE))
            additions.setdefault(entry_name(binding.resource), {})[entry_key(binding.entry)] = at
    failure = await _change(ctx, {name: partial(_with, added=frozenset(keys)) for name, keys in additions.items()})
    if failure is not None:
        results = [_error(failure) if result["error_code"] is ErrorCode.none else result for result in results]
    return {"throttle_time": 0, "results": results}


async def handle_delete_acls(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    filters = request.filters or ()
    problem = _problem(ctx, info, len(filters))
    if problem is not None:
        return {"throttle_time": 0, "filter_results": [_not_deleted(problem) for _ in filters]}
    filters_or_errors = [_filter_or_error(acl_filter) async for acl_filter in paced(filters)]
    deletion = _Deletion([each for each in filters_or_errors if isinstance(each, AclFilter)])
    if deletion.is_too_broad:
        problem = CodedError(ErrorCode.policy_violation, f"More than {MOST_BROAD} filters that are not of one resource")
        return {"throttle_time": 0, "filter_results": [_not_deleted(problem) for _ in filters]}
    changes = {
        name: partial(deletion.decide, name, resource)
        async for name in paced(list(ctx.image.entries[EntryKind.ACL]))
        if (resource := resource_of(name)) is not None and deletion.of(name, resource)
    }
    failure = await _change(ctx, changes)

    def answer(acl_filter: AclFilter | CodedError) -> dict[str, Any]:
        if isinstance(acl_filter, CodedError):
            return _not_deleted(acl_filter)
        return deletion.answer(acl_filter) if failure is None else _not_deleted(failure)

    return {"throttle_time": 0, "filter_results": [answer(acl_filter) for acl_filter in filters_or_errors]}


class _Room:
    """How many ACLs there can still be."""

    def __init__(self, entries: Mapping[str, EntryValues]) -> None:
        self._entries = entries
        self._total = sum(map(len, entries.values()))
        self._keys: dict[str, set[str]] = {}

    def take(self, binding: AclBinding) -> None:
        """One more; `CodedError` where there is no room for it."""
        name = entry_name(binding.resource)
        keys = self._keys.get(name)
        if keys is None:
            keys = self._keys[name] = set(self._entries.get(name, ()))
        key = entry_key(binding.entry)
        if key in keys:
            return
        if len(keys) >= MOST_OF_RESOURCE:
            raise CodedError(
                ErrorCode.invalid_request,
                f"There are {len(keys)} ACLs about this resource pattern, which can have {MOST_OF_RESOURCE}",
            )
        if self._total >= MOST_ACLS:
            raise CodedError(ErrorCode.invalid_request, f"There are {self._total} ACLs, and can be {MOST_ACLS}")
        keys.add(key)
        self._total += 1


class _Deletion:
    """What filters take of the ACLs that are there."""

    def __init__(self, filters: Sequence[AclFilter]) -> None:
        self._matches: dict[AclFilter, dict[ResourcePattern, list[AclEntry]]] = {
            acl_filter: {} for acl_filter in filters
        }
        self._exact: dict[str, list[AclFilter]] = {}
        self._broad: list[AclFilter] = []
        for acl_filter in self._matches:
            resource = acl_filter.only_resource
            if resource is None:
                self._broad.append(acl_filter)
            else:
                self._exact.setdefault(entry_name(resource), []).append(acl_filter)

    @property
    def is_too_broad(self) -> bool:
        """Whether to look through all ACLs for each filter takes too long."""
        return len(self._broad) > MOST_BROAD

    def of(self, name: str, resource: ResourcePattern) -> list[AclFilter]:
        """The filters that an entry has to do with."""
        return [*self._exact.get(name, ()), *(asked for asked in self._broad if asked.takes_resource(resource))]

    def decide(self, name: str, resource: ResourcePattern, values: EntryValues) -> EntryValues:
        """What is left of an entry."""
        entries = {key: entry for key in values if (entry := acl_of(key)) is not None}
        gone: set[str] = set()
        for asked in self.of(name, resource):
            taken = {key: entry for key, entry in entries.items() if asked.takes_entry(entry)}
            self._matches[asked][resource] = list(taken.values())
            gone |= taken.keys()
        return {key: value for key, value in values.items() if key not in gone}

    def answer(self, acl_filter: AclFilter) -> dict[str, Any]:
        """What one of the filters has taken."""
        matching = [
            {**_NONE, **_resource(resource), **_entry(entry)}
            for resource, entries in self._matches[acl_filter].items()
            for entry in entries
        ]
        return {**_NONE, "matching_acls": matching}


def _problem(ctx: Context, info: RequestInfo, count: int) -> CodedError | None:
    """Why nothing of a request that changes ACLs is looked at."""
    if not may(ctx, info, AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        return refused(info, AclOperation.ALTER, ResourceType.CLUSTER)
    if ctx.authorizer is None:
        return CodedError(ErrorCode.security_disabled, "No Authorizer is configured.")
    if count > MOST_AT_ONCE:
        return CodedError(
            ErrorCode.policy_violation, f"{count} at once, and {MOST_AT_ONCE} can be: use several requests"
        )
    return None


async def _change(ctx: Context, changes: Mapping[str, Callable[[EntryValues], EntryValues]]) -> CodedError | None:
    """Why it could not be done, if it could not."""
    try:
        if changes:
            await ctx.controller.change_entries(EntryKind.ACL, changes)
    except CodedError as error:
        return error
    return None


def _with(values: EntryValues, *, added: frozenset[str]) -> EntryValues:
    return {**values, **dict.fromkeys(sorted(added), "")}


def _binding(creation: Any) -> AclBinding:
    resource = ResourcePattern(
        type=member(ResourceType, creation.resource_type, "resource type"),
        pattern=member(PatternType, creation.resource_pattern_type, "pattern type"),
        name=creation.resource_name,
    )
    entry = AclEntry(
        principal=creation.principal,
        host=creation.host,
        operation=member(AclOperation, creation.operation, "operation"),
        permission=member(PermissionType, creation.permission_type, "permission type"),
    )
    binding = AclBinding(resource=resource, entry=entry)
    check_binding(binding)
    return binding


def _filter(values: Any) -> AclFilter:
    return AclFilter(
        type=member(ResourceType, values.resource_type_filter, "resource type"),
        pattern=member(PatternType, values.pattern_type_filter, "pattern type"),
        name=values.resource_name_filter,
        principal=values.principal_filter,
        host=values.host_filter,
        operation=member(AclOperation, values.operation, "operation"),
        permission=member(PermissionType, values.permission_type, "permission type"),
    )


def _filter_or_error(values: Any) -> AclFilter | CodedError:
    try:
        return _filter(values)
    except CodedError as error:
        return error


def _resource(resource: ResourcePattern) -> dict[str, Any]:
    return {"resource_type": resource.type, "resource_name": resource.name, "pattern_type": resource.pattern}


def _entry(entry: AclEntry) -> dict[str, Any]:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": entry.operation,
        "permission_type": entry.permission,
    }


def _error(error: CodedError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message}


def _not_deleted(error: CodedError) -> dict[str, Any]:
    return {**_error(error), "matching_acls": ()}


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.DESCRIBE_ACLS: handle_describe_acls,
    ApiKey.CREATE_ACLS: handle_create_acls,
    ApiKey.DELETE_ACLS: handle_delete_acls,
}
