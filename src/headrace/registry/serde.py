"""Values that were written with a schema, to and from JSON: Confluent's framing with Avro, JSON Schema and Protobuf.

    zero byte | schema id, 4 bytes | for Protobuf: which message, as varints | the value

For programs that look at one value at a time; whole batches become columns in `headrace.formats`.
"""

import json
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from headrace.client.registry import RegisteredSchema

from .errors import InvalidSchemaError
from .references import SchemaSource, dependencies
from .schemas.model import Dependency

_HEAD: Final = struct.Struct(">bI")
_MAGIC: Final = 0


class Undecodable(Exception):
    """Bytes that are not what their schema says, or a schema that cannot be used."""


class Unencodable(ValueError):
    """A value that does not fit its schema; the message says where."""


class DecodedValue(NamedTuple):
    """A value as JSON has it, and the schema it was written with; for Protobuf also which message it is."""

    value: Any
    schema_id: int
    message: str = ""


class Codec(Protocol):
    """Values of one schema."""

    @property
    def takes_text(self) -> bool:
        """Whether the values are plain strings, which need no quotes to be told from anything else."""

    def decode(self, data: bytes) -> Any:
        """The value in these bytes, as JSON has it."""

    def message_of(self, data: bytes) -> str:
        """Which of a Protobuf schema's messages the bytes are; nothing for values of other schemas."""

    def encode(self, value: Any, *, coerce: bool = False) -> bytes:
        """A value of JSON in bytes; with `coerce` texts may stand for numbers, as in CSV."""


def framed_id(data: bytes | None) -> int | None:
    """The schema id that stands before a value; None if none does."""
    if data is None or len(data) < _HEAD.size or data[0] != _MAGIC:
        return None
    return int(_HEAD.unpack_from(data)[1])


class Serde:
    """Decodes and encodes with the schemas of one registry.

    `bounded` is for schemas of strangers: patterns of JSON Schema are then RE2's, which know no look-around and take no
    more time than the text is long.
    """

    def __init__(self, registry: SchemaSource, *, bounded: bool = False) -> None:
        self._registry = registry
        self._bounded = bounded
        self._codecs: dict[int, Codec] = {}

    def decode(self, data: bytes | None) -> DecodedValue | None:
        """The value in bytes that a serializer wrote; None where no id that the registry knows stands before them."""
        schema_id = framed_id(data)
        if schema_id is None or data is None:
            return None
        codec = self._codecs.get(schema_id)
        if codec is None:
            schema = self._registry.schema(schema_id)
            if schema is None:  # for now: a registry may hear of it late
                return None
            codec = self._codecs[schema_id] = self.codec(schema)
        body = data[_HEAD.size :]
        return DecodedValue(codec.decode(body), schema_id, codec.message_of(body))

    def knows(self, data: bytes | None) -> bool:
        """Whether `decode` need not ask the registry about these bytes."""
        schema_id = framed_id(data)
        return schema_id is None or schema_id in self._codecs

    def codec(self, schema: RegisteredSchema, message: str = "") -> Codec:
        """What decodes and encodes values of a schema; of Protobuf's messages the first, unless one is named."""
        try:
            needed = dependencies(self._registry, schema, schema.subject)
            if schema.type == "AVRO":
                return AvroCodec(schema.text, needed)
            if schema.type == "JSON":
                return JsonCodec(schema.text, needed, bounded=self._bounded)
            if schema.type == "PROTOBUF":
                return ProtobufCodec(schema.text, needed, message)
        except InvalidSchemaError as error:
            raise Undecodable(f"schema {schema.id}: {error}") from error
        raise Undecodable(f"schema {schema.id} is of type {schema.type}, which is not known")

    def encoder(self, schema: RegisteredSchema, message: str = "") -> Callable[..., bytes]:
        """A function from values of JSON to framed bytes."""
        codec, head = self.codec(schema, message), _HEAD.pack(_MAGIC, schema.id)

        def encode(value: Any, *, coerce: bool = False) -> bytes:
            return head + codec.encode(value, coerce=coerce)

        return encode


class JsonCodec:
    """Values with a JSON Schema: they are JSON, and held to the schema when they are written."""

    takes_text = False

    def __init__(self, text: str, needed: list[Dependency], *, bounded: bool = False) -> None:
        from jsonschema import Draft7Validator
        from jsonschema.validators import validator_for
        from referencing import Registry
        from referencing.jsonschema import DRAFT7, specification_with

        from .schemas.json_schema import load

        schema = load(text)
        draft = schema.get("$schema") if isinstance(schema, dict) else None
        specification = specification_with(draft, default=DRAFT7) if draft else DRAFT7
        others = [(one.name, specification.create_resource(load(one.text))) for one in needed]
        kind = validator_for(schema, default=Draft7Validator)
        if bounded:
            kind = _bounded(kind)
        self._validator = kind(schema, registry=Registry().with_resources(others))

    def decode(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError as error:
            raise Undecodable(f"not JSON: {error}") from error

    def message_of(self, data: bytes) -> str:  # noqa: ARG002 - there is but one
        return ""

    def encode(self, value: Any, *, coerce: bool = False) -> bytes:
        if coerce and isinstance(value, dict):
            value = self._coerced(value)
        error = next(iter(self._validator.iter_errors(value)), None)
        if error is not None:
            where = "".join(f".{part}" for part in error.absolute_path).lstrip(".")
            raise Unencodable(f"{where}: {error.message}" if where else error.message)
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def _coerced(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Texts as what the schema says of their properties, where it says it directly."""
        schema = self._validator.schema
        properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
        return {name: _as_type(text, properties.get(name)) for name, text in value.items()}


def _bounded(kind: Any) -> Any:
    """A kind of validator whose patterns cannot take for ever."""
    from jsonschema.exceptions import ValidationError
    from jsonschema.validators import extend

    from headrace.protocol.patterns import PatternError, pattern

    def finds(expression: str, text: str) -> bool:
        try:
            return pattern(expression).finds(text)
        except PatternError as error:
            raise Unencodable(f"the schema's pattern {expression[:80]!r} is not taken here: {error}") from None

    def check_pattern(validator: Any, expression: Any, instance: Any, schema: Any) -> Any:  # noqa: ARG001
        if validator.is_type(instance, "string") and not finds(expression, instance):
            yield ValidationError(f"{_shown(instance)} does not match {expression!r}")

    def check_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Any:  # noqa: ARG001
        if validator.is_type(instance, "object"):
            for expression, inner in patterns.items():
                for name, value in instance.items():
                    if finds(expression, name):
                        yield from validator.descend(value, inner, path=name, schema_path=expression)

    def check_others(validator: Any, allowed: Any, instance: Any, schema: Any) -> Any:
        if not validator.is_type(instance, "object"):
            return
        known, expressions = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items():
            if name in known or any(finds(expression, name) for expression in expressions):
                continue
            if validator.is_type(allowed, "object"):
                yield from validator.descend(value, allowed, path=name)
            elif not allowed:
                yield ValidationError(f"property {_shown(name)} is not among those of the schema")

    def refuse(validator: Any, allowed: Any, instance: Any, schema: Any) -> Any:
        if "patternProperties" in schema:
            raise Unencodable("unevaluatedProperties beside patternProperties are not taken here")
        yield from kind.VALIDATORS["unevaluatedProperties"](validator, allowed, instance, schema)

    checks = {"pattern": check_pattern, "patternProperties": check_properties, "additionalProperties": check_others}
    if "unevaluatedProperties" in kind.VALIDATORS:
        checks["unevaluatedProperties"] = refuse
    return extend(kind, checks)


def _as_type(text: Any, schema: Any) -> Any:
    kinds = schema.get("type") if isinstance(schema, dict) else None
    kinds = [kinds] if isinstance(kinds, str) else kinds or []
    if "string" in kinds or not isinstance(text, str):
        return None if text == "" and "null" in kinds else text
    if text == "" and "null" in kinds:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


class ProtobufCodec:
    """Values of Protobuf, in its own JSON mapping."""

    takes_text = False

    def __init__(self, text: str, needed: list[Dependency], message: str = "") -> None:
        from google.protobuf import descriptor_pool

        from .schemas.protobuf import descriptors

        files = descriptors(text, needed).file
        pool = descriptor_pool.DescriptorPool()
        for file in files:
            try:
                pool.Add(file)
            except TypeError as error:
                raise InvalidSchemaError(str(error)) from error
        self._file = pool.FindFileByName(files[-1].name)
        self._order = [one.name for one in files[-1].message_type]
        self._indexes = self._find(message)

    def _find(self, message: str) -> tuple[int, ...]:
        """The place of a message, by its full name or the last part of it."""
        places: dict[str, tuple[int, ...]] = dict(self._places())
        if not places:
            raise InvalidSchemaError("it has no message")
        if not message:
            return next(iter(places.values()))
        for name, place in places.items():
            if message in (name, name.rpartition(".")[2]):
                return place
        raise InvalidSchemaError(f"it has no message {message}; there are {', '.join(places)}")

    def _places(self) -> Any:
        def below(descriptor: Any, place: tuple[int, ...]) -> Any:
            yield descriptor.full_name, place
            for number, inner in enumerate(descriptor.nested_types):
                yield from below(inner, (*place, number))

        for number, name in enumerate(self._order):
            yield from below(self._file.message_types_by_name[name], (number,))

    def decode(self, data: bytes) -> Any:
        from google.protobuf import json_format
        from google.protobuf.message import DecodeError

        indexes, position = _read_indexes(data)
        message = self._message(indexes)
        try:
            message.ParseFromString(data[position:])
        except DecodeError as error:
            raise Undecodable(f"not a {message.DESCRIPTOR.full_name}: {error}") from error
        return json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )

    def message_of(self, data: bytes) -> str:
        return str(self._message(_read_indexes(data)[0]).DESCRIPTOR.full_name)

    def encode(self, value: Any, *, coerce: bool = False) -> bytes:  # noqa: ARG002 - its JSON takes texts for numbers
        from google.protobuf import json_format

        message = self._message(self._indexes)
        if not isinstance(value, dict):  # an empty list would pass for an empty message
            raise Unencodable(f"{_shown(value)} is not an object, as messages are")
        try:
            json_format.ParseDict(value, message)
        except (json_format.ParseError, AttributeError, TypeError, ValueError) as error:
            raise Unencodable(str(error)) from error
        return _write_indexes(self._indexes) + bytes(message.SerializeToString())

    def _message(self, indexes: tuple[int, ...]) -> Any:
        from google.protobuf import message_factory

        try:
            descriptor = self._file.message_types_by_name[self._order[indexes[0]]]
            for number in indexes[1:]:
                descriptor = descriptor.nested_types[number]
        except IndexError:
            raise Undecodable(f"the schema has no message at {list(indexes)}") from None
        return message_factory.GetMessageClass(descriptor)()


def _read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Which message, and where it begins; a single zero stands for the first."""
    count, position = _read_varint(data, 0)
    indexes = []
    for _ in range(min(count, len(data))):
        index, position = _read_varint(data, position)
        indexes.append(index)
    return tuple(indexes) or (0,), position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    bits = shift = 0
    while position < len(data) and shift < 64:
        byte = data[position]
        position += 1
        bits |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (bits >> 1) ^ -(bits & 1), position
    raise Undecodable("the message indexes behind the schema's id are cut short")


def _write_indexes(indexes: tuple[int, ...]) -> bytes:
    if indexes == (0,):
        return b"\0"
    out = bytearray()
    for number in (len(indexes), *indexes):
        bits = number << 1
        while bits > 127:
            out.append(bits & 127 | 128)
            bits >>= 7
        out.append(bits)
    return bytes(out)


_MOST_STEPS: Final = 2_000_000
_FAILED_TRY: Final = 50
"""Steps that a branch of a union counts for that does not fit: a value of Avro takes so many at most."""
_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_INTEGERS: Final = {"int": 1 << 31, "long": 1 << 63}
_WORDS: Final = {"true": True, "false": False}


class AvroCodec:
    """Values of Avro. Unions are written as they are in JSON, without the name of their branch, which may be given."""

    def __init__(self, text: str, needed: list[Dependency]) -> None:
        from fastavro import parse_schema
        from fastavro.schema import SchemaParseException

        self._named: dict[str, Any] = {}
        try:
            for one in needed:
                parse_schema(json.loads(one.text), named_schemas=self._named)
            self._schema = parse_schema(json.loads(text), named_schemas=self._named)
        except (SchemaParseException, ValueError, KeyError, TypeError) as error:
            raise InvalidSchemaError(f"{type(error).__name__}: {error}") from error

    @property
    def takes_text(self) -> bool:
        branches = self._schema if isinstance(self._schema, list) else [self._schema]
        return {_kind(branch) for branch in branches} - {"null"} == {"string"}

    def decode(self, data: bytes) -> Any:
        from io import BytesIO

        from fastavro import schemaless_reader

        stream = BytesIO(data)
        try:
            value = schemaless_reader(stream, self._schema, None)
        except (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, StopIteration) as error:
            raise Undecodable(f"not Avro of this schema: {str(error) or type(error).__name__}") from error
        if stream.tell() != len(data):
            raise Undecodable(f"{len(data) - stream.tell()} bytes follow the value")
        return _plain(value)

    def message_of(self, data: bytes) -> str:  # noqa: ARG002 - there is but one
        return ""

    def encode(self, value: Any, *, coerce: bool = False) -> bytes:
        from io import BytesIO

        from fastavro import schemaless_writer

        stream = BytesIO()
        try:
            found = _AvroValue(self._named, coerce).of(self._schema, value, "")
        except _TooManyTriesError:
            raise Unencodable("too many branches of unions would have to be tried; name them in the value") from None
        try:
            schemaless_writer(stream, self._schema, found)
        except (ValueError, TypeError, OverflowError, KeyError) as error:
            raise Unencodable(str(error)) from error
        return stream.getvalue()


def _plain(value: Any) -> Any:
    """What Avro's reader gives, as JSON has it; bytes as Avro's own JSON has them."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    return value


def _kind(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    kind = schema["type"] if isinstance(schema, dict) else schema
    return str(kind) if isinstance(kind, str) else _kind(kind)


class _TooManyTriesError(Exception):
    """Unions in unions: each branch is tried, and in each of them each branch again."""


class _AvroValue:
    """From values of JSON to what Avro's writer takes."""

    def __init__(self, named: Mapping[str, Any], coerce: bool) -> None:
        self._named = named
        self._coerce = coerce
        self._left = _MOST_STEPS

    def of(self, schema: Any, value: Any, path: str) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _TooManyTriesError
        if isinstance(schema, list):
            return self._union(schema, value, path)
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            schema = self._named[schema]
        kind = _kind(schema)
        make = getattr(self, f"_{kind}", None)
        return self._scalar(schema, kind, value, path) if make is None else make(schema, value, path)

    def _union(self, branches: list[Any], value: Any, path: str) -> Any:
        if isinstance(value, dict) and len(value) == 1:
            (name,) = value
            for branch in branches:
                if self._name(branch) == name:
                    return self._chosen(branch, self.of(branch, value[name], path))
        if "null" in branches and (value is None or (self._coerce and value == "")):
            return None
        reasons = []
        for branch in sorted(branches, key=lambda one: _kind(one) == "string") if self._coerce else branches:
            if branch == "null":
                continue
            try:
                return self._chosen(branch, self.of(branch, value, path))
            except Unencodable as error:
                self._left -= _FAILED_TRY
                reasons.append(str(error))
        raise Unencodable(reasons[0] if len(reasons) == 1 else f"{_at(path)}{_shown(value)} fits none of {branches}")

    def _name(self, branch: Any) -> str:
        return str(branch.get("name", _kind(branch))) if isinstance(branch, dict) else str(branch)

    def _chosen(self, branch: Any, value: Any) -> Any:
        """Records and primitive types are named to the writer, which else would guess."""
        resolved = self._named.get(branch, branch) if isinstance(branch, str) else branch
        if _kind(resolved) == "record":
            return (self._name(resolved), value)
        return (branch, value) if isinstance(branch, str) and branch in _PRIMITIVES else value

    def _record(self, schema: Any, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise Unencodable(f"{_at(path)}{_shown(value)} is not an object, as record {schema['name']} is")
        fields = {field["name"]: field for field in schema["fields"]}
        unknown = next((name for name in value if name not in fields), None)
        if unknown is not None:
            raise Unencodable(f"{_at(path)}record {schema['name']} has no field {unknown}")
        found = {}
        for name, field in fields.items():
            inner = f"{path}.{name}" if path else name
            if name in value:
                found[name] = self.of(field["type"], value[name], inner)
            elif "default" not in field:
                raise Unencodable(f"{_at(path)}field {name} of record {schema['name']} is missing")
            else:
                found[name] = self.of(field["type"], field["default"], inner)
        return found

    def _array(self, schema: Any, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise Unencodable(f"{_at(path)}{_shown(value)} is not an array")
        return [self.of(schema["items"], one, f"{path}[{number}]") for number, one in enumerate(value)]

    def _map(self, schema: Any, value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise Unencodable(f"{_at(path)}{_shown(value)} is not an object, as maps are")
        return {key: self.of(schema["values"], one, f"{path}.{key}") for key, one in value.items()}

    def _enum(self, schema: Any, value: Any, path: str) -> Any:
        if value not in schema["symbols"]:
            raise Unencodable(f"{_at(path)}{_shown(value)} is none of {', '.join(schema['symbols'])}")
        return value

    def _scalar(self, schema: Any, kind: str, value: Any, path: str) -> Any:
        logical = schema.get("logicalType", "") if isinstance(schema, dict) else ""
        try:
            found = _logical(logical, value)
            if found is None:
                found = _primitive(kind, value, self._coerce)
        except (ValueError, ArithmeticError):
            found = None
        if found is None and not (kind == "null" and value is None):
            raise Unencodable(f"{_at(path)}{_shown(value)} is not {logical or kind}")
        return found


def _logical(logical: str, value: Any) -> Any:
    """Values of Avro's logical types, from the texts that stand for them; None for all others."""
    if not isinstance(value, str) or not logical:
        return Decimal(str(value)) if logical == "decimal" and isinstance(value, int | float) else None
    if logical == "decimal":
        return Decimal(value)
    if logical.startswith("local-timestamp"):
        return datetime.fromisoformat(value).replace(tzinfo=None)
    if logical.startswith("timestamp"):
        return _aware(datetime.fromisoformat(value))
    if logical == "date":
        return date.fromisoformat(value)
    return time.fromisoformat(value) if logical.startswith("time-") else None


def _aware(moment: datetime) -> datetime:
    from datetime import UTC

    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _primitive(kind: str, value: Any, coerce: bool) -> Any:
    """The value, if it is one of the kind; else None."""
    if kind == "string":
        return value if isinstance(value, str) else None
    if kind in ("bytes", "fixed"):
        return value.encode("latin-1") if isinstance(value, str) else None
    if coerce and isinstance(value, str):
        value = _WORDS.get(value) if kind == "boolean" else json.loads(value)
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return float(value) if kind in ("float", "double") and value in ("NaN", "Infinity", "-Infinity") else None
    if kind in _INTEGERS:
        limit = _INTEGERS[kind]
        return int(value) if value == int(value) and -limit <= value < limit else None
    return float(value) if kind in ("float", "double") else None


def _at(path: str) -> str:
    return f"{path}: " if path else ""


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def schema_type_of(path: str, text: str) -> str:
    """The type of a schema in a file, by its name, and else by what is in it."""
    if path.endswith(".avsc"):
        return "AVRO"
    if path.endswith(".proto"):
        return "PROTOBUF"
    try:
        found = json.loads(text)
    except ValueError:
        return "PROTOBUF"
    is_json_schema = isinstance(found, dict) and ("$schema" in found or "properties" in found or "$ref" in found)
    return "JSON" if is_json_schema or isinstance(found, bool) else "AVRO"
