"""Confluent's `_schemas`, the topic that its registry keeps everything in: read into what it amounts to, and written.

A record's key is JSON with a `keytype`; a record takes the place of any before it with the same key, and one without a
value removes it. As a file it is one record on a line, key and value with a tab between, as `kafka-console-consumer`
with `print.key=true` writes it.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.schema_log.names import EVERYTHING, beside, normalized
from headrace.schema_log.records import Json

TOPIC: Final = "_schemas"
Place = tuple[str, int]
_WITHOUT_MEANING: Final = frozenset({"NOOP", "CONTEXT"})
_NOTHING: Final = ("", "null")


@dataclass(slots=True)
class TopicContents:
    """What a topic amounts to. `versions` are values of its records, by subject and version, also those deleted softly;
    settings stand by subject, context, or nothing for all."""

    versions: dict[Place, Json] = field(default_factory=dict)
    configs: dict[str, Json] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)
    """Records that are not understood, each with the reason."""

    def in_order(self) -> list[Place]:
        """Every version behind those that it refers to, and otherwise by id."""
        ordered: dict[Place, None] = {}
        waiting: set[Place] = set()

        def visit(place: Place) -> None:
            if place in ordered or place in waiting or place not in self.versions:
                return
            waiting.add(place)
            for reference in self.versions[place].get("references") or ():
                visit((beside(place[0], str(reference.get("subject"))), int(reference.get("version") or 0)))
            ordered[place] = None

        for place in sorted(self.versions, key=lambda place: (self.versions[place]["id"], *place)):
            visit(place)
        return list(ordered)


def read_topic(records: Iterable[tuple[str, str | None]]) -> TopicContents:
    """What keys and values, in the order of the topic, amount to."""
    contents = TopicContents()
    for number, (key, value) in enumerate(records, 1):
        try:
            _take(contents, json.loads(key), None if value is None else json.loads(value))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            contents.passed_over.append(f"record {number}: {str(error) or type(error).__name__}: {key[:80]}")
    return contents


def _take(contents: TopicContents, key: Any, value: Any) -> None:
    if not isinstance(key, dict) or not isinstance(key.get("keytype"), str):
        raise TypeError("a key without a keytype")
    kind = key["keytype"]
    subject = normalized(str(key.get("subject") or EVERYTHING))
    match kind:
        case "SCHEMA":
            _take_schema(contents, (subject, int(key["version"])), value)
        case "CONFIG":
            _set(contents.configs, subject, value and {n: v for n, v in value.items() if n != "subject"})
        case "MODE":
            _set(contents.modes, subject, value and str(value["mode"]))
        case "DELETE_SUBJECT":
            _delete(contents, subject, int((value or {}).get("version") or 0))
        case "CLEAR_SUBJECT":
            for place, entry in list(contents.versions.items()):
                if place[0] == subject and entry.get("deleted"):
                    del contents.versions[place]
        case _ if kind not in _WITHOUT_MEANING:
            raise ValueError(f"records of the kind {kind!r} are not known")


def _take_schema(contents: TopicContents, place: Place, value: Any) -> None:
    if value is None:
        contents.versions.pop(place, None)
        return
    if not isinstance(value, dict) or not isinstance(value.get("schema"), str):
        raise TypeError("a schema without a text")
    if not isinstance(value.get("id"), int):
        raise TypeError("a schema without an id")
    references = value.get("references") or []
    if not isinstance(references, list) or not all(_is_reference(each) for each in references):
        raise TypeError("references that are none")
    contents.versions[place] = value


def _is_reference(value: Any) -> bool:
    is_named = isinstance(value, dict) and isinstance(value.get("subject"), str)
    return is_named and isinstance(value.get("version"), int)


def _delete(contents: TopicContents, subject: str, until: int) -> None:
    for place, entry in contents.versions.items():
        if place[0] == subject and place[1] <= until:
            contents.versions[place] = {**entry, "deleted": True}


def _set(settings: dict[str, Any], scope: str, value: Any) -> None:
    if value:
        settings[scope] = value
    else:
        settings.pop(scope, None)


def topic_records(contents: TopicContents) -> Iterator[tuple[str, str]]:
    """Keys and values that amount to the same, in an order in which nothing refers to what comes later."""
    for scope, config in sorted(contents.configs.items()):
        yield _record("CONFIG", scope, 0, config)
    for place in contents.in_order():
        subject, version = place
        key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
        entry = contents.versions[place]
        names = ("id", "schemaType", "references", "metadata", "ruleSet", "schema")
        value = {name: entry[name] for name in names if entry.get(name)}
        deleted = bool(entry.get("deleted"))
        yield _json(key), _json({"subject": subject, "version": version, **value, "deleted": deleted})
    for scope, mode in sorted(contents.modes.items()):
        yield _record("MODE", scope, 0, {"mode": mode})


def _record(kind: str, scope: str, magic: int, value: Json) -> tuple[str, str]:
    subject = scope or None
    return _json({"keytype": kind, "subject": subject, "magic": magic}), _json({"subject": subject, **value})


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read_lines(lines: Iterable[str]) -> Iterator[tuple[str, str | None]]:
    """Records of a file; what stands behind the value, as a time, does not count."""
    for line in lines:
        if line.strip():
            key, _, rest = line.rstrip("\r\n").partition("\t")
            value = rest.partition("\t")[0].strip()
            yield key, None if value in _NOTHING else value


def written_line(key: str, value: str) -> str:
    """A record as a line: tabs and ends of lines never stand in JSON as they are."""
    return f"{key}\t{value}"
