"""A clock that stands still until told otherwise."""


class SimulatedClock:
    """Time that a test owns."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        self._now_ms += milliseconds
        self._elapsed_ms += milliseconds

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward or back, as an operator does; no time passes."""
        self._now_ms += milliseconds
