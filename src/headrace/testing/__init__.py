"""For tests, here and in the projects of our users: an in-process broker, simulated clock and disk."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> Any:
    if name == "Broker":  # imported late: pytest loads this package in every run
        from .broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
