"""JSON Schema, drafts 4 to 2020-12: parsing, references, and one text per schema."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from ..errors import InvalidSchemaError
from . import json_text
from .model import Dependency, Parsed, Wording, sentence

DRAFT_7: Final = "http://json-schema.org/draft-07/schema"
_NEWER: Final = ("2019-09", "2020-12")
_IN_MAPS: Final = ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas", "dependencies")
_IN_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_IN_PLACE: Final = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaLocation:
    """A schema inside a document: what `$ref` in it is relative to."""

    value: Any
    base: str
    draft: str


class Documents:
    """Schemas by the addresses they can be referred to: their own ids, anchors, and the names of references."""

    def __init__(self) -> None:
        self._places: dict[str, SchemaLocation] = {}

    def add(self, name: str, value: Any) -> SchemaLocation:
        draft = _draft(value)
        root = SchemaLocation(value=value, base=_base(name, value), draft=draft)
        self._places.setdefault(name, root)
        for location in _walk(root):
            self._note(location)
        return root

    def resolve(self, location: SchemaLocation, reference: str) -> SchemaLocation:
        """What a `$ref` stands for; InvalidSchemaError if nothing does."""
        for address in (urljoin(location.base, reference), reference):
            document, fragment = urldefrag(address)
            found = self._places.get(address) or self._places.get(f"{document}#{fragment}")
            if found is not None:
                return found
            root = self._places.get(document)
            if root is not None and (not fragment or fragment.startswith("/")):
                return _descend(root, fragment, reference)
        raise InvalidSchemaError(f"unresolved $ref {reference!r}")

    def _note(self, location: SchemaLocation) -> None:
        if not isinstance(location.value, dict):
            return
        self._places.setdefault(location.base, location)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = location.value.get(keyword)
            if isinstance(anchor, str):
                self._places.setdefault(f"{location.base}#{anchor}", location)
        own = location.value.get("$id", location.value.get("id"))
        if isinstance(own, str) and own.startswith("#"):
            self._places.setdefault(f"{location.base}{own}", location)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonModel:
    root: SchemaLocation
    documents: Documents


class JsonSchema:
    """JSON Schema as one of the registry's types."""

    name = "JSON"

    def parse(self, text: str, dependencies: Sequence[Dependency], *, new: bool) -> Parsed:
        value = load(text)
        documents = Documents()
        root = documents.add("", value)
        for dependency in dependencies:
            documents.add(dependency.name, load(dependency.text))
        if new:
            _check(value, root.draft)
            for location in _walk(root):
                _check_reference(documents, location)
        canonical = dump(value)
        return Parsed(
            type=self.name, text=canonical, identity=canonical, model=JsonModel(root=root, documents=documents)
        )

    def normalize(self, parsed: Parsed) -> str:
        return json.dumps(json.loads(parsed.text), ensure_ascii=False, separators=(",", ":"), sort_keys=True)

    def show(self, parsed: Parsed, form: str) -> str:  # noqa: ARG002 - it has no other forms
        return parsed.text

    def meaning(self, parsed: Parsed) -> str:
        return self.normalize(parsed)

    def fields(self, parsed: Parsed) -> Sequence[str]:
        value = parsed.model.root.value
        properties = value.get("properties") if isinstance(value, dict) else None
        return list(properties) if isinstance(properties, dict) else []

    def unreadable(self, *, reader: Parsed, writer: Parsed, wording: Wording, lenient: bool = False) -> list[str]:
        from .json_compat import differences

        found = differences(original=writer.model, update=reader.model, lenient=lenient)
        return [f'{{errorType:"{d.kind}", description:"{wording(sentence(d))}"}}' for d in found]


def load(text: str) -> Any:
    value = json_text.load(text)
    if not isinstance(value, (dict, bool)):
        raise InvalidSchemaError("a JSON Schema is an object, true or false")
    return value


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def is_newer(draft: str) -> bool:
    """Whether keywords beside `$ref` count, as they do since 2019-09."""
    return any(year in draft for year in _NEWER)


def inside(location: SchemaLocation, value: Any) -> SchemaLocation:
    """A schema that stands in another."""
    return SchemaLocation(value=value, base=_base(location.base, value), draft=location.draft)


def _draft(value: Any) -> str:
    named = value.get("$schema") if isinstance(value, dict) else None
    return named.rstrip("#") if isinstance(named, str) else DRAFT_7


def _base(base: str, value: Any) -> str:
    own = value.get("$id", value.get("id")) if isinstance(value, dict) else None
    if not isinstance(own, str) or own.startswith("#"):
        return base
    return urldefrag(urljoin(base, own))[0]


def _walk(root: SchemaLocation) -> Iterator[SchemaLocation]:
    waiting = [root]
    while waiting:
        location = waiting.pop()
        yield location
        if isinstance(location.value, dict):
            waiting += [inside(location, value) for value in _subschemas(location.value)]


def _subschemas(value: Mapping[str, Any]) -> Iterator[Any]:
    for keyword in _IN_MAPS:
        held = value.get(keyword)
        if isinstance(held, dict):
            yield from (item for item in held.values() if isinstance(item, (dict, bool)))
    for keyword in _IN_LISTS:
        held = value.get(keyword)
        if isinstance(held, list):
            yield from (item for item in held if isinstance(item, (dict, bool)))
    for keyword in _IN_PLACE:
        if isinstance(value.get(keyword), dict):
            yield value[keyword]


def _descend(root: SchemaLocation, pointer: str, reference: str) -> SchemaLocation:
    location = root
    for part in pointer.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        value = location.value
        if isinstance(value, dict) and key in value:
            location = inside(location, value[key])
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            location = inside(location, value[int(key)])
        else:
            raise InvalidSchemaError(f"unresolved $ref {reference!r}")
    return location


def _check_reference(documents: Documents, location: SchemaLocation) -> None:
    reference = location.value.get("$ref") if isinstance(location.value, dict) else None
    if isinstance(reference, str) and urldefrag(reference)[0].rstrip("#") != location.draft:
        documents.resolve(location, reference)


def _check(value: Any, draft: str) -> None:
    """Against the draft's own schema."""
    from jsonschema import Draft7Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    if isinstance(value, bool):
        return
    try:
        validator_for({"$schema": draft}, default=Draft7Validator).check_schema(value)
    except SchemaError as error:
        where = "/".join(map(str, error.absolute_path))
        raise InvalidSchemaError(f"at #/{where}: {error.message[:300]}") from error
