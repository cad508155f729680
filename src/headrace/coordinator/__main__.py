"""Prints docs/states.md: the state machines of groups and transactions, drawn from their tables."""

import sys
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from .groups.classic import states as classic
from .transactions import states as transactions

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)

_HEAD = """# States

Drawn by `make docs` from the tables in the code.
"""

_CLASSIC = """
## A group of the classic protocol

`coordinator/groups/classic/states.py`. Every state can be deleted; `Dead` is forgotten at once.
"""

_TRANSACTIONS = """
## A transactional id

`coordinator/transactions/states.py`. From a prepared state on the outcome is certain, and only markers are written.
`PrepareEpochFence` is passed through within one decision. An id at rest that nobody uses becomes `Dead`: forgotten.
"""


def render() -> str:
    """The page."""
    return "".join(
        (
            _HEAD,
            _CLASSIC,
            _diagram(classic.TRANSITIONS, but=classic.ClassicState.DEAD),
            _TRANSACTIONS,
            _diagram(transactions.TRANSITIONS, but=transactions.TransactionState.DEAD),
        )
    )


def _diagram(table: Mapping[tuple[S, E], S], *, but: S) -> str:
    lines = [
        f"    {before.value} --> {after.value}: {event.value}"
        for (before, event), after in table.items()
        if after is not but
    ]
    return "\n".join(("", "```mermaid", "stateDiagram-v2", "    [*] --> Empty", *lines, "```", ""))


if __name__ == "__main__":
    sys.stdout.write(render())
