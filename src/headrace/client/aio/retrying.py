"""Retries: retriable errors are retried until the patience ends, all others are raised at once."""

import asyncio
from collections.abc import Awaitable, Callable
from math import ceil
from random import random
from typing import Final, TypeVar

from headrace.protocol.errors import CodedError, ErrorCode

from ..core.codes import is_retriable
from ..core.errors import ConnectionLost

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5


class NotRetriable(CodedError):
    """An error that stays, whatever its code says of others of its kind: a topic that does not exist, say."""


class Throttled(NotRetriable):
    """A broker has told this client to wait because of its quota, longer than anybody wants to wait here."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            ErrorCode.throttling_quota_exceeded, f"the quota is used up; try again in {ceil(seconds)} seconds"
        )


class Unavailable(Exception):
    """What was asked could not be done in time. A write may have been carried out (`is_uncertain`) or not."""

    def __init__(self, reason: str, *, is_uncertain: bool = False) -> None:
        super().__init__(reason)
        self.is_uncertain = is_uncertain


class Pauses:
    """Exponential backoff with jitter, until a deadline of the loop's clock."""

    def __init__(self, patience: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + patience
        self._pause = _FIRST_PAUSE

    async def after(self, reason: Exception, *, is_uncertain: bool = False) -> None:
        """Wait before the next try; `Unavailable` when there is no time for one."""
        pause = self._pause * (0.5 + random())
        if self._loop.time() + pause > self._deadline:
            raise Unavailable(str(reason), is_uncertain=is_uncertain) from reason
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        await asyncio.sleep(pause)


def passes(error: CodedError) -> bool:
    """Whether the same request may be answered otherwise a moment later."""
    return is_retriable(error.code) and not isinstance(error, NotRetriable)


async def retried(attempt: Callable[[], Awaitable[T]], patience: float, forget: Callable[[], None]) -> T:
    """The result of the first attempt that neither loses its connection nor meets what passes by itself.

    `forget` drops what was believed about the cluster before the next attempt.
    """
    pauses = Pauses(patience)
    while True:
        try:
            return await attempt()
        except ConnectionLost as error:
            reason: Exception = error
        except CodedError as error:
            if not passes(error):
                raise
            reason = error
        forget()
        await pauses.after(reason)
