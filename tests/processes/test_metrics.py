"""A broker's metrics while a client of other people's uses it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from headrace.client.admin import Admin
from tests.support.metrics import Scrape, get, scrape
from tests.support.process import BrokerProcess, free_port, wait_for

pytestmark = pytest.mark.slow

RECORDS = 20_000
VALUE = b"v" * 100
GROUP = "readers"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, str]]:
    """A broker, and where it tells its metrics."""
    address = f"127.0.0.1:{free_port()}"
    data: Path = tmp_path_factory.mktemp("broker")
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    with BrokerProcess(data / "data", settings, log=data / "log", metrics=address) as process:
        yield process, f"http://{address}"


def produce(bootstrap: str, topic: str, count: int) -> None:
    refused: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, VALUE, partition=number % 2, on_delivery=lambda e, _: refused.append(e) if e else None)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not refused


def consume(bootstrap: str, topic: str, count: int) -> None:
    """Read and commit so many records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            # All of a partition at once: what is cut off in the middle of a batch would be sent again.
            "max.partition.fetch.bytes": 8 << 20,
        }
    )
    consumer.subscribe([topic])
    try:
        read = 0
        while read < count:
            read += len(consumer.consume(count - read, 1.0))
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def test_scrapes_during_a_load_agree_with_what_was_sent_and_read(broker: tuple[BrokerProcess, str]) -> None:
    process, url = broker
    assert not any(Admin(process.bootstrap).create_topics(["load"], 2, None, {}).values())
    scrapes: list[Scrape] = []
    is_over = threading.Event()

    def keep_scraping() -> None:
        while not is_over.is_set():
            scrapes.append(scrape(url))
            is_over.wait(0.1)

    scraper = threading.Thread(target=keep_scraping)
    scraper.start()
    try:
        produce(process.bootstrap, "load", RECORDS)
        consume(process.bootstrap, "load", RECORDS)
    finally:
        is_over.set()
        scraper.join()
    last = scrape(url)
    assert last("headrace_topic_messages_in_total", topic="load") == RECORDS
    halves = [last("headrace_partition_log_end_offset", topic="load", partition=p) for p in "01"]
    assert halves == [RECORDS / 2] * 2
    size = sum(last("headrace_partition_log_size_bytes", topic="load", partition=p) for p in "01")
    assert last("headrace_topic_bytes_in_total", topic="load") == size
    assert RECORDS * len(VALUE) < size < RECORDS * len(VALUE) * 1.5
    assert RECORDS * 0.95 <= last("headrace_topic_messages_out_total", topic="load") <= RECORDS * 1.2
    assert size * 0.99 <= last("headrace_topic_bytes_out_total", topic="load") <= size * 1.2
    requests = last("headrace_requests_total", api="Produce")
    assert last("headrace_request_seconds_count", api="Produce") == requests > 0
    assert last("headrace_log_sync_seconds_count") > 0
    assert len(scrapes) > 1
    for name in ("headrace_messages_in_total", "headrace_bytes_out_total", "process_cpu_seconds_total"):
        values = [one(name) for one in (*scrapes, last)]
        assert values == sorted(values), name
    delays = last("headrace_loop_delay_seconds_count")
    late = delays - last("headrace_loop_delay_seconds_bucket", le="0.065536")
    print(f"{len(scrapes)} scrapes; loop delays of more than 66 ms: {late:.0f} of {delays:.0f}")  # noqa: T201 - `-s`


def test_lag_that_builds_up_is_seen_within_ten_seconds_and_goes_when_it_is_read(
    broker: tuple[BrokerProcess, str],
) -> None:
    process, url = broker
    assert not any(Admin(process.bootstrap).create_topics(["lagging"], 2, None, {}).values())
    produce(process.bootstrap, "lagging", 10)
    consume(process.bootstrap, "lagging", 10)
    produce(process.bootstrap, "lagging", 500)

    def lag() -> float:
        found = scrape(url)
        labels = ({"group": GROUP, "topic": "lagging", "partition": partition} for partition in "01")
        return sum(found.values.get(("headrace_group_lag_records", frozenset(each.items())), 0.0) for each in labels)

    wait_for("lag", lambda: lag() == 500, 10.0)
    wait_for("lag in seconds", lambda: scrape(url)("headrace_group_lag_seconds_max", group=GROUP) > 0, 10.0)
    consume(process.bootstrap, "lagging", 500)
    wait_for("no lag", lambda: lag() == 0, 10.0)


def test_probes_are_answered_as_long_as_the_broker_runs(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    process = BrokerProcess(tmp_path / "data", log=tmp_path / "log", metrics=address)
    with process:
        assert get(f"http://{address}/healthz") == (200, "ok\n")
        assert get(f"http://{address}/readyz")[0] == 200
        assert process.stop() == 0
    with pytest.raises(OSError, match="refused"):
        get(f"http://{address}/healthz")
