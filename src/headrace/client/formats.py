"""What values are in a program, and what they are in a topic.

A format is named by the type of its values: `bytes`, `str`, or what JSON becomes (a dataclass, a `msgspec.Struct`, a
model of pydantic, `dict`, `list[int]`, `Any`, ...). Those that have a schema in a registry are in
`headrace.registry.formats`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from .errors import Undecodable, Unencodable

V = TypeVar("V")


class Format(ABC, Generic[V]):
    """Turns values into bytes and back. Errors are `Unencodable` and `Undecodable`."""

    @abstractmethod
    def encode(self, value: V, topic: str) -> bytes:
        """The bytes of a value that goes to a topic."""

    @abstractmethod
    def decode(self, data: bytes, topic: str) -> V:
        """The value that these bytes of a topic are."""

    def is_ready(self, data: bytes) -> bool:  # noqa: ARG002 - most need nothing but the bytes
        """Whether `decode` need not wait for anything, such as a registry that has their schema."""
        return True


class Raw(Format[bytes]):
    """Bytes as they are."""

    def encode(self, value: bytes, topic: str) -> bytes:  # noqa: ARG002 - the same for every topic
        if not isinstance(value, bytes | bytearray | memoryview):
            raise Unencodable(f"{type(value).__name__} is not bytes")
        return bytes(value)

    def decode(self, data: bytes, topic: str) -> bytes:  # noqa: ARG002
        return data


class Text(Format[str]):
    """Text in UTF-8."""

    def encode(self, value: str, topic: str) -> bytes:  # noqa: ARG002
        if not isinstance(value, str):
            raise Unencodable(f"{type(value).__name__} is not str")
        return _encode_text(value)

    def decode(self, data: bytes, topic: str) -> str:  # noqa: ARG002
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise Undecodable(f"the value is not text in UTF-8: {error}") from error


class Json(Format[V]):
    """JSON that is held to a type; models of pydantic may be that type, or be anywhere in it."""

    def __init__(self, kind: type[V]) -> None:
        self.kind = kind
        self._decode: Callable[[bytes], V] = _decoder(kind)

    def encode(self, value: V, topic: str) -> bytes:  # noqa: ARG002
        return _encode_json(value)

    def decode(self, data: bytes, topic: str) -> V:  # noqa: ARG002
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise Undecodable(f"the value is not {_name(self.kind)} in JSON: {error}") from error


class Plain(Format[Any]):
    """What a producer does without a format: bytes as they are, text in UTF-8, all else as JSON; read as bytes."""

    def encode(self, value: Any, topic: str) -> bytes:  # noqa: ARG002
        if isinstance(value, bytes):
            return value
        return _encode_text(value) if isinstance(value, str) else _encode_json(value)

    def decode(self, data: bytes, topic: str) -> Any:  # noqa: ARG002
        return data


def format_of(kind: "type[V] | Format[V]") -> Format[V]:
    """The format that a type stands for; a format is its own."""
    if isinstance(kind, Format):
        return kind
    if kind is bytes:
        return Raw()  # type: ignore[return-value]
    if kind is str:
        return Text()  # type: ignore[return-value]
    return Json(kind)


def _encode_text(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise Unencodable(f"the text cannot be written in UTF-8: {error}") from error


def _encode_json(value: Any) -> bytes:
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unencodable(f"{type(value).__name__} cannot be written as JSON: {error}") from error


def _decoder(kind: Any) -> Callable[[bytes], Any]:
    if hasattr(kind, "model_validate_json"):
        return kind.model_validate_json  # type: ignore[no-any-return]
    try:
        return msgspec.json.Decoder(kind, dec_hook=from_builtins).decode
    except TypeError as error:
        raise TypeError(f"{_name(kind)} is no type that JSON can be held to: {error}") from error


def to_builtins(value: Any) -> Any:
    """Models of pydantic, which msgspec does not know, as what JSON has."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not known to msgspec or pydantic")


def from_builtins(kind: Any, value: Any) -> Any:
    """The way back."""
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise TypeError(f"{_name(kind)} is not known to msgspec or pydantic")


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=to_builtins)
