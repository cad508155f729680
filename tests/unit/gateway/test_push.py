"""Push against a broker and receivers that misbehave."""

import asyncio
import base64
import hmac
from typing import Any

import pytest

from headrace.gateway.names import SUBSCRIPTIONS
from headrace.gateway.push.addresses import AddressRefused, AddressRules, parse_callback
from headrace.gateway.push.filters import matches
from headrace.gateway.push.model import PushSubscription, pause_ms
from headrace.gateway.push.sending import CallbackSender
from headrace.protocol.records import Record
from tests.support.asgi import Asker, conversation
from tests.support.process import free_port
from tests.support.webhook_receiver import CUT, HANG, Delivered, Receiver

ALLOWED: dict[str, Any] = {"push_allow": ("127.0.0.0/8",)}
PATH = "/api/v1/subscriptions"
QUICK = {"initial_ms": 1, "max_ms": 5}


_WANTED = {"topic": "orders", "callback_url": "http://127.0.0.1:1/"}


async def make(ask: Asker, topic: str, partitions: int = 1, count: int = 0) -> None:
    await ask("POST", "/api/v1/topics", {"name": topic, "partitions": partitions})
    await publish(ask, topic, 0, count, partitions)


async def publish(ask: Asker, topic: str, start: int, end: int, partitions: int = 1) -> None:
    records = [{"value": i, "partition": i % partitions} for i in range(start, end)]
    if records:
        assert (await ask("POST", f"/topics/{topic}", {"messages": records})).status == 200


async def subscribe(ask: Asker, topic: str, receiver: Receiver, **more: Any) -> dict[str, Any]:
    wanted = {"topic": topic, "callback_url": receiver.url, "from": "earliest", "backoff": QUICK, **more}
    reply = await ask("POST", PATH, wanted)
    assert reply.status == 201, reply.body
    return dict(reply.json)


async def caught_up(ask: Asker, subscription: str) -> None:
    """Returns when all that is there was taken, and that is written down: after the receiver's answer."""
    while any(each["lag"] != 0 for each in (await ask("GET", f"{subscription}/status")).json["offsets"]):
        pass


def values(deliveries: list[Delivered]) -> list[Any]:
    return [delivered.json["value"] for delivered in deliveries]


def unique(found: list[Any]) -> list[Any]:
    return list(dict.fromkeys(found))


def test_records_are_posted_in_order_and_signed(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        async with Receiver() as receiver:
            await make(ask, "pushed", 1, 5)
            made = await subscribe(ask, "pushed", receiver, headers={"Authorization": "Bearer x"})
            await receiver.until(lambda: len(receiver.taken) >= 5)
            assert values(receiver.taken) == list(range(5))
            first = receiver.taken[0]
            assert first.headers["authorization"] == "Bearer x"
            key = base64.b64decode(made["secret"].removeprefix("whsec_"))
            signed = f"{first.headers['webhook-id']}.{first.headers['webhook-timestamp']}.".encode() + first.body
            digest = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
            assert first.headers["webhook-signature"] == f"v1,{digest}"
            shown = (await ask("GET", f"{PATH}/{made['id']}")).json
            assert "secret" not in shown
            assert shown["headers"] == ["Authorization"]

    conversation(bootstrap, talk, **ALLOWED)


def test_a_receiver_that_fails_hangs_and_cuts_gets_every_record_in_order(bootstrap: str) -> None:
    script = [500, HANG, CUT, 503, 302, 404, 200, 429] * 3

    async def talk(ask: Asker) -> None:
        async with Receiver(lambda _: script.pop(0) if script else 200) as receiver:
            await make(ask, "bumpy", 2, 20)
            await subscribe(ask, "bumpy", receiver, timeout_ms=100, max_attempts=100)
            # One that was taken, but answered too late, comes again.
            await receiver.until(lambda: len(unique(values(receiver.taken))) >= 20)
            taken = unique(values(receiver.taken))
            assert [v for v in taken if v % 2 == 0] == list(range(0, 20, 2))
            assert [v for v in taken if v % 2 == 1] == list(range(1, 20, 2))

    conversation(bootstrap, talk, **ALLOWED)


def test_what_is_never_taken_goes_to_the_dead_letter_topic_and_the_rest_goes_on(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        async with Receiver(lambda d: 500 if d.json["value"] in (2, 3) else 200) as receiver:
            await make(ask, "poison", 1, 6)
            made = await subscribe(ask, "poison", receiver, max_attempts=3, dead_letter="poison.dlq")
            await receiver.until(lambda: len(receiver.taken) >= 4)
            assert values(receiver.taken) == [0, 1, 4, 5]
            assert len([v for v in values(receiver.seen) if v == 2]) == 3
            letters = (
                await ask("GET", "/api/v1/topics/poison.dlq/partitions/0/messages?wait_ms=5000&format=auto")
            ).json
            assert [letter["value"] for letter in letters["messages"]] == [2, 3]
            headers = letters["messages"][0]["headers"]
            assert headers["headrace.dlq.offset"] == "2"
            assert headers["headrace.dlq.reason"] == "HTTP 500"
            status = (await ask("GET", f"{PATH}/{made['id']}/status")).json
            assert (status["dead_lettered"], status["failed_attempts"]) == (2, 6)

    conversation(bootstrap, talk, **ALLOWED)


def test_messages_of_a_queue_are_posted_side_by_side_and_none_holds_up_another(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        async with Receiver(lambda d: 500 if d.json["value"] in (0, 1) else 200) as receiver:
            await make(ask, "side-by-side", 2, 40)
            slow = {"initial_ms": 300, "max_ms": 300}
            options = {"queue": True, "group": "q", "max_attempts": 4, "backoff": slow, "dead_letter": "side.dlq"}
            made = await subscribe(ask, "side-by-side", receiver, **options)
            assert made["queue"] is True
            await receiver.until(lambda: len(receiver.taken) >= 38)
            assert len([v for v in values(receiver.seen) if v in (0, 1)]) < 8  # these two are still being tried
            assert sorted(values(receiver.taken)) == list(range(2, 40))
            letters: list[Any] = []
            while len(letters) < 2:
                path = "/api/v1/topics/side.dlq/partitions/0/messages?format=auto"
                letters = (await ask("GET", path)).json["messages"]
            assert sorted(letter["value"] for letter in letters) == [0, 1]
            await caught_up(ask, f"{PATH}/{made['id']}")
            status = (await ask("GET", f"{PATH}/{made['id']}/status")).json
            assert (status["delivered"], status["dead_lettered"], status["lag"]) == (38, 2, 0)
            refused = await ask("POST", PATH, {**_WANTED, "queue": True, "batch": {"max_messages": 2}})
            assert refused.status == 400

    conversation(bootstrap, talk, **ALLOWED)


def test_paused_resumed_and_removed(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        async with Receiver() as receiver:
            await make(ask, "pausing", 1, 3)
            one = f"{PATH}/{(await subscribe(ask, 'pausing', receiver))['id']}"
            await receiver.until(lambda: len(receiver.taken) >= 3)
            await caught_up(ask, one)
            assert (await ask("POST", f"{one}/pause")).json["state"] == "paused"
            await publish(ask, "pausing", 3, 6)
            assert (await ask("GET", f"{one}/status")).json["lag"] == 3
            assert (await ask("POST", f"{one}/resume")).json["state"] == "active"
            await receiver.until(lambda: len(receiver.taken) >= 6)
            assert values(receiver.taken) == list(range(6))
            assert (await ask("DELETE", one)).status == 204
            assert (await ask("GET", one)).status == 404

    conversation(bootstrap, talk, **ALLOWED)


def test_subscriptions_and_their_place_survive_a_restart(bootstrap: str) -> None:
    made: dict[str, Any] = {}
    port = free_port()

    async def first(ask: Asker) -> None:
        async with Receiver(port=port) as receiver:
            await make(ask, "lasting", 1, 3)
            made.update(await subscribe(ask, "lasting", receiver))
            await receiver.until(lambda: len(receiver.taken) >= 3)
            await caught_up(ask, f"{PATH}/{made['id']}")

    async def second(ask: Asker) -> None:
        async with Receiver(port=port) as receiver:
            await publish(ask, "lasting", 3, 6)
            await receiver.until(lambda: 5 in values(receiver.taken))
            assert values(receiver.taken) == [3, 4, 5]
            one = f"{PATH}/{made['id']}"
            await caught_up(ask, one)
            assert (await ask("GET", f"{one}/status")).json["delivered"] == 6
            await ask("DELETE", one)

    conversation(bootstrap, first, **ALLOWED)
    conversation(bootstrap, second, **ALLOWED)


def test_batches_and_filters(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        async with Receiver() as receiver:
            await make(ask, "batched", 1, 10)
            wanted = {"batch": {"max_messages": 4}, "filter": {"json": {"$.": {"exists": False}}}}
            await subscribe(ask, "batched", receiver, **wanted)
            await receiver.until(lambda: sum(len(d.json["messages"]) for d in receiver.taken) >= 10)
            assert [len(d.json["messages"]) for d in receiver.taken] == [4, 4, 2]

    conversation(bootstrap, talk, **ALLOWED)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost:8080/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://0.0.0.0/",
        "http://[::1]/",
        "http://[::]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[::127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://[fe80::1]/",
        "http://[fc00::1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/",
        "http://172.16.0.1/",
        "http://192.168.1.1/",
        "http://100.64.0.1/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "http://user:pass@93.184.216.34/",
        "http:///nohost",
        "http://93.184.216.34:0/",
        "http://93.184.216.34:99999/",
        "http://exa mple.com/",
        "http://example.com/\r\nX: y",
        "//example.com/",
        "",
    ],
)
def test_a_callback_that_leads_inside_is_refused(bootstrap: str, url: str) -> None:
    async def talk(ask: Asker) -> None:
        reply = await ask("POST", PATH, {"topic": "any", "callback_url": url})
        assert reply.status == 400, reply.body

    conversation(bootstrap, talk)


def test_internal_topics_are_no_source_and_no_target(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        async with Receiver() as receiver:
            await make(ask, "sanctum", 1, 1)
            made = await subscribe(ask, "sanctum", receiver)
            for internal in (SUBSCRIPTIONS, "_headrace_schemas", "__consumer_offsets"):
                for member in ("topic", "dead_letter"):
                    wanted = {"topic": "sanctum", "callback_url": receiver.url, member: internal}
                    refused = await ask("POST", PATH, wanted)
                    assert (refused.status, refused.json["code"]) == (403, "internal-topic"), (member, internal)
            (cluster,) = (await ask("GET", "/v3/clusters")).json["data"]
            v2 = {"content-type": "application/vnd.kafka.v2+json"}
            reader = (
                (await ask("POST", "/consumers/inside", "{}", v2)).json["base_uri"].removeprefix("http://localhost")
            )
            for method, target, body, headers in (
                ("GET", f"/api/v1/topics/{SUBSCRIPTIONS}/partitions/0/messages", None, {}),
                ("GET", f"/api/v1/topics/{SUBSCRIPTIONS}/messages", None, {}),
                ("GET", f"/api/v1/topics/{SUBSCRIPTIONS}/stream", None, {}),
                ("POST", f"/api/v1/topics/{SUBSCRIPTIONS}/messages", "x", {}),
                ("POST", f"/api/v1/topics/sanctum/request?reply_topic={SUBSCRIPTIONS}", "x", {}),
                ("POST", "/topics/_headrace_schemas", "garbage", {}),
                ("POST", "/api/v1/consumer-groups/inside/members", {"topics": [SUBSCRIPTIONS]}, {}),
                ("POST", f"/topics/{SUBSCRIPTIONS}", '{"records":[{"value":"AA=="}]}', v2),
                ("POST", f"{reader}/subscription", {"topics": [SUBSCRIPTIONS]}, v2),
                (
                    "POST",
                    f"{reader}/assignments",
                    {"partitions": [{"topic": SUBSCRIPTIONS, "partition": 0}]},
                    v2,
                ),
            ):
                refused = await ask(method, target, body, headers)
                assert refused.status == 403, (method, target, refused.body)
                assert b"internal" in refused.body
            records = f"/v3/clusters/{cluster['cluster_id']}/topics/{SUBSCRIPTIONS}/records"
            assert (await ask("POST", records, {"value": {"data": ""}})).json["error_code"] == 40301
            await ask("POST", f"{reader}/subscription", {"topic_pattern": ".*(sanctum|_headrace|__).*"}, v2)
            assert (await ask("GET", f"{reader}/subscription")).json == {"topics": ["sanctum", "sanctum.dead-letter"]}
            assert (await ask("DELETE", reader)).status == 204
            assert (await ask("DELETE", f"{PATH}/{made['id']}")).status == 204

    conversation(bootstrap, talk, **ALLOWED)


def test_a_name_is_refused_when_one_of_its_addresses_leads_inside() -> None:
    rules = AddressRules()
    assert rules.check("example.com", ["93.184.216.34"]) == ["93.184.216.34"]
    with pytest.raises(AddressRefused):
        rules.check("example.com", ["93.184.216.34", "10.0.0.1"])
    assert AddressRules(["10.0.0.0/8"]).check("x", ["10.0.0.1"])
    assert AddressRules(["hooks.internal"]).check("hooks.internal", ["10.0.0.1"])
    with pytest.raises(AddressRefused):
        AddressRules(["hooks.internal"]).check("other.internal", ["10.0.0.1"])


def test_a_callback_is_taken_apart() -> None:
    callback = parse_callback("https://[2606:2800::1]:8443/a?b=c#d")
    assert (callback.authority, callback.target) == ("[2606:2800::1]:8443", "/a?b=c")
    assert parse_callback("http://example.com").target == "/"


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (None, True),
        ({"key": "eu-1"}, True),
        ({"key": {"prefix": "eu-"}}, True),
        ({"key": "eu"}, False),
        ({"headers": {"type": "order"}}, True),
        ({"headers": {"type": {"in": ["refund", "order"]}}}, True),
        ({"headers": {"missing": "x"}}, False),
        ({"headers": {"missing": {"exists": False}}}, True),
        ({"json": {"total": 10}}, True),
        ({"json": {"total": {"gte": 10, "lt": 11}}}, True),
        ({"json": {"total": {"gt": "9"}}}, False),
        ({"json": {"$.items.0.sku": "a"}}, True),
        ({"json": {"items.5.sku": {"exists": True}}}, False),
        ({"json": {"items.²": {"exists": True}}}, False),
        ({"json": {"items." + "9" * 5000: {"exists": True}}}, False),
        ({"json": {"vip": True}, "key": "eu-1"}, True),
        ({"json": {"vip": 1}}, False),
        ({"json": {"total": 10}, "key": "no"}, False),
    ],
)
def test_filters(described: dict[str, Any] | None, expected: bool) -> None:
    value = b'{"total": 10, "vip": true, "items": [{"sku": "a"}]}'
    assert matches(described, Record(0, 0, b"eu-1", value, (("type", b"order"),))) is expected


def test_pauses_double_up_to_the_most_and_heed_the_callback() -> None:
    subscription = PushSubscription(
        id="s", topic="t", group="g", callback_url="", secret="", dead_letter="d", initial_ms=100, max_ms=1000
    )
    assert [pause_ms(subscription, attempt, 1.0) for attempt in (1, 2, 3, 4, 5, 60)] == [100, 200, 400, 800, 1000, 1000]
    assert pause_ms(subscription, 1, 0.0) == 50
    assert pause_ms(subscription, 1, 0.0, retry_after=5) == 5000
    assert pause_ms(subscription, 1, 0.0, retry_after=86400) == 10_000


def test_a_delivery_is_refused_where_the_name_leads_inside_by_then() -> None:
    async def main() -> None:
        async with Receiver() as receiver:
            refused = await CallbackSender(AddressRules())(receiver.url, {}, b"x", 60.0)
            assert (refused.status, "not public" in refused.reason) == (0, True)
            assert not receiver.seen
            allowed = CallbackSender(AddressRules(["127.0.0.1"]))
            assert [(await allowed(receiver.url, {}, b"x", 60.0)).status for _ in range(3)] == [200] * 3
            await receiver.stop()
            await receiver.start()
            assert (await allowed(receiver.url, {}, b"x", 60.0)).status == 200
            allowed.close()

    asyncio.run(main())
