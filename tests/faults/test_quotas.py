"""A client that is limited, for twenty real seconds: a producer that we did not write, beside one without a quota."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer

from headrace.testing import Broker
from tests.support.quotas import set_quotas

pytestmark = pytest.mark.long

SECONDS = 20.0
RATE = 1_000_000
VALUE = bytes(10_000)
GOOD_PER_SECOND = 200
"""Records of the other client: 2 MB/s, which leaves the machine time for both."""


def written(broker: Broker, client: str, pause: float = 0.0) -> int:
    """The bytes of values that were acknowledged while the time passed."""
    done = 0

    def count(error: object, _: object) -> None:
        nonlocal done
        if error is None and time.monotonic() < end:
            done += len(VALUE)

    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "client.id": client, "queue.buffering.max.kbytes": 4000, "linger.ms": 5}
    )
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            producer.produce("t", VALUE, on_delivery=count)
        except BufferError:
            producer.poll(0.05)
            continue
        producer.poll(pause)
    producer.purge()
    producer.flush(60)
    return done


def test_a_client_of_one_megabyte_a_second_stays_within_a_tenth_and_another_keeps_its_rate() -> None:
    with Broker(topics={"t": 3}) as broker:
        set_quotas(broker, {"client-id": "greedy"}, producer_byte_rate=RATE)
        with ThreadPoolExecutor(2) as pool:
            greedy = pool.submit(written, broker, "greedy")
            good = pool.submit(written, broker, "good", 1 / GOOD_PER_SECOND)
        assert abs(greedy.result() - SECONDS * RATE) <= 0.1 * SECONDS * RATE
        assert good.result() >= 0.8 * SECONDS * GOOD_PER_SECOND * len(VALUE)
