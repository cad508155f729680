"""What a producer and its settings do without a broker."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.client import ClientError, Producer, ProducerFenced
from headrace.client import producer as producers
from headrace.client.producer import OF_CONSUMERS, OF_PRODUCERS, OncePerMinute, library_settings
from headrace.client.waiting import LibraryErrors


def test_a_line_that_is_told_again_and_again_is_shown_once_a_minute_for_all_clients() -> None:
    now = 0.0
    filtered = OncePerMinute(lambda: now)

    def is_shown(line: str) -> bool:
        return filtered.filter(logging.LogRecord("headrace.client", logging.ERROR, "", 0, line, (), None))

    assert is_shown("FAIL [headrace#consumer-2] [thrd:h:1/bootstrap]: Connection refused")
    assert not is_shown("FAIL [headrace#consumer-2] [thrd:h:1/bootstrap]: Connection refused")
    assert not is_shown("FAIL [headrace#producer-13] [thrd:h:1/bootstrap]: Connection refused")
    assert is_shown("FAIL [headrace#consumer-2] [thrd:other:1/bootstrap]: Connection refused")
    now = 61.0
    assert is_shown("FAIL [headrace#consumer-2] [thrd:h:1/bootstrap]: Connection refused")


def test_settings_that_a_program_shares_reach_the_clients_that_have_them() -> None:
    shared = {"session.timeout.ms": 6000, "linger.ms": 1, "sasl.username": "alice", "enable.idempotence": False}
    for_producers = library_settings("h:1", shared, LibraryErrors(), OF_CONSUMERS)
    for_consumers = library_settings("h:1", shared, LibraryErrors(), OF_PRODUCERS)
    assert {name for name in shared if name in for_producers} == {"linger.ms", "sasl.username", "enable.idempotence"}
    assert {name for name in shared if name in for_consumers} == {"session.timeout.ms", "sasl.username"}
    assert for_producers["enable.idempotence"] == "false"


def test_brokers_that_are_back_are_found_within_a_second_unless_other_settings_say_otherwise() -> None:
    assert library_settings("h:1", None, LibraryErrors(), OF_CONSUMERS)["reconnect.backoff.max.ms"] == 1000
    with Producer("h:1", settings={"reconnect.backoff.ms": 5000}):  # which would have to be below that
        pass


def test_an_address_that_is_given_comes_before_that_of_the_settings() -> None:
    settings = {"bootstrap.servers": "settings:1"}
    assert library_settings("given:1", settings, LibraryErrors(), OF_PRODUCERS)["bootstrap.servers"] == "given:1"
    assert library_settings(None, settings, LibraryErrors(), OF_PRODUCERS)["bootstrap.servers"] == "settings:1"


@pytest.mark.parametrize("bootstrap", ["no host:::", "host", "host:99999"])
def test_what_is_no_address_is_refused_at_once(bootstrap: str) -> None:
    with pytest.raises(ClientError, match="the brokers' addresses: "):
        library_settings(bootstrap, None, LibraryErrors(), OF_PRODUCERS)


def test_calls_that_fail_at_once_while_brokers_are_away_are_tried_at_growing_intervals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    answers = iter([KafkaException(KafkaError(KafkaError._TRANSPORT, retriable=True)) for _ in range(9)])

    def call() -> None:
        if (error := next(answers, None)) is not None:
            raise error

    with Producer("127.0.0.1:1") as producer:
        producer._retried(call)
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]


class StuckLibrary:
    """librdkafka where sending offsets does not return: it refuses every other call as long as that one is under way,
    and says that trying again may help."""

    def __init__(self, _settings: dict[str, Any]) -> None:
        self.let_go = threading.Event()
        self.refused = 0

    def produce(self, *_arguments: object) -> None: ...

    def init_transactions(self, _timeout: float) -> None: ...

    def begin_transaction(self) -> None: ...

    def send_offsets_to_transaction(self, *_arguments: object) -> None:
        self.let_go.wait()

    def _refuse(self, _timeout: float) -> None:
        self.refused += 1
        if self.refused > 3:
            raise AssertionError("it is asked again and again")
        raise KafkaException(KafkaError(KafkaError._PREV_IN_PROGRESS, "another call is under way", False, True))

    commit_transaction = abort_transaction = _refuse


@pytest.mark.parametrize("end", [lambda transaction: transaction.abort(), lambda transaction: transaction.commit()])
def test_a_transaction_with_a_call_that_never_returns_is_left_to_the_brokers(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[Any], None]
) -> None:
    monkeypatch.setattr(producers, "LibraryProducer", StuckLibrary)
    monkeypatch.setattr(producers, "_TRY_SECONDS", 0.01)
    monkeypatch.setattr(producers, "_LATE_SECONDS", 0.01)
    producer = Producer("h:1", transactional_id="stuck")
    library: Any = producer._producer
    transaction = producer.begin()
    with pytest.raises(ProducerFenced, match="the transaction hangs"):
        transaction.send_positions([], None)
    try:
        end(transaction)
    except ProducerFenced:
        pass
    assert library.refused == 0
    with pytest.raises(ProducerFenced, match="the transaction hangs"):
        producer.begin()
    library.let_go.set()


def test_a_producer_with_transactions_keeps_the_brokers_that_it_knows() -> None:
    made: list[dict[str, Any]] = []

    def library(settings: dict[str, Any]) -> StuckLibrary:
        made.append(settings)
        return StuckLibrary(settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producers, "LibraryProducer", library)
        Producer("h:1", transactional_id="mine")
        Producer("h:1", transactional_id="mine", settings={"metadata.recovery.strategy": "rebootstrap"})
    assert [each["metadata.recovery.strategy"] for each in made] == ["none", "rebootstrap"]
