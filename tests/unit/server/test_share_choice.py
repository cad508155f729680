"""Share groups that choose their records, as members see it: those of the wire, and librdkafka's."""

from collections.abc import Iterator

import pytest

from headrace.client import Producer
from headrace.client import Queue as ClientQueue
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records import Record
from headrace.testing import Broker
from tests.unit.server.test_dead_letters import produce, set_group
from tests.unit.server.test_share_fetch import Queue

ACCEPT, RELEASE = 1, 2


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def queue(shared: Broker, request: pytest.FixtureRequest) -> Iterator[Queue]:
    made = Queue(shared, f"choice-{abs(hash(request.node.name))}")
    yield made
    made.close()


def of_keys(*keys: bytes) -> list[Record]:
    return [Record(0, 1_000, key, b"%d" % number) for number, key in enumerate(keys)]


@pytest.mark.parametrize("version", [1, 2])
def test_keys_are_in_order_in_every_version_and_who_waits_is_woken(queue: Queue, version: int) -> None:
    assert set_group(queue, headrace__share__order="key") is ErrorCode.none
    produce(queue, *of_keys(b"a", b"a", b"b"))
    first, second = queue.member("a", version), queue.member("b", version)
    assert first.take(wait_ms=9_000) == [(0, 0, 1), (2, 2, 1)]
    second.send_fetch(wait_ms=9_000)
    assert first.say((0, 0, ACCEPT)) is ErrorCode.none
    partition = second.receive_fetch().responses[0].partitions[0]
    assert [(r.first_offset, r.last_offset) for r in partition.acquired_records] == [(1, 1)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("headrace__share__order", "topic"),
        ("headrace__share__priority__enable", "maybe"),
        ("headrace__share__key__interval__ms", "-1"),
    ],
)
def test_what_no_group_can_choose_is_refused(queue: Queue, name: str, value: str) -> None:
    assert set_group(queue, **{name: value}) is ErrorCode.invalid_config


@pytest.mark.slow
def test_members_of_librdkafka_get_their_keys_in_order_and_the_urgent_first(queue: Queue) -> None:
    settings = {"headrace__share__order": "key", "headrace__share__priority__enable": "true"}
    assert set_group(queue, **settings) is ErrorCode.none
    with Producer(queue.broker.bootstrap) as producer:
        for number in range(60):
            headers = {"headrace.priority": "9"} if number % 10 == 9 else {}
            producer.send(queue.topic, str(number), key=f"k{number % 4}", headers=headers, partition=0)
    done: list[int] = []
    with (
        ClientQueue(queue.topic, group=queue.group, value=str, bootstrap=queue.broker.bootstrap, prefetch=1) as one,
        ClientQueue(queue.topic, group=queue.group, value=str, bootstrap=queue.broker.bootstrap, prefetch=1) as other,
    ):
        while len(done) < 60:
            for each in (one, other):
                message = each.receive(timeout=1)
                if message is not None:
                    done.append(int(message.value))
                    each.accept()
    assert sorted(done) == list(range(60)), "each once"
    for key in range(4):
        of_key = [number for number in done if number % 4 == key]
        assert of_key == sorted(of_key)
