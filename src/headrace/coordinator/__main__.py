"""Prints docs/states.md: the state machines of groups, drawn from their tables."""

import sys

from .classic.states import TRANSITIONS, State

_HEAD = """# States

Drawn by `make docs` from the tables in the code.

## A group of the classic protocol

`coordinator/classic/states.py`. Every state can be deleted; `Dead` is forgotten at once.

```mermaid
stateDiagram-v2
    [*] --> Empty
"""


def render() -> str:
    """The page."""
    lines = [
        f"    {before.value} --> {after.value}: {event.value}"
        for (before, event), after in TRANSITIONS.items()
        if after is not State.DEAD
    ]
    return _HEAD + "\n".join(lines) + "\n```\n"


if __name__ == "__main__":
    sys.stdout.write(render())
