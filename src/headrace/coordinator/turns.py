"""Requests that name many things, served some at a time, so that heartbeats of others are not late meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

_PER_TURN: Final = 64
"""What is looked at before others get a turn: about 3 ms."""
_LONGEST_SECONDS: Final = 0.005
"""Also before, where that takes longer."""


async def in_turns(items: Iterable[T], per_turn: int = _PER_TURN) -> AsyncIterator[T]:
    """The items, with turns for others in between."""
    clock = asyncio.get_running_loop().time
    began = clock()
    for number, item in enumerate(items, 1):
        yield item
        if number % per_turn == 0 or clock() - began > _LONGEST_SECONDS:
            await asyncio.sleep(0)
            began = clock()
