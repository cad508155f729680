"""Long requests, served a slice at a time, so that the heartbeats of others are not late meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import islice
from typing import Final, TypeVar

T = TypeVar("T")
Result = TypeVar("Result")

_PER_SLICE: Final = 16
"""Items before the event loop runs other work: less than a millisecond."""
_LONGEST_SECONDS: Final = 0.001
"""A slice also ends after this time."""
_CONCURRENT: Final = 256


async def paced(items: Iterable[T], per_slice: int = _PER_SLICE) -> AsyncIterator[T]:
    """The items; after each slice of them the event loop runs other work."""
    clock = asyncio.get_running_loop().time
    began = clock()
    for number, item in enumerate(items, 1):
        yield item
        if number % per_slice == 0 or clock() - began > _LONGEST_SECONDS:
            await asyncio.sleep(0)
            began = clock()


async def gather_limited(do: Callable[[T], Awaitable[Result]], items: Iterable[T]) -> list[Result]:
    """What `do` gives for each of the items, run concurrently some at a time: enough for what is written together."""
    left, results = iter(items), []
    while some := list(islice(left, _CONCURRENT)):
        results += await asyncio.gather(*map(do, some))
    return results
