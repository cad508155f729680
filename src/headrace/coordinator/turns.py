"""Requests that name many things, served some at a time, so that heartbeats of others are not late meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")
Result = TypeVar("Result")

_PER_TURN: Final = 64
"""What is looked at before others get a turn: about 3 ms."""
_LONGEST_SECONDS: Final = 0.005
"""Also before, where that takes longer."""
_SIDE_BY_SIDE: Final = 256


async def in_turns(items: Iterable[T], per_turn: int = _PER_TURN) -> AsyncIterator[T]:
    """The items, with turns for others in between."""
    clock = asyncio.get_running_loop().time
    began = clock()
    for number, item in enumerate(items, 1):
        yield item
        if number % per_turn == 0 or clock() - began > _LONGEST_SECONDS:
            await asyncio.sleep(0)
            began = clock()


async def side_by_side(do: Callable[[T], Awaitable[Result]], items: Iterable[T]) -> list[Result]:
    """What `do` gives for each of the items, some of them at the same time: enough for what is written together."""
    left, results = iter(items), []
    while some := list(islice(left, _SIDE_BY_SIDE)):
        results += await asyncio.gather(*map(do, some))
    return results
