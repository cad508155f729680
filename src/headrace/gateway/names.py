"""Names and numbers in paths, queries and bodies: what each may be. The same rule wherever one is used."""

import re
from typing import Annotated, Final

from msgspec import Meta, Struct, UnsetType

from headrace.schema_log import records
from headrace.web.checking import text_meta
from headrace.web.problem import Problem

SUBSCRIPTIONS: Final = "__headrace_subscriptions"
"""The topic of push subscriptions."""
_OWN: Final = frozenset({SUBSCRIPTIONS, records.TOPIC})
_INTERNAL: Final = "__"
_TOPIC: Final = r"^(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z"
_is_topic: Final = re.compile(_TOPIC).match
Topic = Annotated[
    str, text_meta(_TOPIC, "a topic's name: up to 249 of a-z A-Z 0-9 . _ - and not . or ..", "orders", most=249)
]
Group = Annotated[
    str,
    text_meta(
        r"^[^\x00-\x1f\x7f]{1,255}\Z", "a group's name: 1 to 255 characters, none of them control", "billing", most=255
    ),
]
Partition = Annotated[int, Meta(ge=0, le=2**31 - 1, examples=[0])]
Offset = Annotated[int, Meta(ge=0, le=2**63 - 1, examples=[41])]
Timestamp = Annotated[int, Meta(ge=0, le=2**53, description="Milliseconds since 1970.", examples=[1_700_000_000_000])]
Limit = Annotated[int, Meta(ge=1, le=10_000, description="How many at most.", examples=[100])]
Cursor = Annotated[
    str, Meta(max_length=1000, description="Go on after a page: what its `next` was.", examples=["b3JkZXJz"])
]
Next = Annotated[
    str | UnsetType, Meta(description="The `cursor` of the next page, where there is one.", examples=["b3JkZXJz"])
]


class TopicPath(Struct, frozen=True):
    """A path with a topic."""

    topic: Topic


class GroupPath(Struct, frozen=True):
    """A path with a group."""

    group: Group


class PartitionOffset(Struct, frozen=True):
    """A place in a topic."""

    topic: Annotated[str, Meta(examples=["orders"])]
    partition: Annotated[int, Meta(examples=[0])]
    offset: Annotated[int, Meta(examples=[41])]


def is_own(topic: str) -> bool:
    """Whether a topic is the gateway's own: its records are read and written by gateways alone."""
    return topic in _OWN


def require_messages(topic: str) -> None:
    """`Problem` 403 for a topic whose records are no messages of callers: the gateway's own."""
    if is_own(topic):
        raise _internal(topic)


def require_not_internal(topic: str) -> None:
    """`Problem` 403 for a topic that brokers or programs of ours keep their state in."""
    if is_own(topic) or topic.startswith(_INTERNAL):
        raise _internal(topic)


def _internal(topic: str) -> Problem:
    return Problem(403, f"topic '{topic}' is internal: nothing is published or read there", code="internal-topic")


def is_topic_name(name: str) -> bool:
    """Whether a topic can have this name."""
    return _is_topic(name) is not None
