"""The schema registry of a command: named by an option, a profile or the environment, or found beside the brokers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.client.errors import ClientError
from headrace.client.properties import REGISTRY_URL
from headrace.net.address import parse_bootstrap

from .client_options import resolve_target
from .console import Failure, bad_input, note

if TYPE_CHECKING:
    from headrace.client.registry import RegisteredSchema, SchemaRegistry
    from headrace.registry.serde import DecodedValue, Serde

RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL",
        help="The schema registry; else that of the profile, HEADRACE_REGISTRY, or a gateway at port 8080 of a broker.",
    ),
]
NONE: Final = "none"
_SECONDS: Final = 2.5
_PROBE_SECONDS: Final = 0.5
_GATEWAY_PORT: Final = 8080
_MOST_PROBED: Final = 3
_LACKING: Final = (
    "no schema registry is known: name it with --registry URL, HEADRACE_REGISTRY or `headrace profile set NAME "
    "registry=URL`; no gateway answers at port 8080 of the brokers"
)


def find_registry(
    url: str | None, bootstrap: str, properties: list[str] | None, cluster_id: Callable[[], str] | None = None
) -> "SchemaRegistry | None":
    """The registry that was named, or that of a gateway beside the brokers; None where there is neither.

    With `cluster_id`, a gateway that was found counts only if it belongs to that cluster.
    """
    from headrace.client.registry import SchemaRegistry
    from headrace.client.registry_options import BadRegistryOption, registry_settings

    given = find_registry_options(url, bootstrap, properties, cluster_id)
    try:
        settings = registry_settings(given)
    except BadRegistryOption as error:
        raise bad_input(str(error)) from error
    return None if settings is None else SchemaRegistry(replace(settings, seconds=_SECONDS))


def find_registry_options(
    url: str | None, bootstrap: str, properties: list[str] | None, cluster_id: Callable[[], str] | None = None
) -> dict[str, str]:
    """The same by the options of clients, such as `schema.registry.url`; empty where there is no registry."""
    if url == NONE:
        return {}
    from headrace.client.registry import RegistrySettings, SchemaRegistry

    target = resolve_target(bootstrap, properties)
    given = {**target.registry, **({REGISTRY_URL: url} if url else {})}
    if REGISTRY_URL in given:
        return given
    for host in list(dict.fromkeys(address.host for address in parse_bootstrap(target.bootstrap)))[:_MOST_PROBED]:
        shown = f"[{host}]" if ":" in host else host
        gateway_url = f"http://{shown}:{_GATEWAY_PORT}"
        try:
            found = SchemaRegistry(RegistrySettings(urls=(gateway_url,), seconds=_PROBE_SECONDS)).cluster_id()
        except ClientError:
            continue
        if found is not None and (cluster_id is None or found == cluster_id()):
            return {REGISTRY_URL: gateway_url}
    return {}


def require_registry(url: str | None, bootstrap: str, properties: list[str] | None) -> "SchemaRegistry":
    """The registry, for commands that cannot do without."""
    found = find_registry(url, bootstrap, properties)
    if found is None:
        raise Failure(_LACKING)
    return found


class RegistryDecoder:
    """Decodes what has the id of a schema before it. Looks for the registry when that is first met."""

    def __init__(self, find: "Callable[[], SchemaRegistry | None]", is_named: bool) -> None:
        self._find = find
        self._is_named = is_named
        self._serde: Serde | None = None
        self._has_looked = False
        self._warned: set[int] = set()

    def __call__(self, data: bytes | None) -> "DecodedValue | None":
        if not data or data[0]:
            return None
        from headrace.registry.serde import Undecodable, framed_id

        schema_id = framed_id(data)
        if schema_id is None:
            return None
        if not self._has_looked:
            self._look(schema_id)
        if self._serde is None:
            return None
        try:
            decoded = self._serde.decode(data)
        except Undecodable as error:
            self._warn(schema_id, f"a value of schema {schema_id} cannot be decoded: {error}")
            return None
        except ClientError as error:
            if self._is_named:
                raise
            self._warn(schema_id, error.message)
            return None
        if decoded is None and self._is_named:
            self._warn(schema_id, f"the registry has no schema {schema_id}, which stands before a value")
        return decoded

    def _look(self, schema_id: int) -> None:
        from headrace.registry.serde import Serde

        self._has_looked = True
        registry = self._find()
        if registry is not None:
            self._serde = Serde(registry)
        elif not self._is_named and schema_id < _PLAUSIBLE:
            note(
                f"headrace: values seem to be written with schemas of a registry (id {schema_id}); "
                "name it with --registry URL to see them, or --registry none"
            )

    def _warn(self, schema_id: int, message: str) -> None:
        if schema_id not in self._warned:
            self._warned.add(schema_id)
            note(f"headrace: {message}")


_PLAUSIBLE: Final = 1_000_000
"""Ids below are worth a word; larger ones are rather four bytes of something else."""


class Encoder:
    """Encodes texts, or rows of CSV, with one schema."""

    def __init__(self, serde: "Serde", schema: "RegisteredSchema", message: str) -> None:
        codec = serde.codec(schema, message)
        self._takes_text = codec.takes_text
        self._encode = serde.encoder(schema, message)
        self.schema = schema

    def __call__(self, value: bytes | dict[str, str]) -> bytes:
        """ValueError says why it cannot be."""
        if isinstance(value, dict):
            return self._encode(value, coerce=True)
        return self._encode(self._parsed(value))

    def of_json(self, value: Any) -> bytes:
        """The same for what JSON has."""
        return self._encode(value)

    def _parsed(self, data: bytes) -> Any:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ValueError("it is not text, which would be JSON") from None
        if self._takes_text and not text.startswith(('"', "{")) and text != "null":
            return text
        try:
            return json.loads(text)
        except ValueError as error:
            if self._takes_text:
                return text
            raise ValueError(f"it is not JSON: {error}") from None


class EncoderById:
    """Encodes values of JSON with the schemas they name. Looks for the registry when the first one does."""

    def __init__(self, find: "Callable[[], SchemaRegistry]") -> None:
        self._find = find
        self._registry: SchemaRegistry | None = None
        self._encoders: dict[tuple[int, str], Encoder] = {}

    def __call__(self, value: Any, schema_id: int, message: str, option: str) -> bytes:
        """ValueError says why it cannot be; `option` is what names the schema."""
        decoded = self._encoders.get((schema_id, message))
        if decoded is None:
            if self._registry is None:
                self._registry = self._find()
            which = f"id:{schema_id}{f'#{message}' if message else ''}"
            decoded = self._encoders[schema_id, message] = encoder(self._registry, which, "", option)
        return decoded.of_json(value)


def encoder(registry: "SchemaRegistry", which: str, subject: str, option: str) -> Encoder:
    """The encoder for `latest`, `id:7`, `SUBJECT`, `SUBJECT:VERSION` or `@FILE`, each with `#MESSAGE` for Protobuf."""
    from headrace.client.registry import NotRegistered, RegisteredSchema
    from headrace.registry.serde import Serde, Undecodable, schema_type_of

    named, _, message = which.partition("#")
    try:
        if named.startswith("@"):
            text = read_schema(Path(named[1:]))
            given = RegisteredSchema(text=text, type=schema_type_of(named, text))
            schema = replace(given, id=registry.register(subject, given), subject=subject)
        elif named.startswith("id:"):
            schema = _by_id(registry, named[3:], option)
        else:
            schema = _by_version(registry, named, subject, option)
        return Encoder(Serde(registry), schema, message)
    except NotRegistered as error:
        raise Failure(f"{option} {which}: {error.message}; `headrace schema list` shows what there is") from error
    except Undecodable as error:
        raise Failure(f"{option} {which}: {error}") from error


def _by_id(registry: "SchemaRegistry", text: str, option: str) -> "RegisteredSchema":
    found = registry.schema(int(text)) if text.isdecimal() else None
    if found is None:
        raise bad_input(f"{option} id:{text}: the registry has no such schema")
    return found


def _by_version(registry: "SchemaRegistry", named: str, subject: str, option: str) -> "RegisteredSchema":
    name, _, version = named.rpartition(":")
    if not (name and version.isdecimal()):
        name, version = named, ""
    if not name:
        raise bad_input(f"{option}: write latest, SUBJECT, SUBJECT:VERSION, id:ID or @FILE")
    return registry.version(subject if name == "latest" else name, int(version) if version else "latest")


def read_schema(path: Path) -> str:
    """The text of a schema; `-` is standard input."""
    import sys

    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text("utf-8")
    except OSError as error:
        raise bad_input(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise bad_input(f"{path} is not text: {error}") from error
