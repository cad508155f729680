"""Avro schemas: parsing as the specification has it, and printing as Java's `Schema.toString` does.

A schema is a tree of frozen values. Named types stand in a table and are referred to by full name, which is what makes
recursive types possible. Attributes Avro does not know are kept and shown; logical types are such attributes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import InvalidSchemaError
from . import json_text
from .model import Dependency, Parsed, Wording

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MISSING: Final = object()
_RESERVED: Final = frozenset(
    {"type", "name", "namespace", "doc", "aliases", "fields", "symbols", "size", "items", "values"}
)
"""Attributes with a meaning to Avro, which are shown where they have it and nowhere else, as Java does."""
_OF_ENUM: Final = _RESERVED | {"default"}
_OF_FIELD: Final = frozenset({"name", "type", "doc", "default", "order", "aliases"})
_RANGES: Final = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Any type. `kind` is Avro's name for it; `extra` holds the attributes Avro itself gives no meaning."""

    kind: str
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref(Node):
    """A named type that is defined elsewhere."""

    name: str
    kind: str = "ref"


@dataclass(frozen=True, slots=True, kw_only=True)
class Items(Node):
    """An array, or a map by string."""

    of: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Union(Node):
    branches: tuple[Node, ...]
    kind: str = "union"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named(Node):
    """A type with a full name: `namespace.name`, or `name` alone."""

    name: str
    doc: str | None = None
    aliases: tuple[str, ...] = ()

    @property
    def simple(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(Named):
    size: int
    kind: str = "fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enum(Named):
    symbols: tuple[str, ...]
    default: str | None = None
    kind: str = "enum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    name: str
    type: Node
    doc: str | None = None
    default: Any = _MISSING
    order: str | None = None
    aliases: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_default(self) -> bool:
        return self.default is not _MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Named):
    fields: tuple[Field, ...]
    kind: str = "record"


Names = dict[str, Named]


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroModel:
    """A schema's root, with every named type it can reach."""

    root: Node
    names: Names


class Avro:
    """Avro as one of the registry's types."""

    name = "AVRO"

    def parse(self, text: str, dependencies: Sequence[Dependency], *, new: bool) -> Parsed:
        names: Names = {}
        for dependency in dependencies:
            Parser(names).parse(load(dependency.text))
        defined = set(names)
        root = Parser(names).parse(load(text))
        if new:
            check_defaults(root, names, defined)
        canonical = show(root, names, defined)
        return Parsed(type=self.name, text=canonical, identity=canonical, model=AvroModel(root=root, names=names))

    def normalize(self, parsed: Parsed) -> str:
        value = json.loads(parsed.text)
        return json.dumps(_sorted_extras(value), ensure_ascii=False, separators=(",", ":"))

    def show(self, parsed: Parsed, form: str) -> str:
        if form != "resolved":
            return parsed.text
        model: AvroModel = parsed.model
        return show(model.root, model.names, set())

    def meaning(self, parsed: Parsed) -> str:
        return json.dumps(json.loads(self.show(parsed, "resolved")), sort_keys=True)

    def fields(self, parsed: Parsed) -> Sequence[str]:
        root = parsed.model.root
        return [f.name for f in root.fields] if isinstance(root, Record) else []

    def unreadable(
        self,
        *,
        reader: Parsed,
        writer: Parsed,
        wording: Wording,
        lenient: bool = False,  # noqa: ARG002 - Avro has one set of rules
    ) -> list[str]:
        from .avro_compat import unreadable

        return [wording(reason) for reason in unreadable(reader.model, writer.model)]


def load(text: str) -> Any:
    """The JSON of a schema; a bare word is the name of a primitive type, as Java's parser has it."""
    stripped = text.strip()
    if stripped in PRIMITIVES:
        return stripped
    return json_text.load(stripped)


class Parser:
    """Turns JSON into nodes; named types are added to `names`."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def parse(self, value: Any, namespace: str = "") -> Node:
        if isinstance(value, str):
            return self._named(value, namespace)
        if isinstance(value, list):
            return self._union(value, namespace)
        if isinstance(value, dict):
            return self._complex(value, namespace)
        raise InvalidSchemaError(f"no type: {json.dumps(value)}")

    def _named(self, name: str, namespace: str) -> Node:
        if name in PRIMITIVES:
            return Node(kind=name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._names and name in self._names:
            full = name
        if full not in self._names:
            raise InvalidSchemaError(f'"{name}" is not a defined name')
        return Ref(name=full)

    def _union(self, value: list[Any], namespace: str) -> Node:
        branches = tuple(self.parse(branch, namespace) for branch in value)
        seen: set[str] = set()
        for branch in branches:
            if branch.kind == "union":
                raise InvalidSchemaError("a union may not immediately contain another union")
            label = branch_label(branch)
            if label in seen:
                raise InvalidSchemaError(f"duplicate in union: {label}")
            seen.add(label)
        return Union(branches=branches)

    def _complex(self, value: dict[str, Any], namespace: str) -> Node:
        kind = value.get("type", _MISSING)
        if kind is _MISSING:
            raise InvalidSchemaError(f'a type without "type": {json.dumps(value)[:200]}')
        if not isinstance(kind, str):
            return self.parse(kind, namespace)
        reserved = _OF_ENUM if kind == "enum" else _RESERVED
        extra = {k: v for k, v in value.items() if k not in reserved}
        if kind in PRIMITIVES:
            return Node(kind=kind, extra=extra)
        if kind in ("array", "map"):
            inner = "items" if kind == "array" else "values"
            if inner not in value:
                raise InvalidSchemaError(f'{kind} has no "{inner}"')
            return Items(kind=kind, of=self.parse(value[inner], namespace), extra=extra)
        if kind in ("record", "error"):
            return self._record(value, namespace, extra)
        if kind == "enum":
            return self._define(self._enum(value, namespace, extra))
        if kind == "fixed":
            return self._define(self._fixed(value, namespace, extra))
        return self._named(kind, namespace)

    def _record(self, value: dict[str, Any], namespace: str, extra: dict[str, Any]) -> Node:
        name, space = full_name(value, namespace)
        self._define(Record(name=name, fields=()))
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise InvalidSchemaError(f'record {name} has no "fields"')
        parsed = tuple(self._field(item, space) for item in fields)
        _distinct([f.name for f in parsed], f"field of {name}")
        aliases = _aliases(value, space)
        node = Record(
            kind=value["type"], name=name, fields=parsed, doc=_text(value, "doc"), aliases=aliases, extra=extra
        )
        self._names[name] = node
        return node

    def _field(self, value: Any, namespace: str) -> Field:
        if not isinstance(value, dict) or "type" not in value:
            raise InvalidSchemaError(f'a field without "type": {json.dumps(value)[:200]}')
        order = value.get("order")
        if order is not None and order not in ("ascending", "descending", "ignore"):
            raise InvalidSchemaError(f"no such order: {order!r}")
        return Field(
            name=_simple_name(value.get("name")),
            type=self.parse(value["type"], namespace),
            doc=_text(value, "doc"),
            default=value.get("default", _MISSING),
            order=order,
            aliases=tuple(_simple_name(alias) for alias in value.get("aliases", ())),
            extra={k: v for k, v in value.items() if k not in _OF_FIELD},
        )

    def _enum(self, value: dict[str, Any], namespace: str, extra: dict[str, Any]) -> Enum:
        name, space = full_name(value, namespace)
        symbols = value.get("symbols")
        if not isinstance(symbols, list):
            raise InvalidSchemaError(f'enum {name} has no "symbols"')
        checked = tuple(_simple_name(symbol) for symbol in symbols)
        _distinct(checked, f"symbol of {name}")
        default = value.get("default")
        if default is not None and default not in checked:
            raise InvalidSchemaError(f"the default {default!r} of enum {name} is not one of its symbols")
        doc, aliases = _text(value, "doc"), _aliases(value, space)
        return Enum(name=name, symbols=checked, default=default, doc=doc, aliases=aliases, extra=extra)

    def _fixed(self, value: dict[str, Any], namespace: str, extra: dict[str, Any]) -> Fixed:
        name, space = full_name(value, namespace)
        size = value.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InvalidSchemaError(f"fixed {name} has no valid size")
        return Fixed(name=name, size=size, doc=_text(value, "doc"), aliases=_aliases(value, space), extra=extra)

    def _define(self, node: Named) -> Named:
        if node.name in self._names or node.name in PRIMITIVES:
            raise InvalidSchemaError(f"can't redefine: {node.name}")
        self._names[node.name] = node
        return node


def branch_label(branch: Node) -> str:
    """What a union may contain once: a kind, or for named types a full name."""
    return branch.name if isinstance(branch, (Named, Ref)) else branch.kind


def full_name(value: dict[str, Any], enclosing: str) -> tuple[str, str]:
    """The full name a definition gives, and the namespace of what is inside it."""
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidSchemaError(f'a {value["type"]} without "name"')
    if "." in name:
        space, _, simple = name.rpartition(".")
    else:
        given = value.get("namespace")
        space, simple = (given if isinstance(given, str) else enclosing), name
    for part in [*filter(None, space.split(".")), simple]:
        _simple_name(part)
    return (f"{space}.{simple}" if space else simple), space


def _simple_name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidSchemaError(f"illegal name: {name!r}")
    return name


def _aliases(value: dict[str, Any], space: str) -> tuple[str, ...]:
    aliases = value.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise InvalidSchemaError("aliases are a list of names")
    return tuple(alias if "." in alias or not space else f"{space}.{alias}" for alias in aliases)


def _text(value: dict[str, Any], key: str) -> str | None:
    text = value.get(key)
    return text if isinstance(text, str) else None


def _distinct(names: Sequence[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidSchemaError(f"duplicate {what}: {name}")
        seen.add(name)


def show(root: Node, names: Names, defined: set[str]) -> str:
    """A schema's JSON as Java prints it; types in `defined` are referred to by name, others defined where first met."""
    value = _Printer(names, set(defined)).value(root, "")
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class _Printer:
    def __init__(self, names: Names, defined: set[str]) -> None:
        self._names = names
        self._defined = defined

    def value(self, node: Node, space: str) -> Any:
        if isinstance(node, Ref):
            return self._reference(node.name, space)
        if isinstance(node, Union):
            return [self.value(branch, space) for branch in node.branches]
        if isinstance(node, Items):
            inner = "items" if node.kind == "array" else "values"
            return {"type": node.kind, inner: self.value(node.of, space), **node.extra}
        if isinstance(node, Named):
            return self._definition(node, space)
        return {"type": node.kind, **node.extra} if node.extra else node.kind

    def _reference(self, name: str, space: str) -> Any:
        if name not in self._defined:
            return self._definition(self._names[name], space)
        own, _, simple = name.rpartition(".")
        return simple if own == space else name

    def _definition(self, node: Named, space: str) -> Any:
        if node.name in self._defined:
            return self._reference(node.name, space)
        self._defined.add(node.name)
        own, _, simple = node.name.rpartition(".")
        shown: dict[str, Any] = {"type": node.kind, "name": simple}
        if own != space:
            shown["namespace"] = own
        if node.doc is not None:
            shown["doc"] = node.doc
        shown |= {**self._body(node, own), **node.extra}
        if node.aliases:
            shown["aliases"] = [a.rpartition(".")[2] if a.rpartition(".")[0] == own else a for a in node.aliases]
        return shown

    def _body(self, node: Named, space: str) -> dict[str, Any]:
        if isinstance(node, Fixed):
            return {"size": node.size}
        if isinstance(node, Enum):
            default = {} if node.default is None else {"default": node.default}
            return {"symbols": list(node.symbols), **default}
        assert isinstance(node, Record)
        return {"fields": [self._field(f, space) for f in node.fields]}

    def _field(self, f: Field, space: str) -> dict[str, Any]:
        shown: dict[str, Any] = {"name": f.name, "type": self.value(f.type, space)}
        if f.doc is not None:
            shown["doc"] = f.doc
        if f.has_default:
            shown["default"] = f.default
        if f.order not in (None, "ascending"):
            shown["order"] = f.order
        if f.aliases:
            shown["aliases"] = list(f.aliases)
        return {**shown, **f.extra}


def _sorted_extras(value: Any) -> Any:
    """Attributes in one order: Avro's own first, as they are printed, then the others by name."""
    if isinstance(value, list):
        return [_sorted_extras(item) for item in value]
    if not isinstance(value, dict):
        return value
    own = ("type", "name", "namespace", "doc", "fields", "symbols", "size", "items", "values", "default", "order")
    keys = [k for k in own if k in value] + sorted(k for k in value if k not in own)
    nested = ("fields", "items", "values", "type")
    return {k: _sorted_extras(value[k]) if k in nested else value[k] for k in keys}


def check_defaults(root: Node, names: Names, known: set[str]) -> None:
    """InvalidSchemaError if a field's default is no value of its type."""
    for node in [root, *(n for name, n in names.items() if name not in known)]:
        if isinstance(node, Record):
            for f in node.fields:
                if f.has_default and not fits(f.default, f.type, names):
                    shown = json.dumps(f.default, ensure_ascii=False)
                    raise InvalidSchemaError(f"invalid default for field {node.name}.{f.name}: {shown}")


def fits(value: Any, node: Node, names: Names) -> bool:
    """Whether JSON stands for a value of a type, as defaults are written. Of a union any branch will do."""
    node = names[node.name] if isinstance(node, Ref) else node
    if isinstance(node, Union):
        return any(fits(value, branch, names) for branch in node.branches)
    if isinstance(node, Items):
        if node.kind == "array":
            return isinstance(value, list) and all(fits(item, node.of, names) for item in value)
        return isinstance(value, dict) and all(fits(item, node.of, names) for item in value.values())
    if isinstance(node, Record):
        return isinstance(value, dict) and all(
            fits(value[f.name], f.type, names) if f.name in value else f.has_default for f in node.fields
        )
    if isinstance(node, Enum):
        return value in node.symbols
    if isinstance(node, Fixed):
        return _is_bytes(value) and len(value) == node.size
    return _fits_primitive(value, node.kind)


def _fits_primitive(value: Any, kind: str) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            low, high = _RANGES[kind]
            return is_number and value == int(value) and low <= value <= high
        case "float" | "double":
            return is_number or value in ("NaN", "Infinity", "-Infinity")
        case "bytes":
            return _is_bytes(value)
    return isinstance(value, str)


def _is_bytes(value: Any) -> bool:
    return isinstance(value, str) and all(ord(c) < 256 for c in value)
