"""Messages that are published over HTTP for later."""

import asyncio
import time

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headrace.config import PLAIN_USERS
from headrace.gateway.names import SUBSCRIPTIONS
from headrace.gateway.settings import Account
from headrace.testing import Broker
from tests.support.asgi import Asker, conversation
from tests.unit.gateway.test_credentials import USERS, basic

MESSAGES = "/api/v1/topics/{}/messages"


async def make(ask: Asker, name: str) -> None:
    reply = await ask("POST", "/api/v1/topics", {"name": name, "partitions": 2})
    assert reply.status == 201, reply.body


async def arrived(ask: Asker, topic: str, count: int) -> list[tuple[float, str]]:
    """When messages were seen, and their values."""
    seen: dict[tuple[int, int, str], float] = {}
    deadline = time.monotonic() + 30
    while len(seen) < count and time.monotonic() < deadline:
        for partition in range(2):
            path = f"/api/v1/topics/{topic}/partitions/{partition}/messages?format=text&offset=0"
            for message in (await ask("GET", path)).json["messages"]:
                seen.setdefault((partition, message["offset"], message["value"]), time.time())
        await asyncio.sleep(0.02)
    return [(there, value) for (_, _, value), there in seen.items()]


@pytest.mark.slow
def test_messages_published_for_later_arrive_then_and_not_before(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "later")
        due = time.time() + 0.7
        raw = await ask("POST", MESSAGES.format("later"), b"raw", {"X-Deliver-At": str(int(due * 1000) + 1)})
        assert (raw.status, raw.json["topic"], raw.json["messages"]) == (202, "later", 1)
        body = {"messages": [{"value": "a", "value_encoding": "text"}, {"value": "b", "value_encoding": "text"}]}
        many = await ask("POST", MESSAGES.format("later"), body, {"X-Deliver-After-Ms": "700"})
        assert (many.status, many.json["messages"]) == (202, 2)
        for _ in range(2):  # sent again under the same key
            once = {"X-Deliver-After-Ms": "900", "Idempotency-Key": "k1"}
            assert (await ask("POST", MESSAGES.format("later"), b"once", once)).status == 202
        reused = await ask("POST", MESSAGES.format("later"), b"other", once)
        assert (reused.status, reused.json["code"]) == (422, "idempotency-key-reused")
        found = await arrived(ask, "later", 4)
        assert sorted(value for _, value in found) == ["a", "b", "once", "raw"]
        assert all(there >= due for there, _ in found)

    conversation(bootstrap, talk, mover={})


def test_what_cannot_be_delivered_later_is_refused(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await make(ask, "refusals")
        for topic, headers, status, code in (
            ("refusals", {"X-Deliver-After-Ms": "1000", "X-Deliver-At": "1"}, 400, "invalid-request"),
            ("refusals", {"X-Deliver-After-Ms": "-1"}, 400, "invalid-request"),
            ("refusals", {"X-Deliver-After-Ms": "soon"}, 400, "invalid-request"),
            ("refusals", {"X-Deliver-At": str(2**52)}, 400, "invalid-request"),
            ("refusals", {"X-Deliver-After-Ms": "1000", "X-Partition": "9"}, 404, "unknown-partition"),
            ("no-such-topic", {"X-Deliver-After-Ms": "1000"}, 404, "unknown-topic"),
        ):
            reply = await ask("POST", MESSAGES.format(topic), b"x", headers)
            assert reply.status == status, (headers, reply.body)
            assert reply.json["code"] == code or status == 400, reply.body
        at_once = await ask("POST", MESSAGES.format("refusals"), b"x", {"X-Deliver-At": "1"})
        assert at_once.status == 200

    conversation(bootstrap, talk)


@pytest.mark.slow
def test_delays_are_no_way_around_what_a_caller_may_not_do() -> None:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        PLAIN_USERS: USERS,
        "authorizer.class.name": "headrace",
        "super.users": "User:gateway",
        "group.initial.rebalance.delay.ms": 0,
    }
    with Broker(settings) as broker:
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "gateway",
            "sasl.password": "own",
        }
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, **login})
        for future in admin.create_topics([NewTopic(name, 2, 1) for name in ("orders", "payments")]).values():
            future.result(30)
        rules = [
            ("*", AclOperation.ALL, AclPermissionType.ALLOW),
            ("payments", AclOperation.WRITE, AclPermissionType.DENY),
            ("payments", AclOperation.READ, AclPermissionType.DENY),
        ]
        for name, operation, permission in rules:
            kind = ResourceType.TOPIC
            acl = AclBinding(kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, permission)
            for done in admin.create_acls([acl]).values():
                done.result(30)

        async def talk(ask: Asker) -> None:
            alice, gateway = basic("alice", "s3cret"), basic("gateway", "own")
            later = {"X-Deliver-After-Ms": "300"}
            assert (await ask("POST", MESSAGES.format("payments"), b"x", {**alice, **later})).status == 403
            hers = await ask("POST", MESSAGES.format("payments"), b"secret", {**gateway, **later})
            assert hers.status == 202, hers.body
            waiting = "payments.headrace-delayed"
            forged = {**alice, "X-Header-headrace.delayed.due": "1", "X-Partition": "0"}
            assert (await ask("POST", MESSAGES.format(waiting), b"x", forged)).status == 403
            read = f"/api/v1/topics/{waiting}/messages?from=earliest"
            assert (await ask("GET", read, None, alice)).status == 403
            assert (await ask("DELETE", f"/api/v1/topics/{waiting}", None, alice)).status == 204  # as the topic itself
            assert (await ask("POST", MESSAGES.format("orders"), b"x", {**alice, **later})).status == 202
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                found = await ask("GET", "/api/v1/topics/orders/messages?from=earliest&format=text", None, alice)
                if found.json["messages"]:
                    break
                await asyncio.sleep(0.05)
            assert [message["value"] for message in found.json["messages"]] == ["x"]
            for internal in ("__consumer_offsets", SUBSCRIPTIONS):
                refused = await ask("POST", MESSAGES.format(internal), b"x", {**gateway, **later})
                assert refused.status == 403, (internal, refused.body)

        own = Account(username="gateway", password="own")
        conversation(broker.bootstrap, talk, mechanism="PLAIN", own=own, mover=login)
