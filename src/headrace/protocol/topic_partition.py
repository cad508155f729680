"""A partition by its topic's name and its index: the key of most maps in clients and brokers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class TopicPartition(NamedTuple):
    """One partition; equal to, and hashed as, the plain tuple of both."""

    topic: str
    partition: int

    @property
    def text(self) -> str:
        """For messages to people."""
        return f"topic '{self.topic}' partition {self.partition}"


def indexes_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The indexes of partitions under the names of their topics, as requests list them."""
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    return topics


def values_by_topic(values: Mapping[TopicPartition, T]) -> dict[str, list[tuple[int, T]]]:
    """The same with a value for each partition."""
    topics: dict[str, list[tuple[int, T]]] = defaultdict(list)
    for (topic, partition), value in values.items():
        topics[topic].append((partition, value))
    return topics
