"""Callers are the brokers' users, and nobody else's guests."""

import asyncio
import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headrace.config import PLAIN_USERS
from headrace.gateway.credentials import Caller, Clients, identify
from headrace.gateway.names import SUBSCRIPTIONS
from headrace.gateway.push import manager, routes
from headrace.gateway.push.model import PushSubscription
from headrace.gateway.push.sealing import Seal, SealError, read_keys
from headrace.gateway.settings import Account, Settings
from headrace.net.address import parse_bootstrap
from headrace.testing import Broker
from headrace.web.application import Application
from headrace.web.guard import Guard, RateLimit, host_name
from headrace.web.messages import Request, json_answer
from headrace.web.problem import Problem
from headrace.web.routes import Reply, Routes
from tests.support.asgi import Asker, conversation, scope_of
from tests.support.gateways import GatewayProcess
from tests.support.logins import ALICE, PASSWORD, SCRAM, Issuer, login_settings
from tests.support.webhook_receiver import Receiver
from tests.unit.gateway.test_streams import Line, Listener

pytestmark = pytest.mark.slow

USERS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_alice="s3cret" user_gateway="own" user_bob="b:ob";'
)
OWN = Account(username="gateway", password="own")


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", PLAIN_USERS: USERS}
    with Broker({**settings, "group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker.bootstrap


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@pytest.mark.usefixtures("patient_probes")
def test_names_and_passwords_go_to_the_brokers_which_decide(guarded: str) -> None:
    async def talk(ask: Asker) -> None:
        alice = basic("alice", "s3cret")
        assert (await ask("POST", "/api/v1/topics", {"name": "hers"}, alice)).status == 201
        assert (await ask("POST", "/topics/hers", "x", basic("bob", "b:ob"))).status == 200
        for wrong in ({}, basic("alice", "guess"), basic("nobody", "x"), {"Authorization": "Digest x"}):
            refused = await ask("POST", "/topics/hers", "x", wrong)
            assert refused.status == 401, refused.body
            assert "www-authenticate" in refused.headers
        assert (await ask("GET", "/readyz")).status == 200

    conversation(guarded, talk, mechanism="PLAIN", own=OWN)


def test_a_subscription_belongs_to_who_made_it(guarded: str) -> None:
    async def talk(ask: Asker) -> None:
        alice, bob = basic("alice", "s3cret"), basic("bob", "b:ob")
        await ask("POST", "/api/v1/topics", {"name": "theirs"}, alice)
        wanted = {"topic": "theirs", "callback_url": "http://127.0.0.1:1/"}
        made = await ask("POST", "/api/v1/subscriptions", wanted, alice)
        assert made.status == 201, made.body
        path = f"/api/v1/subscriptions/{made.json['id']}"
        assert (await ask("GET", path, headers=bob)).status == 404
        assert (await ask("DELETE", path, headers=bob)).status == 404
        assert (await ask("GET", "/api/v1/subscriptions", headers=bob)).json == {"subscriptions": []}
        assert (await ask("DELETE", path, headers=alice)).status == 204

    conversation(guarded, talk, mechanism="PLAIN", own=OWN, push_allow=("127.0.0.1",))


def test_one_user_does_not_take_all_subscriptions(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_OF_ONE_USER", 2)

    async def talk(ask: Asker) -> None:
        alice, bob = basic("alice", "s3cret"), basic("bob", "b:ob")
        await ask("POST", "/api/v1/topics", {"name": "shared-out"}, alice)
        wanted = {"topic": "shared-out", "callback_url": "http://127.0.0.1:1/"}
        own = [await ask("POST", "/api/v1/subscriptions", wanted, alice) for _ in range(3)]
        assert [made.status for made in own] == [201, 201, 409]
        assert own[2].json["code"] == "too-many-subscriptions"
        made = await ask("POST", "/api/v1/subscriptions", wanted, bob)
        assert made.status == 201
        assert (await ask("DELETE", f"/api/v1/subscriptions/{own[0].json['id']}", headers=alice)).status == 204
        again = await ask("POST", "/api/v1/subscriptions", wanted, alice)
        assert again.status == 201
        for each, who in ((own[1], alice), (again, alice), (made, bob)):
            await ask("DELETE", f"/api/v1/subscriptions/{each.json['id']}", headers=who)

    conversation(guarded, talk, mechanism="PLAIN", own=OWN, push_allow=("127.0.0.1",))


def test_nobody_reaches_a_subscription_by_a_name_without_its_password(guarded: str) -> None:
    async def talk(ask: Asker) -> None:
        alice, liar = basic("alice", "s3cret"), basic("alice", "guess")
        await ask("POST", "/api/v1/topics", {"name": "owned"}, alice)
        wanted = {"topic": "owned", "callback_url": "http://127.0.0.1:1/"}
        path = f"/api/v1/subscriptions/{(await ask('POST', '/api/v1/subscriptions', wanted, alice)).json['id']}"
        for method, asked in (
            ("GET", "/api/v1/subscriptions"),
            ("GET", path),
            ("GET", f"{path}/status"),
            ("POST", f"{path}/pause"),
            ("POST", f"{path}/resume"),
            ("DELETE", path),
        ):
            assert (await ask(method, asked, headers=liar)).status == 401, (method, asked)
        assert (await ask("GET", path, headers=alice)).json["state"] == "active"

    conversation(guarded, talk, mechanism="PLAIN", own=OWN, push_allow=("127.0.0.1",))


def test_made_up_passwords_drive_out_no_user(guarded: str) -> None:
    async def talk() -> None:
        clients = Clients(
            Settings(bootstrap=tuple(parse_bootstrap(guarded)), mechanism="PLAIN", own=OWN, most_clients=2)
        )
        known = clients.get(Caller("gateway", OWN))
        await known.cluster.any()
        for guess in range(5):
            clients.get(Caller("gateway", Account(username="gateway", password=str(guess))))
        assert clients.own() is known
        await clients.close()

    asyncio.run(talk())


def test_a_password_is_not_shown_where_an_account_is() -> None:
    assert "s3cret" not in repr(Settings(bootstrap=(), own=Account(username="gateway", password="s3cret")))


def test_a_member_is_no_other_users(guarded: str) -> None:
    async def talk(ask: Asker) -> None:
        alice, bob = basic("alice", "s3cret"), basic("bob", "b:ob")
        await ask("POST", "/api/v1/topics", {"name": "read"}, alice)
        made = await ask("POST", "/api/v1/consumer-groups/g/members", {"topics": ["read"]}, alice)
        path = made.json["base_uri"].removeprefix("http://localhost")
        assert (await ask("GET", f"{path}/messages", headers=bob)).status == 404
        assert (await ask("GET", f"{path}/messages", headers=alice)).status == 200

    conversation(guarded, talk, mechanism="PLAIN", own=OWN)


def request_with(headers: dict[str, str], state: dict[str, str] | None = None, method: str = "GET") -> Request:
    async def never() -> dict[str, object]:
        raise AssertionError("nothing is to be read")

    return Request({**scope_of(method, "/", headers), "state": state or {}}, never)


def test_who_calls_is_told_by_header_or_certificate() -> None:
    account = Account(username="carol", password="c")
    settings = Settings(bootstrap=(), mechanism="PLAIN", certificates={"carol.example": account})
    assert identify(request_with({}, {"certificate": "carol.example"}), settings) == Caller("carol", account)
    with pytest.raises(Problem):
        identify(request_with({}, {"certificate": "other.example"}), settings)
    claims = base64.urlsafe_b64encode(json.dumps({"sub": "dave"}).encode()).decode().rstrip("=")
    token = f"x.{claims}.y"
    assert identify(request_with({"Authorization": f"Bearer {token}"}), settings).principal == "sub:dave"
    opaque = identify(request_with({"Authorization": "Bearer opaque"}), settings)
    assert opaque.principal.startswith("token:")
    assert identify(request_with({}), Settings(bootstrap=())) == Caller()


@pytest.mark.parametrize("value", ["Basic !", "Basic " + base64.b64encode(b"no-colon").decode(), "Basic Og==", "x"])
def test_credentials_that_are_none_are_refused(value: str) -> None:
    with pytest.raises(Problem) as caught:
        identify(request_with({"Authorization": value}), Settings(bootstrap=(), mechanism="PLAIN"))
    assert caught.value.status == 401


@pytest.mark.parametrize(
    ("headers", "method", "status"),
    [
        ({"host": "localhost:8080"}, "POST", 0),
        ({"host": "127.0.0.1"}, "POST", 0),
        ({"host": "[::1]:8080"}, "POST", 0),
        ({"host": "queue.example.com"}, "POST", 0),
        ({"host": "evil.example"}, "GET", 421),
        ({"host": "localhost:80x"}, "GET", 421),
        ({}, "GET", 421),
        ({"host": "localhost", "origin": "http://localhost"}, "POST", 0),
        ({"host": "localhost", "origin": "https://app.example"}, "POST", 0),
        ({"host": "localhost", "origin": "http://evil.example"}, "POST", 403),
        ({"host": "localhost", "origin": "null"}, "POST", 403),
        ({"host": "localhost", "origin": "http://evil.example"}, "GET", 0),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, "DELETE", 403),
        ({"host": "localhost", "sec-fetch-site": "same-origin"}, "DELETE", 0),
    ],
)
def test_foreign_hosts_and_writes_from_other_sites_are_refused(
    headers: dict[str, str], method: str, status: int
) -> None:
    guard = Guard(hosts=["queue.example.com"], origins=["https://app.example"])
    try:
        guard.check(request_with(headers, method=method))
        found = 0
    except Problem as problem:
        found = problem.status
    assert found == status


def test_a_caller_over_its_rate_is_told_when_to_come_back() -> None:
    now = 0.0
    limit = RateLimit(2.0, 2, lambda: now)
    assert [limit.take(b"a") for _ in range(3)] == [0, 0, 0.5]
    assert limit.take(b"b") == 0
    now = 0.5
    assert limit.take(b"a") == 0


def test_too_many_requests_are_429_but_probes_are_answered() -> None:
    routes = Routes(tag="t")

    async def answer(_request: Request) -> object:
        return json_answer({})

    answers = {200: Reply("ok")}
    routes.add("GET", "/a", "A.", answer, answers=answers)  # type: ignore[arg-type]
    routes.add("GET", "/b", "B.", answer, answers=answers, name="b", is_open=True)  # type: ignore[arg-type]
    ask = Asker(Application([routes], guard=Guard(rate=1.0, clock=lambda: 0.0)))

    async def talk() -> None:
        assert (await ask("GET", "/a")).status == 200
        refused = await ask("GET", "/a")
        assert (refused.status, refused.headers["retry-after"]) == (429, "2")
        assert (await ask("GET", "/b")).status == 200

    import asyncio

    asyncio.run(talk())


def test_who_guesses_passwords_is_limited_by_address_and_users_are_not(guarded: str) -> None:
    async def talk(ask: Asker) -> None:
        alice = basic("alice", "s3cret")
        assert (await ask("GET", "/api/v1/cluster", headers=alice)).status == 200
        guesses = [await ask("GET", "/api/v1/cluster", headers=basic("bob", str(i))) for i in range(20)]
        assert [each.status for each in guesses] == [401] + [429] * 19
        assert int(guesses[1].headers["retry-after"]) >= 2
        assert [(await ask("GET", "/api/v1/cluster", headers=alice)).status for _ in range(6)] == [200] * 5 + [429]

    conversation(guarded, talk, guard=Guard(rate=5.0, clock=lambda: 0.0), mechanism="PLAIN", own=OWN)


def test_a_subscription_is_read_and_made_by_gateways_alone(guarded: str) -> None:
    async def talk(ask: Asker) -> None:
        alice = basic("alice", "s3cret")
        await ask("POST", "/api/v1/topics", {"name": "sealed"}, alice)
        headers = {"Authorization": "Bearer of-the-callback"}
        wanted = {"topic": "sealed", "callback_url": "http://127.0.0.1:1/", "group": "seal", "headers": headers}
        made = (await ask("POST", "/api/v1/subscriptions", wanted, alice)).json
        planted = PushSubscription(
            id="sub_" + "7" * 16,
            topic="sealed",
            group="planted",
            callback_url="http://127.0.0.1:1/planted",
            secret=made["secret"],
            dead_letter="sealed",
            principal="alice",
        )
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        bob = {"bootstrap.servers": guarded, **login, "sasl.username": "bob", "sasl.password": "b:ob"}
        producer = Producer(bob)
        producer.produce(SUBSCRIPTIONS, planted.encode(), f"subscription:{planted.id}", partition=0)
        producer.produce(SUBSCRIPTIONS, planted.encode(), "subscription:sub_" + "8" * 16, partition=0)
        assert producer.flush(30) == 0
        (stored,) = (record for record in read_all(bob, SUBSCRIPTIONS) if record[0] == f"subscription:{made['id']}")
        for hidden in (made["secret"], "of-the-callback", "sealed"):
            assert hidden.encode() not in stored[1]
        found = (await ask("GET", "/api/v1/subscriptions", headers=alice)).json["subscriptions"]
        states = {each["id"]: each["state"] for each in found if each["topic"] == "sealed"}
        assert states == {made["id"]: "active", planted.id: "paused"}
        path = f"/api/v1/subscriptions/{planted.id}"
        assert (await ask("POST", f"{path}/resume", headers=alice)).json["state"] == "active"
        for each in states:
            assert (await ask("DELETE", f"/api/v1/subscriptions/{each}", headers=alice)).status == 204

    keys = read_keys([base64.b64encode(bytes(range(32))).decode()])
    conversation(guarded, talk, mechanism="PLAIN", own=OWN, push_allow=("127.0.0.1",), push_keys=keys)


def read_all(client: dict[str, str], topic: str) -> list[tuple[str, bytes]]:
    consumer = Consumer({**client, "group.id": "reader", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[str, bytes]] = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            consumer.close()
            return found
        found.append(((message.key() or b"").decode(), message.value() or b""))


def test_keys_of_subscriptions_open_what_they_closed_and_a_new_one_goes_before_the_old() -> None:
    old, new = (base64.b64encode(bytes([i]) * 32).decode() for i in (1, 254))
    (key,) = read_keys(["# of 2026", "", f" {old} "])
    written = Seal([key]).close(b"{}")
    both = Seal(read_keys([new, old]))
    assert both.open(written) == both.open(both.close(b"{}")) == both.open(b"{}") == b"{}"
    assert [both.is_proof(each) for each in (written, b"{}")] == [True, False]
    for seal in (Seal(), Seal(read_keys([new]))):
        with pytest.raises(SealError, match="--push-keys"):
            seal.open(written)
    with pytest.raises(ValueError, match="line 2 is not 32 bytes"):
        read_keys([old, old[:-4]])


def test_host_names() -> None:
    assert [host_name(host) for host in ("A.b:1", "[::1]:2", "[::1]", "x:", "[::1", "x:1y")] == [
        "a.b",
        "::1",
        "::1",
        "",
        "",
        "",
    ]


def certificate(folder: Path, name: str, signer: str | None = None) -> Path:
    """A certificate with its key in one file, signed by another or by itself."""
    key, path = folder / f"{name}.key", folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={name}"]
    command += ["-keyout", str(key), "-out", str(path), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    if signer is not None:
        command += ["-CA", str(folder / f"{signer}.pem"), "-CAkey", str(folder / f"{signer}.key")]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.mark.slow
def test_a_certificate_stands_for_the_user_it_is_mapped_to(guarded: str, tmp_path: Path) -> None:
    certificate(tmp_path, "authority")
    server, client = certificate(tmp_path, "server"), certificate(tmp_path, "robot", "authority")
    users = tmp_path / "users.json"
    users.write_text(json.dumps({"robot": {"username": "alice", "password": "s3cret"}}))
    (tmp_path / "password").write_text("own\n")
    options = ["--tls-cert", str(server), "--tls-key", str(tmp_path / "server.key")]
    options += ["--client-ca", str(tmp_path / "authority.pem"), "--client-users", str(users)]
    options += ["--sasl-mechanism", "PLAIN", "--user", "gateway", "--password-file", str(tmp_path / "password")]
    with GatewayProcess(guarded, tmp_path / "log", *options) as gateway:
        assert gateway.url.startswith("https://")
        command = ["curl", "-s", "--cacert", str(server), f"{gateway.url}/api/v1/topics", "-w", "%{http_code}"]
        known = ["--cert", str(client), "--key", str(tmp_path / "robot.key")]
        printed = [
            subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout for more in ([], known)
        ]
        assert printed[0].endswith("401")
        assert printed[1].endswith("200"), printed[1]
        assert gateway.stop() == 0


def test_a_subscription_lends_no_right_of_the_gateways_own_user() -> None:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        PLAIN_USERS: USERS,
        "authorizer.class.name": "headrace",
        "super.users": "User:gateway",
    }
    with Broker(settings) as broker:
        client = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "gateway",
            "sasl.password": "own",
        }
        admin = AdminClient(client)
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in ("read", "letters", "others")]).values():
            future.result(30)

        def allow(kind: ResourceType, name: str, operation: AclOperation) -> None:
            acl = AclBinding(
                kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW
            )
            for future in admin.create_acls([acl]).values():
                future.result(30)

        async def talk(ask: Asker) -> None:
            alice = basic("alice", "s3cret")
            wanted = {
                "topic": "read",
                "group": "hers",
                "dead_letter": "letters",
                "callback_url": "http://127.0.0.1:1/",
            }
            for kind, name, operation in (
                (ResourceType.TOPIC, "read", AclOperation.READ),
                (ResourceType.TOPIC, "letters", AclOperation.WRITE),
                (ResourceType.GROUP, "hers", AclOperation.DESCRIBE),
                (ResourceType.GROUP, "hers", AclOperation.READ),
            ):
                refused = await ask("POST", "/api/v1/subscriptions", wanted, alice)
                assert refused.status == 403, (name, operation, refused.body)
                allow(kind, name, operation)
            made = await ask("POST", "/api/v1/subscriptions", wanted, alice)
            assert made.status == 201, made.body
            another = {**wanted, "group": "hers-too", "dead_letter": "others"}
            for kind, name, operation in (
                (ResourceType.GROUP, "hers-too", AclOperation.READ),
                (ResourceType.TOPIC, "others", AclOperation.DESCRIBE),
                (ResourceType.TOPIC, "others", AclOperation.WRITE),
            ):
                refused = await ask("POST", "/api/v1/subscriptions", another, alice)
                assert refused.status == 403, (name, operation, refused.body)
                allow(kind, name, operation)
            made = await ask("POST", "/api/v1/subscriptions", another, alice)
            assert made.status == 201, made.body

        conversation(broker.bootstrap, talk, mechanism="PLAIN", own=OWN, push_allow=("127.0.0.1",))


def test_a_right_that_is_withdrawn_ends_subscriptions_and_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "RIGHTS_SECONDS", 0.2)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        PLAIN_USERS: USERS,
        "authorizer.class.name": "headrace",
        "super.users": "User:gateway",
    }
    with Broker(settings) as broker:
        client = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "gateway",
            "sasl.password": "own",
        }
        admin = AdminClient(client)
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in ("read", "letters")]).values():
            future.result(30)
        acls = [
            AclBinding(kind, name, ResourcePatternType.LITERAL, "User:alice", "*", operation, AclPermissionType.ALLOW)
            for kind, name, operation in (
                (ResourceType.TOPIC, "read", AclOperation.READ),
                (ResourceType.TOPIC, "letters", AclOperation.WRITE),
                (ResourceType.GROUP, "hers", AclOperation.READ),
            )
        ]
        for future in admin.create_acls(acls).values():
            future.result(30)

        async def talk(ask: Asker) -> None:
            async with Receiver() as receiver:
                alice, own = basic("alice", "s3cret"), basic("gateway", "own")
                wanted = {
                    "topic": "read",
                    "group": "hers",
                    "dead_letter": "letters",
                    "callback_url": receiver.url,
                    "from": "earliest",
                }
                made = await ask("POST", "/api/v1/subscriptions", wanted, alice)
                assert made.status == 201, made.body
                place = f"/api/v1/subscriptions/{made.json['id']}"

                async def state() -> tuple[str, str | None]:
                    status = (await ask("GET", f"{place}/status", None, alice)).json
                    return status["state"], status["last_error"]

                assert (await ask("POST", "/topics/read", {"value": 1}, own)).status == 200
                await receiver.until(lambda: len(receiver.taken) == 1)
                assert (await state())[0] == "active"
                events = Listener(ask, "/api/v1/topics/read/stream?from=earliest", alice)
                line = Line(ask, "/api/v1/topics/read/stream?from=earliest", alice)
                assert json.loads((await anext(events.events()))["data"])["value"] == 1
                assert (await line.next())["type"] == "websocket.accept"
                assert (await line.record())["value"] == 1
                removed = AclBindingFilter(
                    ResourceType.TOPIC,
                    "read",
                    ResourcePatternType.LITERAL,
                    "User:alice",
                    "*",
                    AclOperation.READ,
                    AclPermissionType.ALLOW,
                )
                for future in admin.delete_acls([removed]).values():
                    future.result(30)
                while (await state())[0] == "active":
                    pass
                assert await state() == ("paused", "paused: User:alice may no longer READ TOPIC read")
                assert (await ask("POST", "/topics/read", {"value": 2}, own)).status == 200
                assert (await anext(events.events()))["event"] == "problem"
                assert await line.next() == {
                    "type": "websocket.close",
                    "code": 1008,
                    "reason": "topic authorization failed",
                }
                await asyncio.gather(events.task, line.task)
                assert (await ask("POST", f"{place}/resume", None, alice)).status == 403
                await asyncio.sleep(0.5)
                assert len(receiver.taken) == 1
                for future in admin.create_acls(acls[:1]).values():
                    future.result(30)
                assert (await ask("POST", f"{place}/resume", None, alice)).status == 200
                await receiver.until(lambda: len(receiver.taken) == 2)

        conversation(broker.bootstrap, talk, mechanism="PLAIN", own=OWN, push_allow=("127.0.0.1",))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def everything(issuer: Issuer) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FIRST_DELAY", "LONGEST_DELAY", "LONGEST_PAUSE"):
            patch.setattr(f"headrace.security.failed_logins.{name}", 0.01)
        with Broker(login_settings(issuer, connections_max_reauth_ms="1500")) as broker:
            yield broker.bootstrap


@pytest.mark.usefixtures("patient_probes")
@pytest.mark.parametrize("mechanism", SCRAM)
def test_names_and_passwords_go_to_the_brokers_by_scram_which_they_never_see(
    everything: str, issuer: Issuer, mechanism: str
) -> None:
    async def talk(ask: Asker) -> None:
        alice, topic = basic(ALICE, PASSWORD), f"by-{mechanism.lower()}"
        assert (await ask("POST", "/api/v1/topics", {"name": topic}, alice)).status == 201
        assert (await ask("POST", f"/topics/{topic}", "x", alice)).status == 200
        for wrong in (basic(ALICE, "guess"), basic("nobody", PASSWORD)):
            assert (await ask("POST", f"/topics/{topic}", "x", wrong)).status == 401
        bearer = {"Authorization": f"Bearer {issuer.token()}"}
        assert (await ask("POST", f"/topics/{topic}", "x", bearer)).status == 200
        for token in (issuer.token(seconds=-60), issuer.token(aud="another"), "no.token.atall"):
            answer = await ask("POST", f"/topics/{topic}", "x", {"Authorization": f"Bearer {token}"})
            assert answer.status == 401, answer.body
        assert (await ask("GET", "/readyz")).status == 200

    conversation(everything, talk, mechanism=mechanism, own=Account(username=ALICE, password=PASSWORD))


def test_requests_go_on_when_sessions_end(everything: str) -> None:
    async def talk(ask: Asker) -> None:
        alice = basic(ALICE, PASSWORD)
        assert (await ask("POST", "/api/v1/topics", {"name": "sessions"}, alice)).status == 201
        until = asyncio.get_running_loop().time() + 3.5
        while asyncio.get_running_loop().time() < until:
            answer = await ask("POST", "/topics/sessions", "x", alice)
            assert answer.status == 200, answer.body

    conversation(everything, talk, mechanism="SCRAM-SHA-512", own=Account(username=ALICE, password=PASSWORD))
