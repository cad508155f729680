"""Importing the server without what its dependencies load on the side.

kio imports hypothesis and structlog imports rich wherever these are installed, for uses that a server does not have.
Together that was about half of the processor time of a broker's start, and about 10 MB.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_UNUSED: Final = ("hypothesis", "rich")


@contextmanager
def lean_imports(*unused: str) -> Iterator[None]:
    """Within the block, unused packages (by default, all) look as if not installed; those loaded already stay."""
    hidden = [name for name in unused or _UNUSED if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
