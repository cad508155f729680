"""Who may do what with which subject: asked of whoever knows the callers."""

import re
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final, Protocol

from headrace.web.messages import Request

from .. import errors


class Action(Enum):
    """What is done with a subject, in Confluent's words."""

    READ = "Read"
    WRITE = "Write"
    DELETE = "Delete"
    CONFIGURE = "Configure"


class Rights(Protocol):
    """What callers may do."""

    async def admit(self, request: Request) -> None:
        """Raises the problem that refuses a request, whatever it asks for."""

    async def may(self, request: Request, action: Action, subject: str) -> bool:
        """Whether the caller may do something with a subject; with nothing, or a context, for all that is in it."""

    async def readable(self, request: Request, subjects: Collection[str]) -> Collection[str]:
        """Those of some subjects that the caller may read."""


async def require(rights: Rights | None, request: Request, action: Action, subjects: Iterable[str]) -> None:
    """RegistryError 403 unless the caller may do something with each subject."""
    if rights is not None:
        for subject in subjects:
            if not await rights.may(request, action, subject):
                raise errors.denied(action.value, subject)


_SUBJECT: Final = re.compile(r"/(subjects|config|mode|compatibility/subjects)/\{subject\}(/versions)?")


def action_of(method: str, path: str) -> Action | None:
    """What an operation does with the subject, or all subjects, that its path names; None where it names none."""
    if path in ("/config", "/mode"):
        return None if method == "GET" else Action.CONFIGURE
    found = _SUBJECT.match(path)
    if found is None:
        return Action.CONFIGURE if (method, path[:13]) == ("DELETE", "/associations") else None
    if method == "GET" or found[1] == "compatibility/subjects" or (method, found[0]) == ("POST", "/subjects/{subject}"):
        return Action.READ
    if found[1] != "subjects":
        return Action.CONFIGURE
    return Action.DELETE if method == "DELETE" else Action.WRITE
