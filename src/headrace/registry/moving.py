"""Everything that one registry holds, moved to another: by Confluent's API, with its ids, versions and settings."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from headrace.client.registry import NotRegistered, RegistryRefusal, SchemaRegistry
from headrace.schema_log.names import EVERYTHING, context_of, join
from headrace.schema_log.records import Json

from .confluent_topic import Place, TopicContents

_PAGE: Final = 500
_NOT_SET: Final = (40408, 40409)
_DELETED_ALREADY: Final = 40406
_READWRITE: Final = "READWRITE"
_SETTINGS: Final = (
    "compatibilityLevel",
    "compatibilityPolicy",
    "compatibilityGroup",
    "alias",
    "normalize",
    "validateFields",
    "validateRules",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)


def held_by(registry: SchemaRegistry) -> TopicContents:
    """Everything in a registry."""
    contents = TopicContents()
    while True:
        where = f"/schemas?subjectPrefix=%3A*%3A&deleted=true&offset={len(contents.versions)}&limit={_PAGE}"
        page = registry.call("GET", where)
        contents.versions |= {(str(entry["subject"]), int(entry["version"])): entry for entry in page}
        if len(page) < _PAGE:
            break
    subjects = {subject for subject, _ in contents.versions}
    scopes = {EVERYTHING, *subjects, *(join(context_of(subject), "") for subject in subjects)}
    for scope in sorted(scopes):
        config, mode = _set_for(registry, "config", scope), _set_for(registry, "mode", scope)
        if config:
            contents.configs[scope] = config
        if mode and (scope or mode["mode"] != _READWRITE):
            contents.modes[scope] = str(mode["mode"])
    return contents


def _set_for(registry: SchemaRegistry, what: str, scope: str) -> Json | None:
    try:
        found: Json = registry.call("GET", _settings_path(what, scope))
    except RegistryRefusal as error:
        if error.error_code in _NOT_SET:
            return None
        raise
    return found


def move_into(
    registry: SchemaRegistry, contents: TopicContents, on_version: Callable[[], None] = lambda: None
) -> list[str]:
    """Put everything into a registry, which may hold some of it already: what could not be put there, and why."""
    troubles: list[str] = []
    subjects = sorted({subject for subject, _ in contents.versions})
    places = contents.in_order()
    for subject in subjects:
        registry.call("PUT", f"{_settings_path('mode', subject)}?force=true", {"mode": "IMPORT"})
    try:
        for place in places:
            _register(registry, place, contents.versions[place], troubles)
            on_version()
        for place in reversed(places):
            if contents.versions[place].get("deleted"):
                _delete(registry, place, troubles)
    finally:
        for subject in subjects:
            registry.call("DELETE", _settings_path("mode", subject))
    for scope, config in contents.configs.items():
        known = {name: value for name, value in config.items() if name in _SETTINGS}
        troubles += [f"settings of {_shown(scope)}: there is no {name}" for name in config.keys() - known.keys()]
        _try(troubles, f"settings of {_shown(scope)}", registry, "PUT", _settings_path("config", scope), known)
    for scope, mode in sorted(contents.modes.items(), reverse=True):
        where = f"{_settings_path('mode', scope)}?force=true"
        _try(troubles, f"mode of {_shown(scope)}", registry, "PUT", where, {"mode": mode})
    return troubles


def _register(registry: SchemaRegistry, place: Place, entry: Json, troubles: list[str]) -> None:
    names = ("schema", "schemaType", "references", "metadata", "ruleSet", "id")
    body = {name: entry[name] for name in names if entry.get(name)} | {"version": place[1]}
    where = f"/subjects/{quote(place[0], safe='')}/versions"
    _try(troubles, f"{place[0]} version {place[1]}", registry, "POST", where, body)


def _delete(registry: SchemaRegistry, place: Place, troubles: list[str]) -> None:
    try:
        registry.call("DELETE", f"/subjects/{quote(place[0], safe='')}/versions/{place[1]}")
    except NotRegistered:
        pass
    except RegistryRefusal as error:
        if error.error_code != _DELETED_ALREADY:
            troubles.append(f"{place[0]} version {place[1]}, to be deleted: {error.message}")


def _try(
    troubles: list[str], what: str, registry: SchemaRegistry, method: str, where: str, body: Mapping[str, Any]
) -> None:
    try:
        registry.call(method, where, body)
    except (RegistryRefusal, NotRegistered) as error:
        troubles.append(f"{what}: {error.message}")


def _settings_path(what: str, scope: str) -> str:
    return f"/{what}/{quote(scope, safe='')}" if scope else f"/{what}"


def _shown(scope: str) -> str:
    return scope or "everything"
