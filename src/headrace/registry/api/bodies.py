"""What callers send, as structs: read without building what is not meant, so that a large body costs its bytes."""

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from headrace.schema_log.records import Json, Reference
from headrace.web.messages import BadBody, Request

from .. import errors
from ..errors import MAX_ID, RegistryError
from ..parsing import Posted

MOST_BODY: Final = 4 << 20
"""Bytes of a request: a schema of the largest size with each character escaped."""
MOST_CONTRACT: Final = 100_000
"""Bytes of references, metadata and rules together."""

_T = TypeVar("_T")
_Scalar = str | int | float | bool
_CHARSETS: Final = ("utf-8", "utf8", "us-ascii", "iso-8859-1", "utf-16", "utf-16le", "utf-16be", "utf-32")


class ReferenceBody(Struct):
    """A name in a schema that stands for a version of a subject; -1 is the latest."""

    name: Annotated[str, Meta(examples=["com.example.Address"])]
    subject: Annotated[str, Meta(examples=["address"])]
    version: Annotated[int, Meta(ge=-1, le=MAX_ID, examples=[1])]


class MetadataBody(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is known of a schema besides its text."""

    tags: Annotated[dict[str, list[str]] | None, Meta(examples=[{"**.ssn": ["PII"]}])] = None
    properties: Annotated[dict[str, _Scalar] | None, Meta(examples=[{"owner": "shop"}])] = None
    sensitive: Annotated[list[str] | None, Meta(examples=[["owner"]])] = None


class RuleBody(Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A rule that clients carry out on values."""

    name: Annotated[str | None, Meta(examples=["checkTotal"])] = None
    doc: Annotated[str | None, Meta(examples=["The total is positive."])] = None
    kind: Annotated[Literal["TRANSFORM", "CONDITION"] | None, Meta(examples=["CONDITION"])] = None
    mode: Annotated[
        Literal["UPGRADE", "DOWNGRADE", "UPDOWN", "WRITE", "READ", "WRITEREAD"] | None, Meta(examples=["WRITE"])
    ] = None
    type: Annotated[str | None, Meta(examples=["CEL"])] = None
    tags: Annotated[list[str] | None, Meta(examples=[["PII"]])] = None
    params: Annotated[dict[str, _Scalar] | None, Meta(examples=[{}])] = None
    expr: Annotated[str | None, Meta(examples=["message.total > 0"])] = None
    on_success: Annotated[str | None, Meta(examples=["NONE"])] = None
    on_failure: Annotated[str | None, Meta(examples=["ERROR"])] = None
    disabled: Annotated[bool | None, Meta(examples=[False])] = None


class RuleSetBody(Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Rules by when they are carried out."""

    migration_rules: Annotated[list[RuleBody] | None, Meta(examples=[[]])] = None
    domain_rules: list[RuleBody] | None = None
    encoding_rules: Annotated[list[RuleBody] | None, Meta(examples=[[]])] = None
    enable_at: Annotated[Literal["ALL", "CLIENT", "GATEWAY", "SERVER", "NONE"] | None, Meta(examples=["CLIENT"])] = None


class SchemaBody(Struct, kw_only=True, rename="camel"):
    """A schema. Without a text it is the latest one's, with other metadata or rules."""

    schema: Annotated[str, Meta(max_length=1 << 24, examples=['"string"'])] | None = None
    schema_type: Annotated[str | None, Meta(examples=["AVRO"])] = None
    references: Annotated[list[ReferenceBody] | None, Meta(examples=[[]])] = None
    metadata: MetadataBody | None = None
    rule_set: Annotated[RuleSetBody | None, Meta(examples=[{}])] = None
    id: Annotated[int, Meta(ge=-1, le=MAX_ID, examples=[-1])] | None = None
    version: Annotated[int, Meta(ge=-1, le=MAX_ID, examples=[0])] | None = None


class ConfigBody(Struct, rename="camel", forbid_unknown_fields=True):
    """Settings. What is left out stays as it is; null removes a setting."""

    compatibility: Annotated[msgspec.Raw | msgspec.UnsetType, Meta(examples=["BACKWARD"])] = msgspec.UNSET
    compatibility_level: Annotated[msgspec.Raw | msgspec.UnsetType, Meta(examples=["BACKWARD"])] = msgspec.UNSET
    compatibility_policy: Annotated[str | msgspec.UnsetType | None, Meta(examples=["STRICT"])] = msgspec.UNSET
    compatibility_group: Annotated[str | msgspec.UnsetType | None, Meta(examples=["major"])] = msgspec.UNSET
    alias: Annotated[str | msgspec.UnsetType | None, Meta(examples=["orders-value"])] = msgspec.UNSET
    normalize: Annotated[bool | msgspec.UnsetType | None, Meta(examples=[True])] = msgspec.UNSET
    validate_fields: Annotated[bool | msgspec.UnsetType | None, Meta(examples=[False])] = msgspec.UNSET
    validate_rules: Annotated[bool | msgspec.UnsetType | None, Meta(examples=[True])] = msgspec.UNSET
    default_metadata: MetadataBody | msgspec.UnsetType | None = msgspec.UNSET
    override_metadata: MetadataBody | msgspec.UnsetType | None = msgspec.UNSET
    default_rule_set: Annotated[RuleSetBody | msgspec.UnsetType | None, Meta(examples=[{}])] = msgspec.UNSET
    override_rule_set: Annotated[RuleSetBody | msgspec.UnsetType | None, Meta(examples=[{}])] = msgspec.UNSET


class ModeBody(Struct, forbid_unknown_fields=True):
    """A mode."""

    mode: Annotated[str, Meta(examples=["READWRITE"])]


async def read_body(request: Request, kind: type[_T]) -> _T:
    """The body; RegistryError where it is not what is wanted here."""
    try:
        raw = await request.body(MOST_BODY)
    except BadBody as error:
        raise RegistryError(error.status, error.status, str(error)) from error
    try:
        return msgspec.json.decode(_utf8(raw, request), type=kind)
    except msgspec.ValidationError as error:
        raise errors.unprocessable(f"The body is not what is wanted here: {error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise errors.bad_request(f"The body is not JSON: {error}") from error


def _utf8(raw: bytes, request: Request) -> bytes:
    _, _, charset = request.fields.get(b"content-type", b"").decode("latin-1").lower().partition("charset=")
    charset = charset.partition(";")[0].strip(' "')
    if not charset or charset.startswith("utf-8"):
        return raw
    if charset not in _CHARSETS:
        raise RegistryError(415, 415, f"A body in {charset[:40]!r} cannot be read; send UTF-8")
    return raw.decode(charset).encode()


def posted_of(body: SchemaBody) -> Posted:
    """A request's schema."""
    references = tuple(Reference(name=r.name, subject=r.subject, version=r.version) for r in body.references or ())
    for reference in references:
        if reference.version == 0:
            raise errors.unprocessable(f"the reference {reference.name!r} has no valid version")
    if len(msgspec.json.encode((body.references, body.metadata, body.rule_set))) > MOST_CONTRACT:
        raise errors.contract_too_large(MOST_CONTRACT)
    return Posted(
        type=body.schema_type or "AVRO",
        text=body.schema or "",
        references=references,
        metadata=None if body.metadata is None else metadata_of(body.metadata),
        rule_set=None if body.rule_set is None else rule_set_of(body.rule_set),
        id=_given(body.id),
        version=body.version or None,
    )


def _given(number: int | None) -> int | None:
    """Nothing, 0 and -1 mean that none is given."""
    return number if number is not None and number > 0 else None


def metadata_of(body: MetadataBody) -> Json:
    """Metadata as they are kept: names in order, values as text."""
    found: dict[str, Any] = {}
    if body.tags:
        found["tags"] = {path: sorted(set(tags)) for path, tags in sorted(body.tags.items())}
    if body.properties:
        found["properties"] = {name: _text(value) for name, value in sorted(body.properties.items())}
    if body.sensitive:
        found["sensitive"] = sorted(set(body.sensitive))
    return found


def _text(value: _Scalar) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def rule_set_of(body: RuleSetBody) -> Json:
    """Rules as they are kept, each with its kind and its mode."""
    found: dict[str, Any] = {
        "migrationRules": [_rule(rule) for rule in body.migration_rules or ()],
        "domainRules": [_rule(rule) for rule in body.domain_rules or ()],
        "encodingRules": [_rule(rule) for rule in body.encoding_rules or ()],
    }
    kept = {name: rules for name, rules in found.items() if rules}
    return kept | {"enableAt": body.enable_at} if body.enable_at is not None else kept


def _rule(body: RuleBody) -> Json:
    rule: dict[str, Any] = msgspec.to_builtins(body)
    rule |= {"kind": body.kind or "TRANSFORM", "mode": body.mode or "WRITEREAD", "disabled": bool(body.disabled)}
    if body.tags:
        rule["tags"] = sorted(set(body.tags))
    if body.params:
        rule["params"] = {name: _text(value) for name, value in sorted(body.params.items())}
    return {name: value for name, value in rule.items() if value not in (None, [], {})}
