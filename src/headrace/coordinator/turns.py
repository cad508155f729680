"""Requests that name many groups, served some at a time, so that heartbeats of others are not late meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

_PER_TURN: Final = 64
"""Groups of one request looked at before others get a turn: about 3 ms."""


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items, with turns for others in between."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _PER_TURN == 0:
            await asyncio.sleep(0)
