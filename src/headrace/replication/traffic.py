"""What went through partitions: sums that do not go back when a partition moves away or its topic is deleted."""

from typing import Protocol


class Counted(Protocol):
    """A partition, or a sum of several."""

    bytes_out: int
    messages_out: int
    replicated_in: int
    replicated_out: int

    @property
    def bytes_in(self) -> int: ...
    @property
    def messages_in(self) -> int: ...


class Traffic:
    """A sum over partitions: bytes and messages of clients, bytes of records between brokers."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "messages_out", "replicated_in", "replicated_out")

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = 0
        self.messages_in = self.messages_out = 0
        self.replicated_in = self.replicated_out = 0

    def add(self, other: Counted) -> None:
        """Count what went through another, too."""
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.messages_in += other.messages_in
        self.messages_out += other.messages_out
        self.replicated_in += other.replicated_in
        self.replicated_out += other.replicated_out


class GoneTraffic:
    """Of partitions that are here no more."""

    def __init__(self) -> None:
        self.by_topic: dict[str, Traffic] = {}
        self._deleted = Traffic()
        """Of topics that are here no more."""

    def partition_left(self, topic: str, partition: Counted) -> None:
        """A partition moved away, or its log is opened anew."""
        self.by_topic.setdefault(topic, Traffic()).add(partition)

    def topic_left(self, topic: str) -> None:
        """A topic was deleted, after its partitions."""
        left = self.by_topic.pop(topic, None)
        if left is not None:
            self._deleted.add(left)

    def total(self) -> Traffic:
        """Of all of them."""
        total = Traffic()
        total.add(self._deleted)
        for traffic in self.by_topic.values():
            total.add(traffic)
        return total
