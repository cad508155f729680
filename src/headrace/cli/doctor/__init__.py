"""`headrace doctor`."""

from .command import register

__all__ = ["register"]
