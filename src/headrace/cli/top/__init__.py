"""`headrace top`: a cluster live in a terminal. `tables` has what is shown, `app` the screen, `command` the options."""

from .command import register

__all__ = ["register"]
