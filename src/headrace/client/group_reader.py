"""Read a topic as a member of a group, and commit what was dealt with."""

import time
from collections.abc import Generator, Mapping
from typing import Any, Final

from .admin import client_settings
from .errors import ClientError, from_kafka, translated
from .waiting import NOTE_SECONDS, OnWait

_BATCH: Final = 500
_POLL_SECONDS: Final = 0.2
_PATIENCE_SECONDS: Final = 30.0
"""How long the other members may take to give partitions up."""
_PASSING: Final = frozenset({"_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT", "REQUEST_TIMED_OUT"})
_REBALANCING: Final = frozenset({"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "_STATE"})


class GroupReader:
    """Messages of the partitions that the group gives to this member, from where the group is.

    Without `follow` it ends once each of them was read to its end. What was dealt with is told by `done`, and committed
    by `commit`; what is not is read again by the next member.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        settings: Mapping[str, Any] | None = None,
        *,
        follow: bool,
        on_wait: OnWait | None = None,
    ) -> None:
        self._topic = topic
        self._group = group
        self._follow = follow
        self._on_wait = on_wait or (lambda _message: None)
        self._consumer: Any = None
        self._assigned: set[int] = set()
        self._ended: set[int] = set()
        self._next: dict[int, int] = {}
        self._settings = {
            **client_settings(bootstrap),
            "fetch.wait.max.ms": 100,
            **(settings or {}),
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "allow.auto.create.topics": False,
        }

    def messages(self) -> Generator[Any | None, None, None]:
        """Each message, and None whenever none came for a moment."""
        from confluent_kafka import Consumer

        with translated(self._topic):
            self._consumer = Consumer(self._settings)
        try:
            self._consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
            yield from self._poll()
        finally:
            self._consumer.close()

    def _poll(self) -> Generator[Any | None, None, None]:
        started, has_told = time.monotonic(), False
        while self._follow or not self._is_at_end():
            batch = self._consumer.consume(_BATCH, _POLL_SECONDS)
            for message in batch:
                if self._is_record(message):
                    yield message
            if not batch:
                yield None
            waited = 0.0 if self._assigned else time.monotonic() - started
            if waited > NOTE_SECONDS and not has_told:
                has_told = True
                self._on_wait(f"waiting for partitions of '{self._topic}' from group '{self._group}'")
            if waited > _PATIENCE_SECONDS and not self._follow:
                raise ClientError(
                    f"group '{self._group}' gave this member no partition within {_PATIENCE_SECONDS:.0f} s; "
                    f"its other members have them: `headrace group describe {self._group}` shows who"
                )

    def done(self, message: Any) -> None:
        """The message was dealt with."""
        if message.partition() in self._assigned:
            self._next[message.partition()] = message.offset() + 1

    def commit(self) -> None:
        """Commit what was dealt with; while that cannot be, the next call tries again."""
        from confluent_kafka import TopicPartition

        if self._consumer is None or not self._next:
            return
        offsets = [TopicPartition(self._topic, partition, offset) for partition, offset in self._next.items()]
        try:
            with translated(self._topic):
                self._consumer.commit(offsets=offsets, asynchronous=False)
        except ClientError as error:
            if error.code not in _REBALANCING | _PASSING:
                raise
        else:
            self._next = {}

    def _is_at_end(self) -> bool:
        return bool(self._assigned) and self._assigned <= self._ended

    def _is_record(self, message: Any) -> bool:
        error = message.error()
        if error is None:
            self._ended.discard(message.partition())
            return True
        name = error.name()
        if name == "_PARTITION_EOF":
            self._ended.add(message.partition())
        elif error.fatal() or name not in _PASSING:
            raise from_kafka(error, self._topic)
        return False

    def _on_assign(self, _consumer: Any, partitions: list[Any]) -> None:
        self._assigned |= {each.partition for each in partitions}

    def _on_revoke(self, _consumer: Any, partitions: list[Any]) -> None:
        """Commits while that is still possible."""
        self.commit()
        gone = {each.partition for each in partitions}
        self._next = {partition: offset for partition, offset in self._next.items() if partition not in gone}
        self._assigned -= gone
        self._ended -= gone
