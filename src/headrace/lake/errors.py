"""What can go wrong with tables, in words for people."""

from importlib import import_module
from types import ModuleType

from headrace.client.errors import ClientError


class LakeError(ClientError):
    """A table cannot be read or written as it was asked for."""


class CommitConflict(LakeError):
    """Somebody else has committed to the table meanwhile."""


class OffsetsMissing(LakeError):
    """Offsets that are neither in the table nor in the topic any more."""


def needed(module: str, what: str) -> ModuleType:
    """A module of the extra `lake`; LakeError says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise LakeError(f"{what} needs the package '{package}': pip install \"headrace[lake]\"") from error
