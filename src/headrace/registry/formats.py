"""Formats of values whose schema is in a registry, for producers and consumers: Avro, JSON Schema and Protobuf.

consumer = Consumer("orders", group="billing", value=Avro(Order, registry="http://127.0.0.1:8080"))

Bytes are framed as Confluent's serializers frame them, under the subject `<topic>-value`. The registry is asked
once for each schema.
"""

from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from headrace.client.errors import Undecodable, Unencodable
from headrace.client.formats import Format, from_builtins, to_builtins
from headrace.client.registry import RegisteredSchema, RegistrySettings, SchemaRegistry, registry_urls

from . import serde

V = TypeVar("V")


class _SchemaFormat(Format[V], Generic[V]):
    """Values of `kind` under a schema: `schema`, which is registered, or the latest that the subject has.

    `registry` is one or more URLs with commas between, or settings. Of a Protobuf schema's messages the first is
    written unless `message` names one.
    """

    schema_type: ClassVar[str]

    def __init__(
        self,
        kind: type[V],
        registry: str | RegistrySettings,
        schema: str | None = None,
        *,
        subject: str | None = None,
        message: str = "",
    ) -> None:
        settings = RegistrySettings(urls=tuple(registry_urls(registry))) if isinstance(registry, str) else registry
        self._registry = SchemaRegistry(settings)
        self._serde = serde.Serde(self._registry)
        self._kind = kind
        self._schema = schema
        self._subject = subject
        self._message = message
        self._encoders: dict[str, Any] = {}

    def encode(self, value: V, topic: str) -> bytes:
        encoder = self._encoders.get(topic)
        try:
            if encoder is None:
                schema = self._schema_of(self._subject or f"{topic}-value")
                encoder = self._encoders[topic] = self._serde.encoder(schema, self._message)
            data: bytes = encoder(msgspec.to_builtins(value, enc_hook=to_builtins))
        except (serde.Unencodable, serde.Undecodable, TypeError, ValueError) as error:
            raise Unencodable(f"{type(value).__name__} does not fit the schema of '{topic}': {error}") from error
        return data

    def _schema_of(self, subject: str) -> RegisteredSchema:
        if self._schema is None:
            return self._registry.version(subject)
        schema = RegisteredSchema(text=self._schema, type=self.schema_type, subject=subject)
        return replace(schema, id=self._registry.register(subject, schema))

    def is_ready(self, data: bytes) -> bool:
        return self._serde.knows(data)

    def decode(self, data: bytes, topic: str) -> V:  # noqa: ARG002 - the schema's id stands in the bytes
        try:
            found = self._serde.decode(data)
            if found is None:
                raise Undecodable("no id of a schema that the registry has stands before the value")
            return msgspec.convert(found.value, self._kind, strict=False, dec_hook=from_builtins)
        except (serde.Undecodable, ValueError, TypeError) as error:
            raise Undecodable(f"the value does not fit its schema or {self._kind}: {error}") from error


class Avro(_SchemaFormat[V]):
    """Values written in Avro."""

    schema_type = "AVRO"


class JsonSchema(_SchemaFormat[V]):
    """Values written as JSON, and held to a JSON Schema."""

    schema_type = "JSON"


class Protobuf(_SchemaFormat[V]):
    """Values written in Protobuf, in programs what Protobuf's own JSON mapping makes of them."""

    schema_type = "PROTOBUF"
