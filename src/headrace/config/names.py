"""Names that are nearly right."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint to end an error message with: the known name that `name` most likely stands for, if there is one."""
    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else ""
