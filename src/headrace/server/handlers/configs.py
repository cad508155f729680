"""DescribeConfigs, versions 1-4, AlterConfigs, versions 0-2, IncrementalAlterConfigs, versions 0-1, and
ListConfigResources, versions 0-1.

Topics, brokers, groups and subscriptions to the metrics of clients have settings, and the loggers of a broker levels.
Those of a broker are asked of that broker itself (the answer holds what is in force there) and changed through it,
whoever is the controller; the empty broker id stands for what is set for all.

- DescribeConfigs: an absent or empty list of names asks for all settings. Values say where they come from, with all
  other places that hold one where synonyms are asked for; v3 adds types and documentation. Passwords are null.
- AlterConfigs replaces all: a setting that is not named loses its value. IncrementalAlterConfigs changes only what it
  names: set, delete, and append to or subtract from a list.
- Settings of Kafka that have no effect here can be set and are shown; their documentation says so.
- Levels of loggers (BROKER_LOGGER) change in the broker that is asked, at once; see `handlers.loggers`. In a cluster
  they are to be asked for in a request of their own, as Kafka's clients do: others are carried out by the controller.
- ListConfigResources v0 lists client metrics only.
- A group's settings can be set before it exists; they must be within the bounds that the broker has for them.
- Left out: subscriptions to the metrics of clients are kept, described and listed, but clients are not asked for them
  (GetTelemetrySubscriptions and PushTelemetry are not served; clients that are told so do without).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from headrace.cluster.metadata_writer import ALL_BROKERS
from headrace.cluster.topics import validate_name
from headrace.config import AlterConfigOp, AlterConfigOpType, shown
from headrace.net.pacing import paced
from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from ..context import Context, RequestInfo
from .authorized import require, require_cluster
from .describe import (
    describe_broker_configs,
    describe_client_metrics,
    describe_given,
    describe_group_configs,
    describe_topic_configs,
)
from .loggers import alter_loggers, describe_loggers


class ConfigResourceType(IntEnum):
    """What can have settings, numbered as on the wire."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_FIRST_WITH_RESOURCE_TYPES: Final = 1
MOST_CONFIGS: Final = 1_000
"""That one resource can be given at once: many more than there are."""


async def handle_describe_configs(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    documentation = getattr(request, "include_documentation", False)
    describing = _Describing(ctx, request.include_synonyms, documentation)
    results = []
    asked = {(each.resource_type, each.resource_name): each async for each in paced(request.resources or ())}
    async for resource in paced(asked.values()):
        try:
            _require(ctx, info, AclOperation.DESCRIBE_CONFIGS, resource)
            configs = describing.described(resource)
        except CodedError as error:
            results.append({**_answer(resource, error), "configs": ()})
        else:
            results.append({**_answer(resource, None), "configs": _selected(configs, resource.configuration_keys)})
    return {"throttle_time": 0, "results": results}


def _require(ctx: Context, info: RequestInfo, operation: AclOperation, resource: Any) -> None:
    """`CodedError` unless who asks may do that with the settings of a resource."""
    kind = resource.resource_type
    if kind == ConfigResourceType.TOPIC:
        require(ctx, info, operation, ResourceType.TOPIC, resource.resource_name)
    elif kind == ConfigResourceType.GROUP:
        require(ctx, info, operation, ResourceType.GROUP, resource.resource_name)
    else:
        require_cluster(ctx, info, operation)


class _Describing:
    """Describes resources of one request, those alike once: most topics and groups have no settings of their own."""

    def __init__(self, ctx: Context, synonyms: bool, documentation: bool) -> None:
        self._ctx = ctx
        self._how = {"synonyms": synonyms, "documentation": documentation}
        self._known: dict[tuple[int, tuple[tuple[str, str], ...]], list[dict[str, Any]]] = {}

    def described(self, resource: Any) -> list[dict[str, Any]]:
        ctx, how, kind, name = self._ctx, self._how, resource.resource_type, resource.resource_name
        if kind == ConfigResourceType.TOPIC:
            validate_name(name)
            topic = ctx.image.topic(name)
            if topic is None:
                raise CodedError(ErrorCode.unknown_topic_or_partition, f"There is no topic '{shown(name)}'")
            return self._once(kind, topic.configs, lambda: describe_topic_configs(ctx.config, topic, **how))
        if kind == ConfigResourceType.BROKER:
            _check_broker(ctx.config.node_id, name)
            if name == ALL_BROKERS:
                return describe_given(ctx.image.broker_configs.get(ALL_BROKERS, {}).items(), **how)
            return describe_broker_configs(ctx.config, **how)
        if kind == ConfigResourceType.GROUP:
            _check_group(name)
            given = ctx.image.group_configs.get(name, {})
            return self._once(kind, given, lambda: describe_group_configs(ctx.config, given, **how))
        if kind == ConfigResourceType.BROKER_LOGGER:
            _check_logging_broker(ctx.config.node_id, name)
            return describe_loggers(ctx.log_levels, documentation=how["documentation"])
        if kind == ConfigResourceType.CLIENT_METRICS:
            _check_subscription(name)
            return describe_client_metrics(ctx.image.client_metrics.get(name, {}), **how)
        raise _unsupported(kind)

    def _once(
        self, kind: int, given: Mapping[str, str], describe: Callable[[], list[dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        key = kind, tuple(sorted(given.items()))
        if key not in self._known:
            self._known[key] = describe()
        return self._known[key]


def _selected(configs: list[dict[str, Any]], names: Sequence[str] | None) -> list[dict[str, Any]]:
    if not names:
        return configs
    wanted = frozenset(names)
    return [config for config in configs if config["name"] in wanted]


async def handle_alter_configs(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    return await _alter_each(ctx, request, info, replace_all=True)


async def handle_incremental_alter_configs(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    return await _alter_each(ctx, request, info, replace_all=False)


async def _alter_each(ctx: Context, request: Any, info: RequestInfo, *, replace_all: bool) -> dict[str, Any]:
    resources = request.resources or ()
    addressed = ctx.config.node_id if info.forwarded_by is None else info.forwarded_by
    counts: Counter[tuple[int, str]] = Counter()
    async for resource in paced(resources):
        counts[resource.resource_type, resource.resource_name] += 1
    responses = []
    async for resource in paced(resources):
        problem = None
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise CodedError(ErrorCode.invalid_request, "Each resource must appear at most once.")
            _require(ctx, info, AclOperation.ALTER_CONFIGS, resource)
            await _alter(ctx, addressed, resource, replace_all=replace_all, validate_only=request.validate_only)
        except CodedError as error:
            problem = error
        responses.append(_answer(resource, problem))
    return {"throttle_time": 0, "responses": responses}


async def _alter(ctx: Context, addressed: int, resource: Any, *, replace_all: bool, validate_only: bool) -> None:
    configs = resource.configs or ()
    if len(configs) > MOST_CONFIGS:
        raise CodedError(ErrorCode.invalid_request, f"{len(configs)} configs; a resource takes {MOST_CONFIGS} at once")
    changes = [_change(config) for config in configs]
    name = resource.resource_name
    if resource.resource_type == ConfigResourceType.TOPIC:
        validate_name(name)
        await ctx.controller.alter_topic_configs(name, changes, replace_all=replace_all, validate_only=validate_only)
    elif resource.resource_type == ConfigResourceType.BROKER:
        _check_broker(addressed, name)
        await ctx.controller.alter_broker_configs(name, changes, replace_all=replace_all, validate_only=validate_only)
    elif resource.resource_type == ConfigResourceType.GROUP:
        _check_group(name)
        await ctx.controller.alter_group_configs(name, changes, replace_all=replace_all, validate_only=validate_only)
    elif resource.resource_type == ConfigResourceType.CLIENT_METRICS:
        _check_subscription(name)
        await ctx.controller.alter_client_metrics(name, changes, replace_all=replace_all, validate_only=validate_only)
    elif resource.resource_type == ConfigResourceType.BROKER_LOGGER:
        _check_logging_broker(addressed, name)
        if replace_all:
            raise CodedError(
                ErrorCode.invalid_request, "Levels of loggers can only be changed by IncrementalAlterConfigs"
            )
        if addressed != ctx.config.node_id:
            raise CodedError(ErrorCode.invalid_request, "Ask for levels of loggers in a request that has nothing else")
        alter_loggers(ctx.log_levels, changes, validate_only=validate_only)
    else:
        raise _unsupported(resource.resource_type)


def is_for_loggers(request: Any) -> bool:
    """Whether an alter request is about loggers of the broker that is asked alone, and so none of the controller's."""
    resources = request.resources or ()
    return bool(resources) and all(each.resource_type == ConfigResourceType.BROKER_LOGGER for each in resources)


def _change(config: Any) -> AlterConfigOp:
    number = getattr(config, "config_operation", AlterConfigOpType.SET)
    try:
        operation = AlterConfigOpType(number)
    except ValueError:
        raise CodedError(ErrorCode.invalid_request, f"Unknown operation {number} on {shown(config.name)}") from None
    return AlterConfigOp(operation, config.name, config.value)


def _check_broker(asked: int, name: str) -> None:
    if name not in (ALL_BROKERS, str(asked)):
        raise CodedError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {asked} or empty, but received {shown(name)}; ask that broker itself",
        )


def _check_group(name: str) -> None:
    if not name:
        raise CodedError(ErrorCode.invalid_request, "Default group resources are not allowed; name a group")


def _check_logging_broker(asked: int, name: str) -> None:
    if name != str(asked):
        raise CodedError(
            ErrorCode.invalid_request,
            f"Unexpected broker id, expected {asked} but received {shown(name)}; ask that broker itself",
        )


def _check_subscription(name: str) -> None:
    if not name:
        raise CodedError(ErrorCode.invalid_request, "Client metrics subscription name must not be empty")


def _unsupported(number: int) -> CodedError:
    known = ", ".join(f"{member.name} ({member.value})" for member in ConfigResourceType)
    return CodedError(ErrorCode.invalid_request, f"Resource type {number} has no settings; {known} have")


def _answer(resource: Any, error: CodedError | None) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none if error is None else error.code,
        "error_message": None if error is None else error.message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
    }


async def handle_list_config_resources(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
    require_cluster(ctx, info, AclOperation.DESCRIBE_CONFIGS)
    if info.version < _FIRST_WITH_RESOURCE_TYPES:
        types: Iterable[int] = (ConfigResourceType.CLIENT_METRICS,)
    else:
        types = request.resource_types or tuple(ConfigResourceType)
    known = {member.value for member in ConfigResourceType}
    unknown = [number for number in types if number not in known]
    if unknown:
        raise CodedError(ErrorCode.unsupported_version, f"Unknown resource types {unknown}")
    resources: list[dict[str, Any]] = []
    if ConfigResourceType.TOPIC in types:
        resources.extend(
            {"resource_name": t.name, "resource_type": ConfigResourceType.TOPIC} for t in ctx.image.topics()
        )
    if ConfigResourceType.BROKER in types:
        resources.extend(
            {"resource_name": str(b), "resource_type": ConfigResourceType.BROKER} for b in ctx.image.brokers
        )
    if ConfigResourceType.BROKER_LOGGER in types:
        resources.extend(
            {"resource_name": str(b), "resource_type": ConfigResourceType.BROKER_LOGGER} for b in ctx.image.brokers
        )
    if ConfigResourceType.CLIENT_METRICS in types:
        names = (name for name, configs in ctx.image.client_metrics.items() if configs)
        resources.extend({"resource_name": name, "resource_type": ConfigResourceType.CLIENT_METRICS} for name in names)
    if ConfigResourceType.GROUP in types:
        groups = (name for name, configs in ctx.image.group_configs.items() if configs)
        resources.extend({"resource_name": name, "resource_type": ConfigResourceType.GROUP} for name in groups)
    return {"throttle_time": 0, "error_code": ErrorCode.none, "config_resources": resources}


HANDLERS: Final = {
    ApiKey.DESCRIBE_CONFIGS: handle_describe_configs,
    ApiKey.ALTER_CONFIGS: handle_alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: handle_incremental_alter_configs,
    ApiKey.LIST_CONFIG_RESOURCES: handle_list_config_resources,
}
