"""Dead letters of share groups, as a broker writes them to the topic that the group names."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from headrace.client.admin import Admin
from headrace.client.core.handshake import ConnectionSettings
from headrace.client.reader import RecordReader
from headrace.health import ProblemCode
from headrace.net.address import parse_address
from headrace.ops.health import ask_health
from headrace.ops.health_reports import Unheard
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records import Record, encode_batch
from headrace.testing import Broker
from tests.support import acls
from tests.support.process import wait_for
from tests.support.wire import produce_request
from tests.unit.server.test_share_fetch import Queue

ACCEPT, RELEASE, REJECT = 1, 2, 3
NAMES = count()
SETTINGS = ConnectionSettings(client_id="test", connect_timeout=9, request_timeout=9)
TAKES = {"errors_deadletterqueue_group_enable": True}


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker({"group.share.delivery.count.limit": "2", "errors.deadletterqueue.topic.name.prefix": ""}) as running:
        yield running


@pytest.fixture
def queue(shared: Broker) -> Iterator[Queue]:
    made = Queue(shared, f"jobs-{next(NAMES)}")
    yield made
    made.close()


def set_group(queue: Queue, **settings: str) -> ErrorCode:
    """Settings of its group, with dots for double underscores."""
    configs = [
        {"name": name.replace("__", "."), "config_operation": 0, "value": value} for name, value in settings.items()
    ]
    resources = [{"resource_type": 32, "resource_name": queue.group, "configs": configs}]
    answer = acls.ask(queue.writer, 44, 1, {"resources": resources, "validate_only": False})
    return ErrorCode(answer.responses[0].error_code)


def has_letters(queue: Queue, topic: str, **settings: str) -> None:
    assert set_group(queue, errors__deadletterqueue__topic__name=topic, **settings) is ErrorCode.none


def letters(queue: Queue, topic: str, least: int) -> list[Any]:
    """What is in a topic of dead letters once there are so many."""
    found: list[Any] = []

    admin = Admin(queue.broker.bootstrap)

    def are_there() -> bool:
        ends = admin.end_offsets(topic, [0])
        if ends[0] < least:
            return False
        read = RecordReader(queue.broker.bootstrap, topic, {0: 0}, ends).messages()
        found[:] = [record for record in read if record is not None]
        return True

    wait_for("dead letters", are_there)
    return found


def produce(queue: Queue, *records: Record) -> None:
    answer = queue.writer.ask(0, 9, produce_request(queue.topic, bytes(encode_batch(records))))
    assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none


def test_what_is_rejected_is_a_dead_letter_with_its_record_and_where_it_was(queue: Queue) -> None:
    topic = queue.broker.create_topic(f"letters-{queue.topic}", 1, **TAKES)
    has_letters(queue, topic, errors__deadletterqueue__copy__record__enable="true")
    forged = (("trace", b"1"), ("__dlq.errors.topic", b"bank"), ("headrace.dlq.resolved", b"redriven"))
    produce(queue, Record(0, 1_000, b"alice", b"order", forged), Record(0, 2_000, b"bob", b"other"))
    member = queue.member()
    assert member.take(wait_ms=9_000) == [(0, 1, 1)]
    assert member.say((0, 0, REJECT)) is ErrorCode.none
    assert member.say((1, 1, ACCEPT)) is ErrorCode.none
    (record,) = letters(queue, topic, 1)
    assert (record.key(), record.value()) == (b"alice", b"order")
    headers = dict(record.headers())
    assert len(headers) == len(record.headers()), "nobody but the broker says where it was"
    assert headers == {
        "trace": b"1",
        "__dlq.errors.topic": queue.topic.encode(),
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"0",
        "__dlq.errors.group": queue.group.encode(),
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"Offset rejected by client.",
        "headrace.dlq.timestamp": b"1000",
    }


def test_what_was_released_too_often_is_a_dead_letter_without_its_record_unless_it_is_to_be_copied(
    queue: Queue,
) -> None:
    topic = queue.broker.create_topic(f"letters-{queue.topic}", 1, **TAKES)
    has_letters(queue, topic)
    produce(queue, Record(0, 1_000, b"alice", b"order"))
    member = queue.member()
    for _ in range(2):
        assert [(first, last) for first, last, _ in member.take(wait_ms=9_000)] == [(0, 0)]
        assert member.say((0, 0, RELEASE)) is ErrorCode.none
    (record,) = letters(queue, topic, 1)
    assert (record.key(), record.value()) == (None, None)
    headers = dict(record.headers())
    assert headers["__dlq.errors.delivery.count"] == b"2"
    assert headers["__dlq.errors.message"] == b"Offset delivery count exceeded the threshold."


def test_dead_letters_wait_for_a_topic_that_takes_them_and_the_broker_says_so(queue: Queue) -> None:
    topic = queue.broker.create_topic(f"letters-{queue.topic}", 1)
    has_letters(queue, topic)
    produce(queue, Record(0, 1_000, b"alice", b"order"))
    member = queue.member()
    assert member.take(wait_ms=9_000) == [(0, 0, 1)]
    assert member.say((0, 0, REJECT)) is ErrorCode.none
    found: list[str] = []

    def is_told() -> bool:
        report = ask_health(parse_address(queue.broker.bootstrap), SETTINGS)
        assert not isinstance(report, Unheard)
        found[:] = [p.message for p in report.problems if p.code is ProblemCode.DEAD_LETTERS_WAIT]
        return bool(found)

    wait_for("the problem", is_told)
    assert f"topic {topic} does not take dead letters" in found[0]
    configs = [{"name": "errors.deadletterqueue.group.enable", "config_operation": 0, "value": "true"}]
    resources = [{"resource_type": 2, "resource_name": topic, "configs": configs}]
    acls.ask(queue.writer, 44, 1, {"resources": resources, "validate_only": False})
    assert len(letters(queue, topic, 1)) == 1
    wait_for("no problem", lambda: not is_told())


def test_a_record_that_is_too_large_for_the_topic_of_dead_letters_is_left_out_and_the_letter_says_so(
    queue: Queue,
) -> None:
    topic = queue.broker.create_topic(f"letters-{queue.topic}", 1, max_message_bytes=2000, **TAKES)
    has_letters(queue, topic, errors__deadletterqueue__copy__record__enable="true")
    produce(queue, *(Record(0, 1_000, b"%d" % n, b"x" * (5_000 if n == 1 else 800)) for n in range(3)))
    member = queue.member()
    assert member.take(wait_ms=9_000) == [(0, 2, 1)]
    assert member.say((0, 2, REJECT)) is ErrorCode.none
    first, large, last = letters(queue, topic, 3)
    assert (len(first.value()), large.value(), len(last.value())) == (800, None, 800)
    assert b"max.message.bytes" in dict(large.headers())["headrace.dlq.omitted"]


def test_a_dead_letter_that_is_given_up_stays_where_it_is(queue: Queue) -> None:
    has_letters(queue, queue.topic)
    produce(queue, Record(0, 1_000, b"alice", b"order"))
    member = queue.member()
    assert member.take(wait_ms=9_000) == [(0, 0, 1)]
    assert member.say((0, 0, REJECT)) is ErrorCode.none
    produce(queue, Record(0, 1_000, b"bob", b"other"))
    assert member.take(wait_ms=9_000) == [(1, 1, 1)]


@pytest.mark.parametrize("name", ["__consumer_offsets", "a/b", "..", "x" * 250])
def test_no_group_can_have_its_dead_letters_in_what_is_no_topic_for_them(queue: Queue, name: str) -> None:
    assert set_group(queue, errors__deadletterqueue__topic__name=name) is ErrorCode.invalid_config


def test_the_broker_bounds_and_makes_topics_of_dead_letters_as_it_is_set_to() -> None:
    with Broker({"errors.deadletterqueue.auto.create.topics.enable": "true"}) as broker:
        queue = Queue(broker, "jobs")
        assert set_group(queue, errors__deadletterqueue__topic__name="bank") is ErrorCode.invalid_config
        has_letters(queue, "dlq.jobs")
        produce(queue, Record(0, 1_000, None, json.dumps({"id": 1}).encode()))
        member = queue.member()
        assert member.take(wait_ms=9_000) == [(0, 0, 1)]
        assert member.say((0, 0, REJECT)) is ErrorCode.none
        wait_for("the topic", lambda: "dlq.jobs" in [each.name for each in Admin(broker.bootstrap).list_topics()])
        assert len(letters(queue, "dlq.jobs", 1)) == 1
        queue.close()
