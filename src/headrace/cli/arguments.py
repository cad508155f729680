"""Passwords on a command line, taken out of what `ps` shows."""

import ctypes
import sys
from collections.abc import Sequence
from typing import Final

from headrace.client.properties import is_secret

_STAT: Final = "/proc/self/stat"
_ARG_START, _ARG_END = 48, 49
"""Which fields of the file hold where the arguments are in memory, counted from 1."""


def hide_secrets(arguments: Sequence[str] | None = None) -> None:
    """Overwrite the values of passwords given with -X; nothing happens where the system has no such file."""
    arguments = sys.argv if arguments is None else arguments
    secrets = [value for each in arguments if (value := _secret(each))]
    if not secrets:
        return
    try:
        with open(_STAT) as file:
            fields = file.read().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START - 3]), int(fields[_ARG_END - 3])
        shown = ctypes.string_at(start, end - start)
        for secret in secrets:
            shown = shown.replace(b"=" + secret, b"=" + b"*" * len(secret))
        ctypes.memmove(start, shown, len(shown))
    except (OSError, ValueError, IndexError):
        return


def _secret(argument: str) -> bytes:
    name, _, value = argument.removeprefix("--property=").removeprefix("-X").partition("=")
    return value.encode(errors="surrogateescape") if is_secret(name) else b""
