"""An event loop whose time passes at once, whenever there is nothing to do but wait."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Skipping(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("everyone waits, and nothing is left to happen")
            self.now += timeout
        return ready


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of the work, in a loop that starts at time 0."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(work)
