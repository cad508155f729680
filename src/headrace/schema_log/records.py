"""What the log holds: one proposal per record, in JSON.

A proposal names what its author had read to decide on it (`reads`) and how far the author had replayed (`basis`). It is
accepted if nothing of that has changed since, otherwise it is void: the author decides again. Replay therefore needs no
schema library, costs a few look-ups a record, and comes to the same end with every version of this program.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

FORMAT: Final = 1
TOPIC: Final = "_headrace_schemas"
"""Where the records are kept."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A name inside a schema that stands for a version of another subject."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A schema as it is shown. `key` is its identity: the same for texts that differ in nothing that matters."""

    type: str
    text: str
    references: tuple[Reference, ...] = ()
    metadata: Json | None = None
    rule_set: Json | None = None
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """A new version of a subject. `id` and `version` are given only when schemas are imported."""

    subject: str
    schema: Schema
    id: int | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Versions of a subject are hidden (soft) or forgotten (permanent)."""

    subject: str
    versions: tuple[int, ...]
    permanent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConfig:
    """The settings of a scope from now on; None removes them."""

    scope: str
    config: Json | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMode:
    """The mode of a scope from now on; None removes it."""

    scope: str
    mode: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Associate:
    """Subjects that belong to a resource, such as a topic, each as one kind of thing (key, value)."""

    resource: str
    links: tuple[Json, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dissociate:
    """They belong to it no more: those of the named kinds, or all."""

    resource: str
    kinds: tuple[str, ...]


Change = Register | Delete | SetConfig | SetMode | Associate | Dissociate


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A change, and the state it was decided on."""

    basis: int
    reads: tuple[str, ...]
    change: Change


class NewerFormatError(Exception):
    """The log was written by a newer version, whose records this one must not guess at."""


def encode(proposal: Proposal) -> bytes:
    body = {"v": FORMAT, "basis": proposal.basis, "reads": list(proposal.reads), **_encode_change(proposal.change)}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def decode(value: bytes | None) -> Proposal | None:
    """The proposal in a record; None for a record that is not ours, which everyone passes over."""
    try:
        body = json.loads(value or b"")
        version = int(body["v"])
        if version > FORMAT:
            raise NewerFormatError(f"a record of format {version}; this version reads up to {FORMAT}")
        reads = tuple(str(read) for read in body["reads"])
        return Proposal(basis=int(body["basis"]), reads=reads, change=_decode_change(body))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return None


def _encode_change(change: Change) -> dict[str, Any]:
    match change:
        case Register():
            return {
                "kind": "register",
                "subject": change.subject,
                "schema": _encode_schema(change.schema),
                "id": change.id,
                "version": change.version,
            }
        case Delete():
            versions = list(change.versions)
            return {"kind": "delete", "subject": change.subject, "versions": versions, "permanent": change.permanent}
        case SetConfig():
            return {"kind": "config", "scope": change.scope, "config": change.config}
        case SetMode():
            return {"kind": "mode", "scope": change.scope, "mode": change.mode}
        case Associate():
            return {"kind": "associate", "resource": change.resource, "links": list(change.links)}
        case Dissociate():
            return {"kind": "dissociate", "resource": change.resource, "kinds": list(change.kinds)}


def _decode_change(body: dict[str, Any]) -> Change:
    match body["kind"]:
        case "register":
            schema = _decode_schema(body["schema"])
            return Register(subject=str(body["subject"]), schema=schema, id=body["id"], version=body["version"])
        case "delete":
            versions = tuple(int(version) for version in body["versions"])
            return Delete(subject=str(body["subject"]), versions=versions, permanent=bool(body["permanent"]))
        case "config":
            return SetConfig(scope=str(body["scope"]), config=body["config"])
        case "mode":
            return SetMode(scope=str(body["scope"]), mode=body["mode"])
        case "associate":
            links = tuple({str(name): value for name, value in link.items()} for link in body["links"])
            if not all(isinstance(link.get("associationType"), str) for link in links):
                raise ValueError("a link without a type")
            return Associate(resource=str(body["resource"]), links=links)
        case "dissociate":
            return Dissociate(resource=str(body["resource"]), kinds=tuple(str(kind) for kind in body["kinds"]))
    raise ValueError(body["kind"])


def _encode_schema(schema: Schema) -> dict[str, Any]:
    references = [{"name": r.name, "subject": r.subject, "version": r.version} for r in schema.references]
    return {
        "type": schema.type,
        "text": schema.text,
        "references": references,
        "metadata": schema.metadata,
        "ruleSet": schema.rule_set,
        "key": schema.key,
    }


def _decode_schema(body: dict[str, Any]) -> Schema:
    references = tuple(
        Reference(name=str(r["name"]), subject=str(r["subject"]), version=int(r["version"])) for r in body["references"]
    )
    return Schema(
        type=str(body["type"]),
        text=str(body["text"]),
        references=references,
        metadata=body["metadata"],
        rule_set=body["ruleSet"],
        key=str(body["key"]),
    )
