"""`headrace group`."""

from .commands import app

__all__ = ["app"]
