"""Every route of the gateway and the registry, asked by nobody and by a user who has no rights at all.

The routes are taken from what is served, so that none can be added without being asked here: one that answers without
credentials, or tells or changes anything for a user without rights, fails unless it stands in one of the tables below.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from headrace.config import PLAIN_USERS
from headrace.gateway.schemas import mount_registry
from headrace.testing import Broker
from tests.support.asgi import Asker, Reply, conversation
from tests.unit.gateway.test_credentials import OWN, USERS, basic

pytestmark = pytest.mark.slow

SECRET = "sesame"
"""What the names of all that there is begin with: a user without rights must not be told of it."""
TOPIC, GROUP = f"{SECRET}-orders", f"{SECRET}-readers"
SUBJECT = f"{TOPIC}-value"
SCHEMA = json.dumps({"type": "record", "name": SECRET, "fields": []})
CLUSTER_ROUTES = "/v3/clusters/{cluster_id}"

OPEN_TO_ALL = {"GET /", "GET /healthz", "GET /readyz", "GET /health", "GET /metrics", "GET /openapi.json", "GET /docs"}
"""Answered to whoever asks: probes, counters without names, and the document."""
OPEN_TO_USERS = {
    "GET /schemas/types": "what the registry understands",
    "GET /v1/metadata/id": "the cluster's id, as every Metadata answer has it",
    "GET /v1/metadata/version": "the release",
    "GET /config": "how strict the registry is where nothing else is said",
    "GET /mode": "whether the registry takes schemas",
    "GET /contexts": "names of the contexts of what the user may read; the default one is always there",
    "GET /api/v1/cluster": "brokers, as every Metadata answer has them",
    "GET /brokers": "the same",
    "GET /v3/clusters": "the same",
    f"GET {CLUSTER_ROUTES}": "the same",
    f"GET {CLUSTER_ROUTES}/brokers": "the same",
    f"GET {CLUSTER_ROUTES}/brokers/{{broker_id}}": "the same",
}
"""Answered to every user who has logged in, whatever its rights, with what is not secret."""
LISTS = {
    "GET /api/v1/topics",
    "GET /api/v1/consumer-groups",
    "GET /api/v1/subscriptions",
    "GET /topics",
    "GET /subjects",
    "GET /schemas",
    "GET /schemas/ids/{id}/subjects",
    "GET /schemas/ids/{id}/versions",
    "GET /schemas/guids/{guid}/ids",
    "GET /associations/resources/{namespace}/{name}",
    f"GET {CLUSTER_ROUTES}/topics",
    f"GET {CLUSTER_ROUTES}/topics/-/configs",
    f"GET {CLUSTER_ROUTES}/consumer-groups",
    f"GET {CLUSTER_ROUTES}/brokers/{{broker_id}}/partition-replicas",
}
"""Answered with what the user may see, here nothing."""
OWN_THINGS = {"POST /consumers/{group}": "an instance, which the broker first hears of when it subscribes"}
"""What a user makes for itself, and may, without reaching anything that is not its own."""
REFUSED = (401, 403, 404)


class Place(NamedTuple):
    """What stands for the names in paths and bodies."""

    values: Mapping[str, str]

    def target(self, url: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: quote(self.values[self._key(url, found[1])], safe=""), url)

    def _key(self, url: str, name: str) -> str:
        key = f"{name} of {url.split('/')[1]}" if name == "id" else name
        return f"{key} of brokers" if name == "name" and "broker" in url else key


BODIES: dict[str, Any] = {
    "POST /api/v1/topics": {"name": f"{SECRET}-new"},
    "POST /api/v1/queues/{queue}/receive": {"max": 1, "wait_ms": 100},
    f"POST {CLUSTER_ROUTES}/topics": {"topic_name": f"{SECRET}-new"},
    "POST /api/v1/subscriptions": {"topic": TOPIC, "callback_url": "http://127.0.0.1:1/"},
    "POST /associations": {
        "resourceName": SECRET,
        "resourceNamespace": "n",
        "resourceId": "r",
        "resourceType": "topic",
        "associations": [{"subject": SUBJECT, "associationType": "value"}],
    },
}
"""Where an operation's example would not do."""


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    """Method, path, and the first media type and its example where the operation takes a body."""
    for url, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            media = "application/json" if "application/json" in content else next(iter(content), "")
            yield method.upper(), url, media, content.get(media, {}).get("example")


def body_of(name: str, example: Any) -> bytes:
    given = BODIES.get(name, example)
    if isinstance(given, dict) and "schema" in given:
        given = {"schema": SCHEMA}
    text = given if isinstance(given, str) else json.dumps(given)
    return b"" if given is None else text.replace('"orders"', f'"{TOPIC}"').encode()


def target_of(place: Place, name: str, url: str) -> str:
    query = {f"DELETE {CLUSTER_ROUTES}/acls": "?resource_type=TOPIC&pattern_type=ANY"}.get(name, "")
    return place.target(url) + query


async def furnished(ask: Asker) -> Place:
    """A topic, a group with a member, an instance, a subject and a subscription, all of the user `gateway`."""
    gateway = basic("gateway", "own")

    async def made(method: str, target: str, body: dict[str, Any], **headers: str) -> Any:
        answer = await ask(method, target, body, {**gateway, **headers})
        assert answer.status < 300, (target, answer)
        return answer.json

    await made("POST", "/api/v1/topics", {"name": TOPIC})
    member = await made("POST", f"/api/v1/consumer-groups/{GROUP}/members", {"topics": [TOPIC]})
    json_v2 = {"content-type": "application/vnd.kafka.v2+json"}
    await made("POST", f"/consumers/{GROUP}-2", {"name": "reader"}, **json_v2)
    schema = await made("POST", f"/subjects/{SUBJECT}/versions", {"schema": SCHEMA})
    described = (await ask("GET", f"/schemas/ids/{schema['id']}", None, gateway)).json
    subscription = await made("POST", "/api/v1/subscriptions", BODIES["POST /api/v1/subscriptions"])
    await made("POST", "/associations", BODIES["POST /associations"])
    cluster = (await ask("GET", "/api/v1/cluster", None, gateway)).json
    return Place(
        {
            "topic": TOPIC,
            "topic_name": TOPIC,
            "queue": TOPIC,
            "partition": "0",
            "partition_id": "0",
            "group": GROUP,
            "consumer_group_id": GROUP,
            "member": member["base_uri"].rpartition("/")[2],
            "consumer_id": "any",
            "instance": "reader",
            "id of api": subscription["id"],
            "id of schemas": str(schema["id"]),
            "id of associations": "r",
            "guid": described["guid"],
            "namespace": "n",
            "name": "retention.ms",
            "name of brokers": "log.retention.ms",
            "subject": SUBJECT,
            "version": "1",
            "cluster_id": cluster["cluster_id"],
            "broker_id": str(cluster["brokers"][0]["id"]),
        }
    )


def complaint(name: str, answer: Reply) -> str | None:
    """What is wrong with an answer to a user without rights."""
    if answer.status in REFUSED:
        return None
    if answer.status >= 300:
        return f"{answer.status}, which does not say that it is refused: {answer.body[:300]!r}"
    if name in OWN_THINGS:
        return None
    if name in OPEN_TO_ALL | OPEN_TO_USERS.keys() | LISTS:
        return f"it tells of {SECRET}: {answer.body[:300]!r}" if SECRET.encode() in answer.body else None
    return f"{answer.status}: {answer.body[:300]!r}"


async def state(ask: Asker) -> list[Any]:
    """What there is of all that could have been changed; members of groups come and go by themselves."""
    gateway = basic("gateway", "own")
    targets = (
        "/api/v1/topics",
        f"/api/v1/topics/{TOPIC}",
        f"/api/v1/topics/{TOPIC}/configs",
        "/api/v1/consumer-groups",
        "/api/v1/subscriptions",
        "/schemas",
        "/config",
        "/mode",
        "/associations/resources/n/sesame",
    )
    found = {target: (await ask("GET", target, None, gateway)).json for target in targets}
    for group in found["/api/v1/consumer-groups"]["groups"]:
        del group["state"]
    return list(found.values())


def test_no_route_answers_without_credentials_or_does_anything_without_rights() -> None:
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        PLAIN_USERS: USERS,
        "authorizer.class.name": "headrace",
        "super.users": "User:gateway",
        "group.initial.rebalance.delay.ms": 0,
    }
    seen: set[str] = set()
    complaints: list[str] = []

    async def talk(ask: Asker) -> None:
        place = await furnished(ask)
        before = await state(ask)
        for method, url, media, example in operations((await ask("GET", "/openapi.json")).json):
            name = f"{method} {url}"
            seen.add(name)
            target = target_of(place, name, url)
            body, headers = body_of(name, example), {"content-type": media} if media else {}
            if name not in OPEN_TO_ALL:
                answer = await ask(method, target, body, headers)
                if answer.status != 401:
                    complaints.append(f"{name} without credentials: {answer.status} {answer.body[:200]!r}")
            answer = await ask(method, target, body, {**headers, **basic("bob", "b:ob")})
            if (wrong := complaint(name, answer)) is not None:
                complaints.append(f"{name} without rights: {wrong}")
        assert await state(ask) == before

    with Broker(settings) as broker:
        own: dict[str, Any] = {"own": OWN, "push_allow": ("127.0.0.1",), "metrics": True}
        conversation(broker.bootstrap, talk, (mount_registry,), mechanism="PLAIN", **own)
    assert not complaints, "\n".join(complaints)
    assert not (OPEN_TO_ALL | OPEN_TO_USERS.keys() | OWN_THINGS.keys() | LISTS) - seen
