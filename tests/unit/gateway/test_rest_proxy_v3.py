"""REST Proxy's v3 against a broker: the resources of a cluster."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.testing import Broker
from tests.support.asgi import Asker, Reply, conversation


async def cluster(ask: Asker) -> str:
    """The path of the cluster."""
    (found,) = (await ask("GET", "/v3/clusters")).json["data"]
    return f"/v3/clusters/{found['cluster_id']}"


def local(url: str) -> str:
    return url.removeprefix("http://localhost")


async def shown(ask: Asker, path: str) -> Any:
    """A resource, which has its own address in it."""
    reply = await ask("GET", path)
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"] == "application/json"
    assert local(reply.json["metadata"]["self"]) == path
    return reply.json


async def linked(ask: Asker, value: Any, seen: set[str]) -> None:
    """Every link of a resource leads somewhere."""
    for link in _links(value):
        if link not in seen:
            seen.add(link)
            reply = await ask("GET", link)
            assert reply.status == 200 or (reply.status == 404 and link.endswith("/reassignment")), (link, reply.body)
            await linked(ask, reply.json, seen)


def _links(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (local(each) for name, each in value.items() if name in ("self", "related"))
        for each in value.values():
            yield from _links(each)
    elif isinstance(value, list):
        for each in value:
            yield from _links(each)


def refusal(reply: Reply) -> tuple[int, int]:
    assert reply.headers["content-type"] == "application/json", reply.body
    assert set(reply.json) == {"error_code", "message"}
    return reply.status, reply.json["error_code"]


def test_all_that_is_linked_is_there(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        root = await cluster(ask)
        topic = await ask("POST", f"{root}/topics", {"topic_name": "linked", "partitions_count": 1})
        assert topic.status == 201, topic.body
        await ask("POST", "/topics/linked", "x")
        commit = {"topic": "linked", "partition": 0, "offset": 0}
        await ask("POST", "/api/v1/consumer-groups/linked/offsets", commit)
        seen: set[str] = set()
        await linked(ask, await shown(ask, f"{root}/topics/linked"), seen)
        await linked(ask, (await shown(ask, f"{root}/consumer-groups/linked"))["lag_summary"], seen)
        await linked(ask, (await shown(ask, root))["controller"], seen)
        assert len(seen) > 20

    conversation(bootstrap, talk)


def test_topics_are_made_shown_grown_and_removed(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        root = await cluster(ask)
        wanted = {
            "topic_name": "v3-topic",
            "partitions_count": 2,
            "replication_factor": 1,
            "configs": [{"name": "retention.ms", "value": "86400000"}],
        }
        tried = await ask("POST", f"{root}/topics", {**wanted, "validate_only": True})
        assert (tried.status, tried.json["partitions_count"]) == (200, 2)
        made = await ask("POST", f"{root}/topics", wanted)
        assert made.status == 201, made.body
        assert local(made.headers["location"]) == f"{root}/topics/v3-topic"
        topic = await shown(ask, f"{root}/topics/v3-topic")
        assert topic == made.json
        assert topic["kind"] == "KafkaTopic"
        assert topic["metadata"]["resource_name"].endswith("/topic=v3-topic")
        assert (topic["partitions_count"], topic["replication_factor"], topic["is_internal"]) == (2, 1, False)
        operations = await ask("GET", f"{root}/topics/v3-topic?include_authorized_operations=true")
        assert "WRITE" in operations.json["authorized_operations"]
        grown = await ask("PATCH", f"{root}/topics/v3-topic", {"partitions_count": 3})
        assert (grown.status, grown.json["partitions_count"]) == (200, 3)
        partitions = await shown(ask, f"{root}/topics/v3-topic/partitions")
        assert [each["partition_id"] for each in partitions["data"]] == [0, 1, 2]
        await ask("POST", "/topics/v3-topic", "x", {"X-Partition": "1"})
        ends = await shown(ask, f"{root}/topics/v3-topic/partitions/1/offset")
        assert (ends["earliest_offset"], ends["latest_offset"]) == (0, 1)
        (replica,) = (await shown(ask, f"{root}/topics/v3-topic/partitions/1/replicas"))["data"]
        assert (replica["is_leader"], replica["is_in_sync"]) == (True, True)
        assert "v3-topic" in [each["topic_name"] for each in (await shown(ask, f"{root}/topics"))["data"]]
        assert (await ask("DELETE", f"{root}/topics/v3-topic")).status == 204
        assert refusal(await ask("GET", f"{root}/topics/v3-topic")) == (404, 40403)
        assigned = {"topic_name": "assigned-v3", "replicas_assignments": {"0": [replica["broker_id"]]}}
        assert (await ask("POST", f"{root}/topics", assigned)).json["partitions_count"] == 1

    conversation(bootstrap, talk)


def test_settings_of_topics_and_brokers_are_shown_and_changed(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        root = await cluster(ask)
        await ask("POST", f"{root}/topics", {"topic_name": "v3-settings"})
        configs = f"{root}/topics/v3-settings/configs"
        before = await shown(ask, f"{configs}/retention.ms")
        assert (before["is_default"], before["source"], before["topic_name"]) == (True, "DEFAULT_CONFIG", "v3-settings")
        assert (await ask("PUT", f"{configs}/retention.ms", {"value": "86400000"})).status == 204
        after = await shown(ask, f"{configs}/retention.ms")
        assert (after["value"], after["source"]) == ("86400000", "DYNAMIC_TOPIC_CONFIG")
        assert after["synonyms"][0]["source"] == "DYNAMIC_TOPIC_CONFIG"
        changes = [{"name": "cleanup.policy", "value": "compact"}, {"name": "retention.ms", "operation": "DELETE"}]
        tried = {"data": changes, "validate_only": True}
        assert (await ask("POST", f"{configs}:alter", tried)).status == 204
        assert (await shown(ask, f"{configs}/cleanup.policy"))["value"] == "delete"
        assert (await ask("POST", f"{configs}:alter", {"data": changes})).status == 204
        assert (await shown(ask, f"{configs}/cleanup.policy"))["value"] == "compact"
        assert (await shown(ask, f"{configs}/retention.ms"))["is_default"]
        assert (await ask("DELETE", f"{configs}/cleanup.policy")).status == 204
        every = (await shown(ask, f"{root}/topics/-/configs"))["data"]
        assert ("v3-settings", "cleanup.policy") in [(each["topic_name"], each["name"]) for each in every]
        (broker,) = (await shown(ask, f"{root}/brokers"))["data"]
        of_broker = f"{root}/brokers/{broker['broker_id']}/configs"
        assert (await shown(ask, f"{of_broker}/log.retention.ms"))["broker_id"] == broker["broker_id"]
        of_each = (await shown(ask, f"{root}/brokers/-/configs"))["data"]
        assert (broker["broker_id"], "log.retention.ms") in [(each["broker_id"], each["name"]) for each in of_each]
        assert (await ask("PUT", f"{configs}/retention.ms", {"value": "1000"})).status == 204
        (default,) = (
            each
            for each in (await shown(ask, f"{root}/topics/v3-settings/default-configs"))["data"]
            if each["name"] == "retention.ms"
        )
        assert (default["value"], default["source"], default["is_default"]) == (
            "604800000",
            "DEFAULT_CONFIG",
            True,
        )
        unknown = await ask("GET", f"{root}/topics/v3-settings/nothing")
        assert (unknown.status, unknown.json["error_code"]) == (404, 404)
        change = {"data": [{"name": "log.cleaner.threads", "value": "2"}]}
        assert (await ask("POST", f"{root}/broker-configs:alter", change)).status == 204
        (of_all,) = (await shown(ask, f"{root}/broker-configs"))["data"]
        assert (of_all["name"], of_all["value"], of_all["config_type"]) == ("log.cleaner.threads", "2", "BROKER")
        assert (await ask("DELETE", f"{root}/broker-configs/log.cleaner.threads")).status == 204
        assert (await ask("PUT", f"{of_broker}/log.cleaner.threads", {"value": "1"})).status == 204
        assert (await ask("DELETE", f"{of_broker}/log.cleaner.threads")).status == 204

    conversation(bootstrap, talk)


def test_groups_are_shown_with_their_members_and_lag(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        root = await cluster(ask)
        await ask("POST", f"{root}/topics", {"topic_name": "v3-lag", "partitions_count": 1})
        await ask("POST", "/api/v1/topics/v3-lag/messages", {"messages": [{"value": n} for n in range(5)]})
        wanted = {"topics": ["v3-lag"], "auto_offset_reset": "earliest"}
        member = (await ask("POST", "/api/v1/consumer-groups/v3-group/members", wanted)).json["base_uri"]
        await ask("GET", f"{local(member)}/messages?limit=2&wait_ms=5000")
        await ask("POST", f"{local(member)}/offsets")
        group = await shown(ask, f"{root}/consumer-groups/v3-group")
        assert (group["state"], group["type"], group["is_simple"]) == ("STABLE", "CLASSIC", False)
        assert group["partition_assignor"] == "range"
        (consumer,) = (await shown(ask, f"{root}/consumer-groups/v3-group/consumers"))["data"]
        assert consumer["client_id"] == "headrace-gateway"
        consumers = f"{root}/consumer-groups/v3-group/consumers/{consumer['consumer_id']}"
        assert await shown(ask, consumers) == consumer
        (assignment,) = (await shown(ask, f"{consumers}/assignments"))["data"]
        assert (assignment["topic_name"], assignment["partition_id"]) == ("v3-lag", 0)
        assert await shown(ask, f"{consumers}/assignments/v3-lag/partitions/0") == assignment
        lag = await shown(ask, f"{root}/consumer-groups/v3-group/lags/v3-lag/partitions/0")
        assert (lag["current_offset"], lag["log_end_offset"], lag["lag"]) == (2, 5, 3)
        assert lag["consumer_id"] == consumer["consumer_id"]
        assert (await shown(ask, f"{root}/consumer-groups/v3-group/lags"))["data"] == [lag]
        summary = await shown(ask, f"{root}/consumer-groups/v3-group/lag-summary")
        assert (summary["max_lag"], summary["total_lag"], summary["max_lag_topic_name"]) == (3, 3, "v3-lag")
        names = [each["consumer_group_id"] for each in (await shown(ask, f"{root}/consumer-groups"))["data"]]
        assert "v3-group" in names
        assert refusal(await ask("DELETE", f"{root}/consumer-groups/v3-group")) == (400, 40002)
        assert (await ask("DELETE", local(member))).status == 204
        assert (await ask("DELETE", f"{root}/consumer-groups/v3-group")).status == 204
        assert refusal(await ask("GET", f"{root}/consumer-groups/v3-group")) == (404, 40403)

    conversation(bootstrap, talk)


def test_acls_are_made_listed_and_removed() -> None:
    settings = {
        "authorizer.class.name": "headrace",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }
    acl = {
        "resource_type": "TOPIC",
        "resource_name": "orders",
        "pattern_type": "LITERAL",
        "principal": "User:alice",
        "host": "*",
        "operation": "READ",
        "permission": "ALLOW",
    }

    async def talk(ask: Asker) -> None:
        root = await cluster(ask)
        made = await ask("POST", f"{root}/acls", acl)
        assert (made.status, made.body) == (201, b"")
        (found,) = (await ask("GET", local(made.headers["location"]))).json["data"]
        assert {name: found[name] for name in acl} == acl
        more = [{**acl, "operation": "WRITE"}, {**acl, "resource_name": "bills", "pattern_type": "PREFIXED"}]
        assert (await ask("POST", f"{root}/acls:batch", {"data": more})).status == 201
        assert len((await shown(ask, f"{root}/acls"))["data"]) == 3
        only = (await ask("GET", f"{root}/acls?resource_type=TOPIC&resource_name=orders&operation=WRITE")).json["data"]
        assert [each["operation"] for each in only] == ["WRITE"]
        assert refusal(await ask("DELETE", f"{root}/acls")) == (400, 400)
        gone = await ask("DELETE", f"{root}/acls?resource_type=TOPIC&principal=User:alice")
        assert (gone.status, len(gone.json["data"])) == (200, 3)
        assert (await shown(ask, f"{root}/acls"))["data"] == []
        wrong = {**acl, "resource_type": "CLUSTER"}
        assert refusal(await ask("POST", f"{root}/acls", wrong)) == (400, 40002)
        assert refusal(await ask("POST", f"{root}/acls", {**acl, "permission": "ANY"})) == (400, 400)

    with Broker(settings) as broker:
        conversation(broker.bootstrap, talk)


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/v3/clusters/other", None, (404, 404)),
        ("GET", "{}/brokers/99", None, (404, 404)),
        ("GET", "{}/brokers/99/configs", None, (404, 404)),
        ("GET", "{}/brokers/x", None, (404, 404)),
        ("GET", "{}/topics/nowhere", None, (404, 40403)),
        ("GET", "{}/topics/nowhere/configs", None, (404, 40403)),
        ("GET", "{}/topics/v3-bad/configs/unheard.of", None, (404, 404)),
        ("GET", "{}/topics/v3-bad/partitions/9", None, (404, 40403)),
        ("GET", "{}/topics/v3-bad/partitions/0/replicas/99", None, (404, 404)),
        ("GET", "{}/topics/v3-bad/partitions/0/reassignment", None, (404, 404)),
        ("GET", "{}/consumer-groups/nobody", None, (404, 40403)),
        ("GET", "{}/acls?operation=FLY", None, (404, 404)),
        ("POST", "{}/topics", {"topic_name": "v3-bad"}, (400, 40002)),
        ("POST", "{}/topics", {"topic_name": "a b"}, (400, 400)),
        ("POST", "{}/topics", {"topic_name": "v3-many", "replication_factor": 9}, (400, 40002)),
        ("POST", "{}/topics", {"topic_name": "v3-gap", "replicas_assignments": {"1": [1]}}, (400, 400)),
        ("POST", "{}/topics", {"topic_name": "v3-set", "configs": [{"name": "no", "value": "1"}]}, (400, 40002)),
        ("POST", "{}/topics", "[", (400, 400)),
        ("PATCH", "{}/topics/v3-bad", {"partitions_count": 1}, (400, 40002)),
        ("PUT", "{}/topics/v3-bad/configs/retention.ms", {"value": "soon"}, (400, 40002)),
        ("PUT", "{}/topics/v3-bad/configs/retention.ms", {}, (400, 400)),
        ("POST", "{}/topics/v3-bad/configs:alter", {"data": [{"name": "a", "value": "1"}] * 2}, (400, 400)),
        ("POST", "{}/topics/v3-bad/configs:alter", {"data": [{"name": "a"}]}, (400, 400)),
    ],
)
def test_bad_input_has_confluents_numbers(
    bootstrap: str, method: str, path: str, body: Any, expected: tuple[int, int]
) -> None:
    async def talk(ask: Asker) -> None:
        root = await cluster(ask)
        await ask("POST", f"{root}/topics", {"topic_name": "v3-bad"})
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        assert refusal(await ask(method, path.format(root), text)) == expected

    conversation(bootstrap, talk)


def test_other_types_are_refused(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        root = await cluster(ask)
        assert refusal(await ask("GET", root, headers={"accept": "text/html"})) == (406, 406)
        xml = {"content-type": "application/xml"}
        assert refusal(await ask("POST", f"{root}/topics", "<topic/>", xml)) == (415, 415)

    conversation(bootstrap, talk)
