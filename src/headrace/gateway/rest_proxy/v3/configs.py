"""v3: settings of topics, of single brokers, and of all brokers together."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from headrace.client.aio import admin
from headrace.protocol.errors import ErrorCode
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.routes import Routes

from ...credentials import Clients
from ..failures import Refusal
from ..operations import DONE, V3
from .clusters import require_broker
from .resources import (
    ONE,
    BrokerIdPath,
    ClusterPath,
    Here,
    Listing,
    Resource,
    ResourceMetadata,
    TopicNamePath,
    here,
    listed,
)

_SOURCES: Final = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
}
_OF_TOPIC: Final = 1
_DEFAULT: Final = 5
_Setting = Annotated[str, Meta(min_length=1, max_length=255, examples=["retention.ms"])]


class ConfigSynonym(Struct):
    """Where a value comes from that would hold if those before it did not."""

    name: Annotated[str, Meta(examples=["log.retention.ms"])]
    value: Annotated[str | None, Meta(examples=["604800000"])]
    source: Annotated[str, Meta(examples=["DEFAULT_CONFIG"])]


class ConfigData(Struct):
    """A setting: of a topic, of a broker, or of all brokers."""

    kind: Annotated[str, Meta(examples=["KafkaTopicConfig"])]
    metadata: ResourceMetadata
    cluster_id: Annotated[str, Meta(examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]
    name: Annotated[str, Meta(examples=["retention.ms"])]
    value: Annotated[str | None, Meta(examples=["604800000"])]
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: Annotated[str, Meta(examples=["DEFAULT_CONFIG"])]
    synonyms: list[ConfigSynonym]
    topic_name: Annotated[str | UnsetType, Meta(examples=["orders"])] = UNSET
    broker_id: Annotated[int | UnsetType, Meta(examples=[1])] = UNSET
    config_type: Annotated[str | UnsetType, Meta(examples=["BROKER"])] = UNSET


class SettingValue(Struct, forbid_unknown_fields=True):
    """What a setting is to be; null takes it back to what holds without it."""

    value: Annotated[str | None, Meta(examples=["86400000"])]


class SettingChange(Struct, forbid_unknown_fields=True):
    """A setting to set, or to take back."""

    name: _Setting
    value: Annotated[str | None, Meta(examples=["86400000"])] = None
    operation: Literal["SET", "DELETE"] | None = None


class SettingChanges(Struct, forbid_unknown_fields=True):
    """Settings to change together."""

    data: Annotated[list[SettingChange], Meta(min_length=1, max_length=1000)]
    validate_only: Annotated[bool, Meta(description="Only say whether it could be done.")] = False


class TopicSettingPath(TopicNamePath, frozen=True):
    """A path with a setting of a topic."""

    name: _Setting


class BrokerSettingPath(BrokerIdPath, frozen=True):
    """A path with a setting of a broker."""

    name: _Setting


class ClusterSettingPath(ClusterPath, frozen=True):
    """A path with a setting of all brokers."""

    name: _Setting


class Owned(NamedTuple):
    """Who has settings: a topic or broker by its name, and where it is."""

    kind: int
    name: str
    place: Here
    resource: Resource
    collection: str
    labels: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """One kind of those who have settings."""

    name: str
    url: str
    kind: str
    path: type[ClusterPath]
    setting_path: type[ClusterPath]
    owner: Callable[[Here, Any], Awaitable[Owned]]


async def _topic(place: Here, path: TopicNamePath) -> Owned:
    await place.client.cluster.described(path.topic_name)
    resource = place.resource.topic(path.topic_name)
    return Owned(admin.TOPIC, path.topic_name, place, resource, "configs", {"topic_name": path.topic_name})


async def _broker(place: Here, path: BrokerIdPath) -> Owned:
    await require_broker(place, path.broker_id)
    resource = place.resource.broker(path.broker_id)
    return Owned(admin.BROKER, str(path.broker_id), place, resource, "configs", {"broker_id": path.broker_id})


async def _all_brokers(place: Here, path: ClusterPath) -> Owned:
    return Owned(admin.BROKER, "", place, place.resource, "broker-configs", {"config_type": "BROKER"})


SCOPES: Final = (
    Scope(
        name="topic",
        url=f"{ONE}/topics/{{topic_name}}/configs",
        kind="KafkaTopicConfig",
        path=TopicNamePath,
        setting_path=TopicSettingPath,
        owner=_topic,
    ),
    Scope(
        name="broker",
        url=f"{ONE}/brokers/{{broker_id}}/configs",
        kind="KafkaBrokerConfig",
        path=BrokerIdPath,
        setting_path=BrokerSettingPath,
        owner=_broker,
    ),
    Scope(
        name="cluster",
        url=f"{ONE}/broker-configs",
        kind="KafkaClusterConfig",
        path=ClusterPath,
        setting_path=ClusterSettingPath,
        owner=_all_brokers,
    ),
)


class ConfigResources:
    """Tells of settings and changes them."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def add_to(self, routes: Routes) -> None:
        """All operations."""
        for scope in SCOPES:
            self._add(routes, scope)
        V3.add(
            routes,
            "GET",
            f"{ONE}/topics/-/configs",
            "List the settings of all topics.",
            self._of_all_topics,
            path=ClusterPath,
            answers=V3.answered("Settings by topic and name.", Listing[ConfigData]),
        )
        V3.add(
            routes,
            "GET",
            f"{ONE}/brokers/-/configs",
            "List the settings of each broker.",
            self._of_each_broker,
            path=ClusterPath,
            answers=V3.answered("Settings by broker and name.", Listing[ConfigData]),
        )
        V3.add(
            routes,
            "GET",
            f"{ONE}/topics/{{topic_name}}/default-configs",
            "List what would hold without a topic's own settings.",
            self._defaults_of_topic,
            path=TopicNamePath,
            answers=V3.answered("Settings by name.", Listing[ConfigData]),
        )

    def _add(self, routes: Routes, scope: Scope) -> None:
        async def owner(request: Request, path: Any) -> Owned:
            return await scope.owner(await here(self._clients, request, path.cluster_id), path)

        async def list_settings(request: Request, path: Any) -> Answer:
            owned = await owner(request, path)
            return listed(scope.kind, f"{owned.resource.url}/{owned.collection}", await _settings(scope, owned))

        async def show_setting(request: Request, path: Any) -> Answer:
            return json_answer(await _setting(scope, await owner(request, path), path.name))

        async def set_setting(request: Request, path: Any, body: SettingValue) -> Answer:
            await _change(await owner(request, path), {path.name: body.value})
            return Answer(204)

        async def reset_setting(request: Request, path: Any) -> Answer:
            await _change(await owner(request, path), {path.name: None})
            return Answer(204)

        async def change_settings(request: Request, path: Any, body: SettingChanges) -> Answer:
            await _change(await owner(request, path), _changes(body), validate_only=body.validate_only)
            return Answer(204)

        one, listing = f"{scope.url}/{{name}}", V3.answered("Settings by name.", Listing[ConfigData])
        shown = V3.answered("The setting.", ConfigData)
        for method, url, summary, handler, path, kind, answers in (
            ("GET", scope.url, "List settings.", list_settings, scope.path, None, listing),
            ("GET", one, "Show a setting.", show_setting, scope.setting_path, None, shown),
            ("PUT", one, "Set a setting.", set_setting, scope.setting_path, SettingValue, DONE),
            ("DELETE", one, "Take a setting back.", reset_setting, scope.setting_path, None, DONE),
            ("POST", f"{scope.url}:alter", "Change settings.", change_settings, scope.path, SettingChanges, DONE),
        ):
            name = f"{handler.__name__}_of_{scope.name}"
            V3.add(routes, method, url, summary, handler, name=name, path=path, kind=kind, answers=answers)

    async def _of_all_topics(self, request: Request, path: ClusterPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        answer = await place.client.cluster.metadata(None)
        scope, data = SCOPES[0], []
        for topic in sorted(str(each.name) for each in answer.topics if each.error_code is ErrorCode.none):
            owned = await _topic(place, TopicNamePath(path.cluster_id, topic))
            data += await _settings(scope, owned)
        return listed(scope.kind, f"{place.resource.url}/topics/-/configs", data)

    async def _of_each_broker(self, request: Request, path: ClusterPath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        answer = await place.client.cluster.metadata([])
        scope, data = SCOPES[1], []
        for broker in sorted(int(each.node_id) for each in answer.brokers):
            data += await _settings(scope, await _broker(place, BrokerIdPath(path.cluster_id, broker)))
        return listed(scope.kind, f"{place.resource.url}/brokers/-/configs", data)

    async def _defaults_of_topic(self, request: Request, path: TopicNamePath) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        scope, owned = SCOPES[0], await _topic(place, path)
        data = [_without_own(each) for each in await _settings(scope, owned)]
        return listed(scope.kind, f"{owned.resource.url}/default-configs", data)


def _without_own(config: ConfigData) -> ConfigData:
    """A topic's setting as it would be if the topic had none of its own."""
    left = [each for each in config.synonyms if each.source != _SOURCES[_OF_TOPIC]]
    if not left:
        return config
    first = left[0]
    is_default = first.source == _SOURCES[_DEFAULT]
    return replace(config, value=first.value, source=first.source, synonyms=left, is_default=is_default)


async def _settings(scope: Scope, owned: Owned) -> list[ConfigData]:
    found = await admin.describe_configs(owned.place.client.cluster, owned.name, kind=owned.kind)
    return [_data(scope, owned, each) for each in sorted(found, key=lambda each: str(each.name))]


async def _setting(scope: Scope, owned: Owned, name: str) -> ConfigData:
    for each in await _settings(scope, owned):
        if each.name == name:
            return each
    raise Refusal(404, 404, f"Config {name} cannot be found.")


async def _change(owned: Owned, changes: Mapping[str, str | None], *, validate_only: bool = False) -> None:
    cluster = owned.place.client.cluster
    await admin.alter_configs(cluster, owned.name, changes, kind=owned.kind, validate_only=validate_only)


def _changes(body: SettingChanges) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    for each in body.data:
        if each.name in changes:
            raise Refusal(400, 400, f"'{each.name}' is changed twice")
        is_deleted = each.operation == "DELETE"
        if not is_deleted and each.value is None:
            raise Refusal(400, 400, f"'{each.name}' has no value; to take it back the operation is DELETE")
        changes[each.name] = None if is_deleted else each.value
    return changes


def _data(scope: Scope, owned: Owned, config: Any) -> ConfigData:
    kind = "config" if owned.collection == "configs" else "broker-config"
    source = int(config.config_source)
    return ConfigData(
        kind=scope.kind,
        metadata=owned.resource.child(owned.collection, kind, config.name).metadata,
        cluster_id=owned.place.cluster_id,
        name=str(config.name),
        value=None if config.is_sensitive else config.value,
        is_default=source == _DEFAULT,
        is_read_only=bool(config.read_only),
        is_sensitive=bool(config.is_sensitive),
        source=_SOURCES.get(source, "UNKNOWN"),
        synonyms=[
            ConfigSynonym(
                str(each.name), None if config.is_sensitive else each.value, _SOURCES.get(int(each.source), "UNKNOWN")
            )
            for each in getattr(config, "synonyms", ())
        ],
        **owned.labels,
    )
