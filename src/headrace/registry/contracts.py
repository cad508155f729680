"""Data contracts: metadata and rules that a schema carries, those that settings add, and what makes a rule valid."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from headrace.schema_log.records import Json, Schema

from . import errors
from .parsing import Posted

VERSION: Final = "confluent:version"
"""The property that holds a schema's own version, where one asked for it."""
MOST_NAME: Final = 256
_MODES: Final = {
    "migrationRules": ("UPGRADE", "DOWNGRADE", "UPDOWN"),
    "domainRules": ("WRITE", "READ", "WRITEREAD"),
    "encodingRules": ("WRITE", "READ", "WRITEREAD"),
}
_WITH_TWO_ACTIONS: Final = ("WRITEREAD", "UPDOWN")


def completed(posted: Posted, config: Json, previous: Schema | None, number: int | None) -> Posted:
    """A schema with what it takes over: metadata and rules of the version before it where it has none, and what the
    settings put below and above them. `number` is the version it would get, noted where that is asked for."""
    metadata = posted.metadata if posted.metadata is not None or previous is None else previous.metadata
    rules = posted.rule_set if posted.rule_set is not None or previous is None else previous.rule_set
    metadata = _merged(_merged(config.get("defaultMetadata"), metadata), config.get("overrideMetadata"))
    rules = _merged_rules(_merged_rules(config.get("defaultRuleSet"), rules), config.get("overrideRuleSet"))
    if number is not None and (posted.version is not None or VERSION in properties(metadata)):
        metadata = {**(metadata or {}), "properties": {**properties(metadata), VERSION: str(number)}}
    return replace(posted, metadata=metadata or None, rule_set=rules or None)


def has_defaults(config: Json) -> bool:
    """Whether settings add anything to schemas."""
    names = ("defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet")
    return any(config.get(name) for name in names)


def properties(metadata: Json | None) -> Mapping[str, Any]:
    found = (metadata or {}).get("properties")
    return found if isinstance(found, dict) else {}


def without_version(metadata: Json | None) -> Json | None:
    """Metadata but for the version that they note."""
    if VERSION not in properties(metadata):
        return metadata or None
    rest = {name: value for name, value in properties(metadata).items() if name != VERSION}
    kept = {**(metadata or {}), "properties": rest}
    return {name: value for name, value in kept.items() if value} or None


def check_rules(rules: Json | None) -> None:
    """RegistryError 42210 for rules that no client could carry out as they are meant."""
    names: set[str] = set()
    for rule, modes in _each(rules or {}):
        name = rule.get("name")
        _check_name(name)
        if name in names:
            raise errors.invalid_rules(f"Found rule with duplicate name '{name}'")
        names.add(str(name))
        if not rule.get("type"):
            raise errors.invalid_rules(f"Missing rule type of '{name}'")
        mode = rule.get("mode")
        if mode not in modes:
            raise errors.invalid_rules(f"The mode of rule '{name}' is one of {', '.join(modes)} there, not {mode}")
        actions = (rule.get("onSuccess") or "", rule.get("onFailure") or "")
        if mode not in _WITH_TWO_ACTIONS and any("," in action for action in actions):
            raise errors.invalid_rules(f"Multiple actions only valid with WRITEREAD and UPDOWN, not for '{name}'")


def _each(rules: Json) -> Iterator[tuple[Json, tuple[str, ...]]]:
    for kind, modes in _MODES.items():
        for rule in rules.get(kind) or ():
            yield rule, modes


def has_rule_type(rules: Json | None, kind: str) -> bool:
    return any(rule.get("type") == kind for rule, _ in _each(rules or {}))


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise errors.invalid_rules("Missing rule name")
    if len(name) > MOST_NAME:
        raise errors.invalid_rules(f"Rule name too long: at most {MOST_NAME} characters")
    if not (name[0].isalpha() or name[0] == "_") or not all(c.isalnum() or c in "_-" for c in name):
        raise errors.invalid_rules(f"Illegal character in rule name: {name}")


def _merged(below: Json | None, above: Json | None) -> Json | None:
    """Metadata laid over others: maps by name, sets together."""
    if not below or not above:
        return above or below
    found = {**below, **above}
    for name in ("tags", "properties"):
        if below.get(name) and above.get(name):
            found[name] = dict(sorted({**below[name], **above[name]}.items()))
    if below.get("sensitive") and above.get("sensitive"):
        found["sensitive"] = sorted({*below["sensitive"], *above["sensitive"]})
    return found


def _merged_rules(below: Json | None, above: Json | None) -> Json | None:
    """Rules laid over others: one takes the place of another of its name."""
    if not below or not above:
        return above or below
    found = {**below, **above}
    for kind in _MODES:
        olds, news = below.get(kind) or [], above.get(kind) or []
        if olds and news:
            found[kind] = _replaced(olds, news)
    return found


def _replaced(olds: Sequence[Json], news: Sequence[Json]) -> list[Json]:
    names = {rule.get("name") for rule in news}
    return [*(rule for rule in olds if rule.get("name") not in names), *news]
