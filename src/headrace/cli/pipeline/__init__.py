"""`headrace pipeline`."""

from .commands import app

__all__ = ["app"]
