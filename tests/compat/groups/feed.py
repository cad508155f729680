"""Records that keep coming while a group is shaken."""

import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from .member import Place

_PAUSE_SECONDS = 0.01
_FLUSH_SECONDS = 20.0


class Feed:
    """Writes to each of its places in turn, up to a hundred records a second.

    No two values are equal, not even of two feeds of different names.
    """

    def __init__(self, bootstrap: str, name: str, places: Iterable[Place]) -> None:
        self._name = name
        self._places = list(places)
        self._acknowledged: set[str] = set()
        self._failures: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "topic.metadata.refresh.interval.ms": 500,
                "reconnect.backoff.max.ms": 500,
                "linger.ms": 5,
                "log_level": 2,
            }
        )
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def add(self, places: Iterable[Place]) -> None:
        """Write to these too from now on."""
        self._places = [*self._places, *places]

    def acknowledged(self) -> set[str]:
        """The values that the broker has taken so far."""
        return set(self._acknowledged)

    def finish(self) -> set[str]:
        """Stop, and give all values; each was acknowledged."""
        self._stop.set()
        self._thread.join()
        unsent = self._producer.flush(_FLUSH_SECONDS)
        assert not unsent, f"{unsent} records were not acknowledged in {_FLUSH_SECONDS:.0f} s"
        assert not self._failures, f"{len(self._failures)} records were refused: {self._failures[0]}"
        return self.acknowledged()

    def _write(self) -> None:
        number = 0
        while not self._stop.is_set():
            topic, partition = self._places[number % len(self._places)]
            try:
                self._producer.produce(
                    topic,
                    value=f"{self._name}/{topic}/{partition}/{number}",
                    partition=partition,
                    on_delivery=self._delivered,
                )
            except KafkaException as error:
                # A partition that was just added is not in the producer's metadata yet.
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    self._failures.append(str(error))
            number += 1
            self._producer.poll(_PAUSE_SECONDS)
            self._stop.wait(_PAUSE_SECONDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(str(error))
        else:
            self._acknowledged.add(message.value().decode())
