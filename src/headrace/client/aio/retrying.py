"""Trying again: what passes by itself is tried until the patience ends, all else is told at once."""

import asyncio
from collections.abc import Awaitable, Callable
from random import random
from typing import Final, TypeVar

from headrace.client.core.errors import ConnectionLost
from headrace.protocol.errors import CodedError, ErrorCode

T = TypeVar("T")

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5

MOVED: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.replica_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unknown_topic_id,
        ErrorCode.kafka_storage_error,
    }
)
"""The partition is led by another, or by nobody for now."""
COORDINATION: Final = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)
PASSING: Final = (
    MOVED
    | COORDINATION
    | {
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.not_controller,
        ErrorCode.offset_not_available,
        ErrorCode.corrupt_message,
        ErrorCode.concurrent_transactions,
    }
)


class Unavailable(Exception):
    """What was asked could not be done in time. A write may have been carried out (`is_uncertain`) or not."""

    def __init__(self, reason: str, *, is_uncertain: bool = False) -> None:
        super().__init__(reason)
        self.is_uncertain = is_uncertain


class Pauses:
    """Growing pauses with some chance in them, until a deadline of the loop's clock."""

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
            if error.code not in PASSING:
                raise
            reason = error
        forget()
        await pauses.after(reason)
