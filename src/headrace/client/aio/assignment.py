"""Who reads what of a group's topics: assignors, and what members tell each other, read with leniency."""

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Final

from headrace.protocol.consumer_protocol import NotConsumerProtocol, parse_partitions, parse_topics

RANGE: Final = "range"
WHOLE: Final = "headrace-whole"
"""All partitions to one member: for what must be done in one place at a time."""

Assignment = dict[str, list[int]]
"""Partitions by topic, in order."""


def decode_subscription(data: bytes) -> list[str]:
    """What a member wants to read, of any version; nothing where it cannot be read."""
    try:
        return sorted(parse_topics(data))
    except NotConsumerProtocol:
        return []


def decode_assignment(data: bytes) -> Assignment:
    """What a member is to read, of any version; nothing where it cannot be read."""
    try:
        return {topic: sorted(indexes) for topic, indexes in parse_partitions(data).items()}
    except NotConsumerProtocol:
        return {}


def assign_range(subscriptions: Mapping[str, Iterable[str]], partitions: Mapping[str, int]) -> dict[str, Assignment]:
    """Kafka's range assignor: of each topic the members that want it get runs of partitions, by their ids."""
    assignment: dict[str, Assignment] = {member: {} for member in subscriptions}
    for topic, count in partitions.items():
        members = sorted(member for member, topics in subscriptions.items() if topic in set(topics))
        share, extra = divmod(count, len(members)) if members else (0, 0)
        start = 0
        for position, member in enumerate(members):
            size = share + (1 if position < extra else 0)
            if size:
                assignment[member][topic] = list(range(start, start + size))
            start += size
    return assignment


def assign_whole(subscriptions: Mapping[str, Iterable[str]], partitions: Mapping[str, int]) -> dict[str, Assignment]:
    """Everything to one member, which the members' ids decide: different groups have different owners."""
    found: dict[str, Assignment] = {member: {} for member in subscriptions}
    owner = max(subscriptions, key=lambda member: blake2b(member.encode(), digest_size=8).digest())
    found[owner] = {topic: list(range(count)) for topic, count in partitions.items() if count}
    return found


Assign = Callable[[Mapping[str, Iterable[str]], Mapping[str, int]], dict[str, Assignment]]
ASSIGNORS: Final[Mapping[str, Assign]] = {RANGE: assign_range, WHOLE: assign_whole}
