"""Quotas of the brokers as HTTP tells them."""

from collections.abc import Iterator

import pytest

from headrace.testing import Broker
from tests.support.asgi import Asker, Reply, conversation
from tests.support.quotas import set_quotas

pytestmark = pytest.mark.slow

ANYBODY = {"user": "ANONYMOUS"}
MESSAGES = "/api/v1/topics/{}/messages"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics=["t"]) as running:
        yield running


def check_told_to_wait(reply: Reply, least: int) -> None:
    assert reply.status == 429, reply.body
    assert reply.json["code"] == "throttled"
    assert least <= int(reply.headers["retry-after"]) <= 600


def test_who_publishes_too_much_is_told_when_to_come_again(broker: Broker) -> None:
    async def talk(ask: Asker) -> None:
        assert (await ask("POST", MESSAGES.format("t"), b"x" * 100_000)).status == 200
        for _ in range(3):
            check_told_to_wait(await ask("POST", MESSAGES.format("t"), b"x"), 100)

    set_quotas(broker, ANYBODY, producer_byte_rate=100)
    conversation(broker.bootstrap, talk)


def test_who_makes_too_many_partitions_is_told_when_to_come_again(broker: Broker) -> None:
    async def talk(ask: Asker) -> None:
        assert (await ask("POST", "/api/v1/topics", {"name": "a", "partitions": 50})).status == 201
        check_told_to_wait(await ask("POST", "/api/v1/topics", {"name": "b", "partitions": 1}), 10)

    set_quotas(broker, ANYBODY, controller_mutation_rate=1)
    conversation(broker.bootstrap, talk)


def test_a_short_pause_is_waited_for(broker: Broker) -> None:
    async def talk(ask: Asker) -> None:
        for _ in range(3):
            assert (await ask("POST", MESSAGES.format("t"), b"x" * 20_000)).status == 200

    set_quotas(broker, ANYBODY, producer_byte_rate=100_000)
    conversation(broker.bootstrap, talk)


def test_a_topic_without_room_refuses(broker: Broker) -> None:
    async def talk(ask: Asker) -> None:
        for _ in range(100_000):
            reply = await ask("POST", MESSAGES.format("small"), b"x" * 1000)
            if reply.status != 200:
                break
        assert reply.status == 403
        assert reply.json["code"] == "policy-violation"
        assert "headrace.storage.quota.bytes" in reply.json["detail"]

    broker.create_topic("small", 1, **{"headrace.storage.quota.bytes": 2000})
    conversation(broker.bootstrap, talk)
