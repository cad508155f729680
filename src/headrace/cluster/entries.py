"""What the cluster keeps for its security, besides settings: named sets of texts, the same on all brokers.

    kind    name                       values
    user    a user                     SCRAM mechanism -> salt, keys, iterations
    acl     a resource pattern         an entry -> ""
    quota   a client quota entity      quota -> value
    token   a delegation token's id    its facts

What names and values mean is said where they are used (`headrace.security`). An entry without values does not exist.
In the feed entries travel as settings do (`configs`), so that a release that does not know a kind passes it over.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final
from urllib.parse import quote, unquote

ROOT: Final = "/security/"
_MARK: Final = "="
"""Before each name in a key, which could be `.` or `..` else."""

EntryValues = Mapping[str, str]


class EntryKind(StrEnum):
    """What an entry is about."""

    USER = "user"
    ACL = "acl"
    QUOTA = "quota"
    TOKEN = "token"


KINDS: Final = frozenset(kind.value for kind in EntryKind)


def prefix_of(kind: EntryKind) -> str:
    """What the keys of all entries of a kind begin with."""
    return f"{ROOT}{kind.value}/"


def key_of(kind: EntryKind, name: str) -> str:
    """Where an entry is kept in the store."""
    return f"{prefix_of(kind)}{_MARK}{quote(name, safe='')}"


def name_of(kind: EntryKind, key: str) -> str:
    """The name of the entry that is kept there."""
    return unquote(key[len(prefix_of(kind)) + len(_MARK) :])
