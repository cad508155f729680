"""`headrace node`: the brokers of one machine."""

from .command import register

__all__ = ["register"]
