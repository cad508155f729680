"""Where a query stands in its topics, and how that is written: `{"": {"orders": ID}, "orders": {"0": 42, "1": 7}}`.

An offset is that of the next record to read, as Kafka counts. It says nothing of another topic of the same name, so the
ids of the topics, where brokers give them any, are written under a name that no topic has. Spark keeps these texts in
the checkpoint and compares them as text, so the same offsets are always written alike: topics by name, partitions by
number.
"""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from headrace.client.columnar.model import EARLIEST, LATEST, TopicPartition
from headrace.config.names import shown
from headrace.config.setting import MAX_INT, MAX_LONG, ConfigError

Offsets = dict[TopicPartition, int]
"""The next offset to read of each partition."""

TopicIds = dict[str, bytes]
"""The ids of topics."""

SparkOffsets = dict[str, dict[str, Any]]
"""Both as Spark hands them around and writes them to the checkpoint."""

_NO_TOPIC: Final = ""
NOT_STARTED: Final[SparkOffsets] = {_NO_TOPIC: {"not started": 0}}
"""Where a query is before it has been decided, and written down, where it starts; no topic has an empty name."""

_OFFSETS_LIKE: Final = '{"topicA": {"0": 23, "1": -1}, "topicB": {"0": -2}}'
_TIMES_LIKE: Final = '{"topicA": {"0": 1700000000000}}'
_PARTITIONS_LIKE: Final = '{"topicA": [0, 1], "topicB": [2, 4]}'


def to_spark(offsets: Mapping[TopicPartition, int], ids: Mapping[str, bytes] | None = None) -> SparkOffsets:
    """The offsets as Spark keeps them, always in the same order, with the ids of their topics."""
    written: SparkOffsets = {}
    if ids:
        written[_NO_TOPIC] = {topic: _id_text(ids[topic]) for topic in sorted(ids)}
    for topic, partition in sorted(offsets):
        written.setdefault(topic, {})[str(partition)] = offsets[TopicPartition(topic, partition)]
    return written


def from_spark(written: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """The offsets that `to_spark` wrote."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in written.items()
        if topic != _NO_TOPIC
        for partition, offset in partitions.items()
    }


def ids_from_spark(written: Mapping[str, Mapping[str, Any]]) -> TopicIds:
    """The ids of topics that `to_spark` wrote; none in what was written before there were ids in it."""
    texts = written.get(_NO_TOPIC, {})
    return {topic: base64.urlsafe_b64decode(text + "==") for topic, text in texts.items() if isinstance(text, str)}


def _id_text(topic_id: bytes) -> str:
    """As Kafka's own tools show it."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def named(partitions: Iterable[TopicPartition]) -> str:
    """Partitions in a message: `orders-0, orders-1`."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))


def parse_offsets(option: str, text: str) -> Offsets:
    """The offsets a user wrote as JSON; -2 stands for the earliest, -1 for the latest."""
    return _per_partition(option, text, _OFFSETS_LIKE, lambda offset: min(EARLIEST, LATEST) <= offset <= MAX_LONG)


def parse_times(option: str, text: str) -> Offsets:
    """The times in milliseconds a user wrote as JSON, for each partition."""
    return _per_partition(option, text, _TIMES_LIKE, lambda time: 0 <= time <= MAX_LONG)


def parse_partitions(option: str, text: str) -> frozenset[TopicPartition]:
    """The partitions a user listed as JSON."""
    parsed = set()
    for topic, partitions in _topics(option, text, _PARTITIONS_LIKE):
        if not isinstance(partitions, list) or not all(_is_number(p) and 0 <= p <= MAX_INT for p in partitions):
            raise _not_like(option, text, _PARTITIONS_LIKE)
        parsed |= {TopicPartition(topic, partition) for partition in partitions}
    if not parsed:
        raise _not_like(option, text, _PARTITIONS_LIKE)
    return frozenset(parsed)


def _per_partition(option: str, text: str, example: str, allowed: Callable[[int], bool]) -> Offsets:
    offsets: Offsets = {}
    for topic, partitions in _topics(option, text, example):
        if not isinstance(partitions, dict):
            raise _not_like(option, text, example)
        for partition, number in partitions.items():
            if not (_is_partition(partition) and _is_number(number) and allowed(number)):
                raise _not_like(option, text, example)
            offsets[TopicPartition(topic, int(partition))] = number
    if not offsets:
        raise _not_like(option, text, example)
    return offsets


def _topics(option: str, text: str, example: str) -> Iterator[tuple[str, object]]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise _not_like(option, text, example)
    yield from parsed.items()


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_partition(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= MAX_INT


def _not_like(option: str, text: str, example: str) -> ConfigError:
    return ConfigError(f"option {option} must be JSON like {example}, not '{shown(text)}'")
