"""The schema that a sink writes with: given, the subject's latest, or made of the columns; and its id."""

from collections.abc import Sequence
from typing import Any, Final

from headrace.client.registry import (
    NotRegistered,
    RegisteredSchema,
    RegistryRefusal,
    SchemaRegistry,
    shared_registry,
)
from headrace.registry.errors import InvalidSchemaError
from headrace.registry.references import dependencies
from headrace.registry.schemas.model import Dependency

from .. import types as t
from ..errors import OptionError
from .encoder import Agreed, write_of
from .options import EncodingOptions

_TYPES: Final = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF"}


def agreed(options: EncodingOptions, value: t.DataType) -> Agreed:
    """The schema to write a column with, which the registry has then; OptionError where there is none, where it is not
    compatible with those of its subject, or where the column does not fit.
    """
    if not isinstance(value, t.StructType):
        raise OptionError(
            f"format={options.format} writes the fields of a struct, but column value is {value.simple_string()}: "
            "write for example struct(*) AS value"
        )
    registry = shared_registry(options.registry)
    schema = _schema(options, registry, value)
    try:
        agreement = _understood(options, schema, dependencies(registry, schema, options.subject), value)
    except (InvalidSchemaError, NotRegistered) as error:
        raise OptionError(f"the schema of subject={options.subject} cannot be used: {error}") from error
    write_of(options.format, agreement)
    return agreement._replace(schema_id=schema.id if schema.id >= 0 else _registered(options, registry, schema))


def _schema(options: EncodingOptions, registry: SchemaRegistry, value: t.StructType) -> RegisteredSchema:
    kind = _TYPES[options.format]
    if options.schema:
        return RegisteredSchema(text=options.schema, type=kind)
    latest = _latest(options, registry) if options.use_latest or options.format == "protobuf" else None
    if not options.use_latest:
        return RegisteredSchema(text=_made(options, registry, value, latest), type=kind)
    if latest is None:
        raise OptionError(
            f"use.latest.version: {registry.name} has no subject {options.subject}; register a schema first"
        )
    if latest.type != kind:
        raise OptionError(
            f"use.latest.version: the schema of subject={options.subject} is of {latest.type}, not {kind}"
        )
    return latest


def _latest(options: EncodingOptions, registry: SchemaRegistry) -> RegisteredSchema | None:
    try:
        return registry.version(options.subject)
    except NotRegistered:
        return None


def _made(
    options: EncodingOptions, registry: SchemaRegistry, value: t.StructType, latest: RegisteredSchema | None
) -> str:
    name = options.topic or options.subject.removesuffix("-value")
    if options.format == "avro":
        from .avro import made_schema as made_avro

        return made_avro(value, name)
    if options.format == "json-schema":
        from .json import made_schema as made_json

        return made_json(value, name)
    from .protobuf import made_schema as made_protobuf

    before = None
    if latest is not None and latest.type == "PROTOBUF":
        from ..protobuf_writer import message_type

        before = message_type(latest.text, dependencies(registry, latest, options.subject), (0,))
    return made_protobuf(value, name, before)


def _understood(
    options: EncodingOptions, schema: RegisteredSchema, needed: Sequence[Dependency], value: t.StructType
) -> Agreed:
    agreement = Agreed(-1, schema.text, b"", "", (), bool(options.schema) or options.use_latest, value)
    if options.format == "avro":
        from headrace.registry.schemas.avro import Avro

        avro = Avro()
        return agreement._replace(text=avro.show(avro.parse(schema.text, needed, new=True), "resolved"))
    if options.format == "protobuf":
        from headrace.registry.schemas.protobuf import descriptors

        files = descriptors(schema.text, needed)
        name, indexes = _message(files.file[-1], options.message_name)
        return agreement._replace(descriptors=files.SerializeToString(), message_name=name, indexes=indexes)
    if needed:
        raise OptionError(
            f"the JSON Schema of subject={options.subject} refers to others, which the sink does not follow"
        )
    return agreement


def _message(file: Any, message_name: str) -> tuple[str, tuple[int, ...]]:
    """The full name of a file's message and where it is."""
    known = dict(_messages(file.package, file.message_type, ()))
    for name, indexes in known.items():
        if not message_name or message_name in (name, name.removeprefix(f"{file.package}.")):
            return name, indexes
    raise OptionError(f"messageName={message_name} is not in the schema, which has {', '.join(known) or 'none'}")


def _messages(scope: str, messages: Any, indexes: tuple[int, ...]) -> Any:
    for number, message in enumerate(messages):
        if not message.options.map_entry:
            name = f"{scope}.{message.name}" if scope else message.name
            yield name, (*indexes, number)
            yield from _messages(name, message.nested_type, (*indexes, number))


def _registered(options: EncodingOptions, registry: SchemaRegistry, schema: RegisteredSchema) -> int:
    try:
        if options.auto_register:
            return registry.register(options.subject, schema, normalize=options.normalize)
        return registry.lookup(options.subject, schema, normalize=options.normalize)
    except NotRegistered as error:
        raise OptionError(
            f"auto.register.schemas=false, and {registry.name} does not have the schema in subject={options.subject} "
            f"({error}): register it, or set use.latest.version=true"
        ) from error
    except RegistryRefusal as error:
        what = "is not compatible with those that are there" if error.is_incompatible else "was refused"
        raise OptionError(f"the schema for subject={options.subject} {what}: {error}") from error
