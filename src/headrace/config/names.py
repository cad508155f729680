"""What users wrote, in messages to them: never longer than a message may be, and never more than one line."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_LONGEST: Final = 100


def shown(text: str) -> str:
    """A name or a value as it stands in a message."""
    cut = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return cut if cut.isprintable() else repr(cut)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint to end an error message with: the known name that `name` most likely stands for, if there is one."""
    matches = get_close_matches(name, list(known), n=1, cutoff=0.6) if len(name) <= _LONGEST else []
    return f"; did you mean {matches[0]}?" if matches else ""
