"""Queues over HTTP against a broker: received by one, acknowledged by receipt."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.client import expires_in
from headrace.testing import Broker
from tests.support.asgi import Asker, conversation

pytestmark = pytest.mark.slow
LOCK_MS = 2000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    settings = {
        "group.share.record.lock.duration.ms": LOCK_MS,
        "group.share.min.record.lock.duration.ms": LOCK_MS,
        "group.share.heartbeat.interval.ms": 1000,
        "group.share.min.heartbeat.interval.ms": 1000,
    }
    with Broker(settings) as broker:
        yield broker.bootstrap


async def fill(ask: Asker, queue: str, *values: str, headers: dict[str, str] | None = None) -> None:
    made = await ask("POST", "/api/v1/topics", {"name": queue, "partitions": 2})
    assert made.status in (201, 409), made.body
    for value in values:
        told = await ask("POST", f"/api/v1/topics/{queue}/messages?raw=true", value.encode(), headers or {})
        assert told.status == 200, told.body


async def receive(ask: Asker, queue: str, **asked: Any) -> dict[str, Any]:
    reply = await ask("POST", f"/api/v1/queues/{queue}/receive", {"wait_ms": 10_000, "max": 10, **asked})
    assert reply.status == 200, reply.body
    return dict(reply.json)


def test_each_message_is_received_by_one_and_acknowledged_released_rejected_or_kept(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await fill(ask, "jobs", "done", "again", "never", "long")
        found: dict[str, Any] = {}
        while len(found) < 4:
            answer = await receive(ask, "jobs")
            assert answer["lock_ms"] == LOCK_MS
            assert answer["base_uri"].endswith("/api/v1/queues/jobs")
            found |= {message["value"]: message for message in answer["messages"]}
        assert {message["deliveries"] for message in found.values()} == {1}
        assert (await receive(ask, "jobs", wait_ms=0))["messages"] == []  # all are out

        async def say(how: str, *values: str, **more: Any) -> Any:
            receipts = [found[value]["receipt"] for value in values]
            return await ask("POST", f"/api/v1/queues/jobs/{how}", {"receipts": receipts, **more})

        acknowledged = await say("ack", "done")
        assert (acknowledged.status, acknowledged.json) == (200, {"done": 1, "lost": []})
        twice = await say("ack", "done", "long")
        assert (twice.status, twice.json["done"]) == (207, 1)
        assert twice.json["lost"][0]["receipt"] == found["done"]["receipt"]
        assert (await say("nack", "never", reject=True)).status == 200
        assert (await say("nack", "again")).status == 200
        (once_more,) = (await receive(ask, "jobs"))["messages"]
        assert (once_more["value"], once_more["deliveries"]) == ("again", 2)
        found["again"] = once_more
        until = time.monotonic() + 1.5 * LOCK_MS / 1000
        while time.monotonic() < until:
            assert (await say("extend", "again")).status == 200
            assert (await receive(ask, "jobs", wait_ms=100))["messages"] == []
        (expired,) = (await receive(ask, "jobs"))["messages"]  # nobody extended it any more
        assert (expired["value"], expired["deliveries"]) == ("again", 3)
        assert (await say("ack", "again")).json["lost"][0]["reason"] == "unknown, or expired"

    conversation(bootstrap, talk)


def test_another_group_gets_every_message_too_and_what_has_expired_nobody(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        (name, value), *_ = expires_in(-1).items()
        await fill(ask, "copies", "too late", headers={f"X-Header-{name}": str(value)})
        await fill(ask, "copies", "both")
        for group in ("one", "other"):
            (message,) = (await receive(ask, "copies", group=group))["messages"]
            assert message["value"] == "both"
            body = {"receipts": [message["receipt"]]}
            unknown = await ask("POST", "/api/v1/queues/copies/ack", body)
            assert (unknown.status, unknown.json["code"]) == (404, "unknown-consumer")
            told = await ask("POST", "/api/v1/queues/copies/ack", {**body, "group": group})
            assert told.json["done"] == 1

    conversation(bootstrap, talk)


def test_what_is_given_back_may_come_again_later(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await fill(ask, "later", "at once", "soon", "tomorrow")
        receipts: dict[str, str] = {}
        while len(receipts) < 3:
            receipts |= {each["value"]: each["receipt"] for each in (await receive(ask, "later"))["messages"]}
        began = time.monotonic()
        for value, body in (
            ("tomorrow", {"delay_ms": 86_400_000}),
            ("soon", {"delay_ms": 1500}),
            ("at once", {"delay_ms": 0}),
        ):
            told = await ask("POST", "/api/v1/queues/later/nack", {"receipts": [receipts[value]], **body})
            assert (told.status, told.json["done"]) == (200, 1), told.body
        found = [(await receive(ask, "later"))["messages"] for _ in range(2)]
        assert [[each["value"] for each in some] for some in found] == [["at once"], ["soon"]]
        assert time.monotonic() - began >= 1.5
        assert {each["deliveries"] for some in found for each in some} == {2}

    conversation(bootstrap, talk)


def test_what_nobody_waits_for_any_more_is_released_at_once_and_takes_nothing_from_others(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await fill(ask, "gone", "held")
        (held,) = (await receive(ask, "gone"))["messages"]
        waiting = asyncio.ensure_future(receive(ask, "gone"))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await ask("POST", "/api/v1/queues/gone/ack", {"receipts": [held["receipt"]]})).status == 200

    conversation(bootstrap, talk)


def test_bad_requests_are_refused_with_their_reasons(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await fill(ask, "strict")
        for path, body, status in (
            ("strict/receive", {"max": 0}, 400),
            ("strict/receive", {"max": 10**6}, 400),
            ("strict/receive", {"wait_ms": 10**6}, 400),
            ("strict/receive", {"group": ""}, 400),
            ("strict/receive", {"start": "middle"}, 400),
            ("strict/ack", {"receipts": []}, 400),
            ("strict/ack", {"receipts": ["x" * 101]}, 400),
            ("strict/ack", {"receipts": ["x"]}, 404),
            ("strict/nack", {"receipts": ["x"], "delay_ms": -1}, 400),
            ("strict/nack", {"receipts": ["x"], "delay_ms": 86_400_001}, 400),
            ("strict/nack", {"receipts": ["x"], "delay_ms": 1, "reject": True}, 400),
            ("nowhere/receive", {}, 404),
            ("__consumer_offsets/receive", {}, 403),
        ):
            reply = await ask("POST", f"/api/v1/queues/{path}", body)
            assert reply.status == status, (path, body, reply.body)

    conversation(bootstrap, talk)
