"""`headrace cluster`."""

from . import metadata
from .commands import app

__all__ = ["app"]

metadata.register(app)
