"""Topics of a test: made, filled, changed and removed, with what they ought to hold."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.client.admin import Admin
from headrace.testing.plugin import topic_name

_ADMIN_SECONDS = 60.0
_numbers = itertools.count(1)


class Topics:
    """What a test does to a cluster."""

    def __init__(self, bootstrap: str, test_name: str) -> None:
        self.bootstrap = bootstrap
        self._test_name = test_name

    def create(self, partitions: int = 1, **configs: object) -> str:
        """A new topic that no other test uses."""
        name = topic_name(self._test_name, next(_numbers))
        self.create_as(name, partitions, **configs)
        return name

    def create_as(self, name: str, partitions: int = 1, **configs: object) -> None:
        given = {key: str(value) for key, value in configs.items()}
        made = Admin(self.bootstrap, timeout=_ADMIN_SECONDS).create_topics([name], partitions, configs=given)
        assert made[name] is None, made[name]

    def fill(
        self,
        topic: str,
        values: Iterable[bytes | None],
        partition: Callable[[int], int] = lambda _: -1,
        **settings: Any,
    ) -> None:
        """Send values, and return when all are there."""
        failed: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, **settings})
        for number, value in enumerate(values):
            producer.produce(
                topic,
                key=b"k%d" % number,
                value=value,
                partition=partition(number),
                on_delivery=delivered,
            )
            producer.poll(0)
        assert producer.flush(60) == 0
        assert not failed

    def delete(self, topic: str) -> None:
        (error,) = Admin(self.bootstrap).delete_topics([topic]).values()
        assert error is None

    def add_partitions(self, topic: str, total: int) -> None:
        Admin(self.bootstrap).create_partitions(topic, total)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Let the records before an offset expire."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result(60)
