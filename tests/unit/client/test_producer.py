"""What a producer and its settings do without a broker."""

import logging
import time

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.client import ClientError
from headrace.client.producer import OF_CONSUMERS, OF_PRODUCERS, OncePerMinute, Producer, library_settings
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
