"""What can go wrong between a client and its cluster, in words for people."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from headrace.protocol.topic_partition import TopicPartition

AUTHENTICATION_FAILED: Final = "SASL_AUTHENTICATION_FAILED"
REGISTRY_UNREACHABLE: Final = "REGISTRY_UNREACHABLE"


class ClientError(Exception):
    """The cluster, or the client library, refused. `code` is Kafka's name for the reason, such as INVALID_CONFIG."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class ClusterUnreachable(ClientError):
    """No broker answered."""


class UnknownTopic(ClientError):
    """The topic does not exist, or no longer; `known` are those that do, as far as that was asked."""

    def __init__(self, topic: str, known: Iterable[str] = ()) -> None:
        from headrace.config.names import nearest  # late: its package is slow to import, and commands start with this

        super().__init__(f"topic '{topic}' does not exist{nearest(topic, known)}", "UNKNOWN_TOPIC_OR_PART")
        self.topic = topic


class UnknownPartition(ClientError):
    """The topic does not have this partition, or no longer since it was made anew."""

    def __init__(self, partition: TopicPartition, count: int) -> None:
        super().__init__(
            f"topic '{partition.topic}' has {count} partitions; there is no partition {partition.partition}",
            "UNKNOWN_TOPIC_OR_PART",
        )
        self.partition = partition


class TopicReplaced(ClientError):
    """There is a topic of this name, but not the one that was asked for."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic '{topic}' was deleted and made anew", "INCONSISTENT_TOPIC_ID")
        self.topic = topic


class OffsetsGone(ClientError):
    """Offsets that were asked for are not in the log: deleted by retention, or never there after the topic was
    made anew. `earliest` and `latest` are what the partition has now.
    """

    def __init__(self, partition: TopicPartition, offset: int, earliest: int, latest: int) -> None:
        super().__init__(
            f"offset {offset} of '{partition.topic}' partition {partition.partition} is not in the log, "
            f"which has {earliest} up to {latest}",
            "OFFSET_OUT_OF_RANGE",
        )
        self.partition = partition
        self.offset = offset
        self.earliest = earliest
        self.latest = latest


class Undecodable(ClientError):
    """Bytes that are not a value of the type that was asked for."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "_VALUE_DESERIALIZATION")


class Unencodable(ClientError):
    """A value that its format does not take."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "_VALUE_SERIALIZATION")


class NotDelivered(ClientError):
    """Messages that the brokers did not take, or did not answer for in time; `count` of them."""

    def __init__(self, message: str, code: str, count: int = 1) -> None:
        super().__init__(message, code)
        self.count = count


class TransactionAborted(ClientError):
    """A transaction took no effect; it may be tried again from its beginning."""


class ProducerFenced(ClientError):
    """Another producer has taken over the transactional id; this one can do nothing more."""


_UNREACHABLE = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE", "_TIMED_OUT_QUEUE"})
_UNKNOWN_TOPIC = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"})


def from_kafka(error: Any, topic: str | None = None) -> ClientError:
    """Our error for a `confluent_kafka.KafkaError`, with the broker's own message where it sent one."""
    code = str(error.name())
    if code in _UNKNOWN_TOPIC and topic is not None:
        return UnknownTopic(topic)
    kind = ClusterUnreachable if code in _UNREACHABLE else ClientError
    return kind(str(error.str()), code)


@contextmanager
def translated(topic: str | None = None) -> Iterator[None]:
    """Raise our errors for those of `confluent_kafka`."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as exception:
        raise from_kafka(exception.args[0], topic) from exception
    except ValueError as exception:  # the C extension's answer to an argument it does not take
        raise ClientError(str(exception), "_INVALID_ARG") from exception
