"""For tests, here and in the projects of our users: an in-process broker and gateway, simulated clock and disk."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .broker import Broker
    from .gateway import Gateway

__all__ = ["Broker", "Gateway"]


def __getattr__(name: str) -> Any:  # imported late: pytest loads this package in every run
    if name == "Broker":
        from .broker import Broker

        return Broker
    if name == "Gateway":
        from .gateway import Gateway

        return Gateway
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
