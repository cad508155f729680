"""What the three types have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A schema that another refers to by name. Sequences of them hold what is referred to before what refers."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A schema that was understood. `text` is how it is shown; equal `identity` means the same schema."""

    type: str
    text: str
    identity: str
    model: Any


class SchemaType(Protocol):
    """One kind of schema. Texts that are not one raise InvalidSchemaError."""

    name: str

    def parse(self, text: str, dependencies: Sequence[Dependency], *, new: bool) -> Parsed:
        """The schema in a text. A new one is held to rules that older ones may have escaped."""

    def normalize(self, parsed: Parsed) -> str:
        """The one text for all schemas that mean the same."""

    def show(self, parsed: Parsed, form: str) -> str:
        """The text in a form the caller asks for by name; as it is where the type has no such form."""

    def meaning(self, parsed: Parsed) -> str:
        """The same for schemas that say the same, also where keys stand in another order or references are written
        out."""

    def fields(self, parsed: Parsed) -> Sequence[str]:
        """Names of the fields at the top."""

    def unreadable(self, *, reader: Parsed, writer: Parsed, wording: "Wording", lenient: bool = False) -> list[str]:
        """Why a reader with one schema cannot read what was written with the other; empty if it can. Where it is
        lenient, a JSON Schema may take what an open one left to anybody."""


Wording = Callable[[str], str]
"""Puts 'new' and 'old' for 'reader' and 'writer' into a sentence, whichever way round the question was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One change between two schemas, and where it is."""

    kind: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind} {self.path}"


def sentence(difference: Difference) -> str:
    """A difference in words, with places for 'new' and 'old'."""
    words = difference.kind.lower().replace("_", " ")
    return f"{words} at path '{difference.path}' in the %new schema, compared with the %old schema"
