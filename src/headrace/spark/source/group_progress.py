"""A query's progress as a consumer group's offsets, so that its lag shows like any consumer's.

Spark's own `commit` comes only with the next micro-batch, so never for the last one of a query that waits. But Spark
asks for the latest offsets after each micro-batch, with a start that is the end of the one just finished: that is what
is committed. It is for people to look at; the checkpoint decides where a query goes on, and a commit that fails never
fails the query.
"""

import time
from collections.abc import Callable
from typing import Final

from headrace.client.errors import ClientError

from .data_loss import LOG
from .offsets import Offsets

_PAUSE_SECONDS: Final = 30.0


class GroupProgress:
    """Commits what a query has finished to a group."""

    def __init__(
        self,
        group: str,
        commit: Callable[[str, Offsets], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._commit = commit
        self._clock = clock
        self._done: Offsets | None = None
        self._not_before = -float("inf")

    def finished(self, offsets: Offsets) -> None:
        """All before `offsets` is finished; after a failure, a while passes before the next try."""
        if offsets == self._done or not offsets or self._clock() < self._not_before:
            return
        try:
            self._commit(self._group, offsets)
            self._done = dict(offsets)
        except ClientError as error:
            LOG.warning("offsets of group %s could not be committed, its lag is behind: %s", self._group, error)
            self._not_before = self._clock() + _PAUSE_SECONDS
