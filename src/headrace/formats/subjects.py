"""The reader's schema from its subject, as it is when a query is planned."""

from dataclasses import replace

from headrace.client.registry import NotRegistered, RegisteredSchema, SchemaRegistry, shared_registry
from headrace.registry.errors import InvalidSchemaError
from headrace.registry.references import dependencies

from .errors import OptionError
from .options import FormatOptions
from .registered import SCHEMA_TYPES


def with_subjects_schema(options: FormatOptions) -> FormatOptions:
    """The options with the schema that the subject has; OptionError if it has none that can be used."""
    assert options.registry is not None
    registry = shared_registry(options.registry)
    schema = _version(registry, options.subject, options.subject_version)
    wanted = SCHEMA_TYPES[options.format]
    what = f"version {schema.version} of subject {options.subject}"
    if schema.type != wanted:
        raise OptionError(f"format={options.format} needs a schema of type {wanted}, but {what} is of {schema.type}")
    try:
        return with_schema(options, registry, schema)
    except (InvalidSchemaError, NotRegistered) as error:
        raise OptionError(f"{what} at {registry.name} cannot be used: {error}") from error


def _version(registry: SchemaRegistry, subject: str, version: str) -> RegisteredSchema:
    try:
        return registry.version(subject, int(version) if version.isdecimal() else version)
    except NotRegistered as error:
        raise OptionError(
            f"{registry.name} has no schema for subject={subject}, subject.version={version}: {error}; "
            "register one, name another subject, or give the schema itself"
        ) from error


def with_schema(options: FormatOptions, registry: SchemaRegistry, schema: RegisteredSchema) -> FormatOptions:
    """The options with a schema of a registry as the reader's."""
    needed = dependencies(registry, schema, options.subject)
    if options.format == "avro":
        from headrace.registry.schemas.avro import Avro

        avro = Avro()
        return replace(options, schema=avro.show(avro.parse(schema.text, needed, new=False), "resolved"))
    if options.format == "json":
        from .json_schema import spark_type_of

        return replace(options, schema=spark_type_of(schema.text, needed).json())
    from headrace.registry.schemas.protobuf import descriptors

    files = descriptors(schema.text, needed)
    if not files.file[-1].message_type:
        raise InvalidSchemaError("it has no message")
    package, first = files.file[-1].package, files.file[-1].message_type[0].name
    name = options.message_name or (f"{package}.{first}" if package else first)
    return replace(options, descriptors=files.SerializeToString(), message_name=name)
