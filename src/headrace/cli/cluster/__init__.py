"""`headrace cluster`."""

from .commands import app

__all__ = ["app"]
