"""What `headrace group reset` would do: which partitions, from which offset to which."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.client.errors import UnknownTopic
from headrace.ops.groups import GroupAdmin
from headrace.protocol.topic_partition import TopicPartition

from ..console import Failure, bad_input
from ..positions import Position, resolve

_NUMBERS: Final = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_MOST_PARTITIONS: Final = 100_000


class TopicChoice(NamedTuple):
    """A topic, and which of its partitions; None for all."""

    topic: str
    partitions: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One partition, from where the group is (None: nowhere yet) to where it will be."""

    topic: str
    partition: int
    at: int | None
    to: int

    @property
    def change(self) -> int | None:
        return None if self.at is None else self.to - self.at

    @property
    def changes(self) -> bool:
        return self.at != self.to


def parse_topic(text: str, option: str) -> TopicChoice:
    """`orders`, `orders:3` or `orders:0,2-4`."""
    topic, colon, numbers = text.partition(":")
    if not topic or (colon and _NUMBERS.fullmatch(numbers) is None):
        raise bad_input(f"{option} '{text}' is not a topic with partitions; write orders, orders:3 or orders:0,2-4")
    if not colon:
        return TopicChoice(topic, None)
    chosen: dict[int, None] = {}
    for part in numbers.split(","):
        low, _, high = part.partition("-")
        if int(high or low) >= _MOST_PARTITIONS:
            raise bad_input(f"{option} '{text}': a topic has at most {_MOST_PARTITIONS} partitions")
        chosen.update(dict.fromkeys(range(int(low), int(high or low) + 1)))
    return TopicChoice(topic, tuple(sorted(chosen)))


def plan(
    admin: GroupAdmin,
    group: str,
    committed: Mapping[TopicPartition, int],
    choices: Iterable[TopicChoice],
    position: Position | None,
    shift: int | None,
) -> list[Move]:
    """The moves to a position, or by a shift, of a group that is at the offsets given; without choices, of every
    partition in which it is anywhere."""
    choices = list(choices) or _committed_choices(committed)
    if not choices:
        raise Failure(f"group '{group}' has committed nothing")
    known = {topic.name: topic.partitions for topic in admin.list_topics()}
    moves: list[Move] = []
    for choice in choices:
        partitions = _existing(known, choice)
        targets = _targets(admin, choice.topic, partitions, committed, position, shift)
        moves += [
            Move(topic=choice.topic, partition=p, at=committed.get(TopicPartition(choice.topic, p)), to=targets[p])
            for p in partitions
        ]
    return moves


def _committed_choices(committed: Mapping[TopicPartition, int]) -> list[TopicChoice]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(committed):
        topics.setdefault(topic, []).append(partition)
    return [TopicChoice(topic, tuple(partitions)) for topic, partitions in topics.items()]


def _existing(known: Mapping[str, int], choice: TopicChoice) -> list[int]:
    if choice.topic not in known:
        raise UnknownTopic(choice.topic)
    count = known[choice.topic]
    if choice.partitions is None:
        return list(range(count))
    missing = [str(partition) for partition in choice.partitions if partition >= count]
    if missing:
        raise Failure(f"topic '{choice.topic}' has no partition {', '.join(missing[:5])}; it has {count}")
    return list(choice.partitions)


def _targets(
    admin: GroupAdmin,
    topic: str,
    partitions: list[int],
    committed: Mapping[TopicPartition, int],
    position: Position | None,
    shift: int | None,
) -> dict[int, int]:
    if position is not None:
        return resolve(admin, topic, partitions, position, committed_only=False)
    starts, ends = admin.start_offsets(topic, partitions), admin.end_offsets(topic, partitions)
    targets: dict[int, int] = {}
    for partition in partitions:
        at = committed.get(TopicPartition(topic, partition))
        if at is None:
            raise Failure(
                f"there is nothing to shift: the group has committed nothing for {topic}:{partition}; use --to"
            )
        targets[partition] = max(starts[partition], min(at + (shift or 0), ends[partition]))
    return targets
