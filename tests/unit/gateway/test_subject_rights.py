"""Subjects of the registry, read and changed by those who may do so with the topics they belong to."""

from typing import Any

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
from headrace.gateway import subject_rights
from headrace.gateway.schemas import mount_registry
from headrace.testing import Broker
from tests.support.asgi import Asker, conversation
from tests.unit.gateway.test_credentials import OWN, USERS, basic

pytestmark = pytest.mark.slow
INT, LONG, BYTES = {"schema": '"int"'}, {"schema": '"long"'}, {"schema": '"bytes"'}
REFERRING = {"schema": '"int"', "references": [{"name": "x", "subject": "hidden-value", "version": 1}]}


def test_who_may_do_what_with_a_topic_may_do_it_with_its_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject_rights, "KNOWN_SECONDS", 0.0)
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
        for future in admin.create_topics([NewTopic(name, 1, 1) for name in ("orders", "hidden")]).values():
            future.result(30)

        def allow(kind: ResourceType, name: str, operation: AclOperation) -> None:
            pattern, permission = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
            acl = AclBinding(kind, name, pattern, "User:alice", "*", operation, permission)
            for future in admin.create_acls([acl]).values():
                future.result(30)

        async def talk(ask: Asker) -> None:
            alice, gateway = basic("alice", "s3cret"), basic("gateway", "own")
            orders, hidden = "/subjects/orders-value", "/subjects/hidden-value"
            for subject in (orders, hidden):
                assert (await ask("POST", f"{subject}/versions", INT, gateway)).status == 200
            assert (await ask("POST", "/subjects/hidden-key/versions", BYTES, gateway)).json["id"] == 2

            async def status(method: str, target: str, body: Any = None) -> int:
                answer = await ask(method, target, body, alice)
                if answer.status == 403:
                    assert answer.json["error_code"] == 40301
                return answer.status

            reads = (
                ("GET", f"{orders}/versions"),
                ("GET", f"{orders}/versions/1"),
                ("GET", "/contexts/./subjects/orders-value/versions/latest"),
                ("POST", orders, INT),
                ("POST", "/compatibility/subjects/orders-value/versions", INT),
                ("GET", "/schemas/ids/1"),
                ("GET", "/schemas/ids/1/schema?subject=orders-value"),
            )
            assert {await status(*each) for each in reads} == {403}
            for form in ("", "/schema"):
                refused = await ask("GET", f"/schemas/ids/2{form}?subject=later-value", None, alice)
                assert refused.status == 403
                assert b"hidden" not in refused.body
            assert (await ask("GET", f"{orders}/versions", None, basic("alice", "guess"))).status == 401
            assert (await ask("GET", "/subjects", None, alice)).json == []
            allow(ResourceType.TOPIC, "orders", AclOperation.DESCRIBE)
            assert {await status(*each) for each in reads} == {200}
            assert (await ask("GET", "/subjects", None, alice)).json == ["orders-value"]
            assert [each["subject"] for each in (await ask("GET", "/schemas", None, alice)).json] == ["orders-value"]
            assert (await ask("GET", "/schemas/ids/1/subjects", None, alice)).json == ["orders-value"]
            assert await status("GET", f"{hidden}/versions/1") == 403
            assert await status("GET", "/schemas/ids/1?subject=hidden-value") == 403

            for operation, method, target, body in (
                (AclOperation.WRITE, "POST", f"{orders}/versions", LONG),
                (AclOperation.DELETE, "DELETE", f"{orders}/versions/1", None),
                (AclOperation.ALTER_CONFIGS, "PUT", "/config/orders-value", {"compatibility": "NONE"}),
            ):
                assert await status(method, target, body) == 403
                allow(ResourceType.TOPIC, "orders", operation)
                assert await status(method, target, body) == 200
            assert await status("PUT", "/config/orders-value", {"alias": "hidden-value"}) == 200
            assert await status("GET", f"{orders}/versions/1") == 403
            assert await status("PUT", "/config/orders-value", {"alias": None}) == 200
            assert await status("POST", f"{orders}/versions", REFERRING) == 403

            (cluster,) = (await ask("GET", "/v3/clusters", None, alice)).json["data"]
            records = f"/v3/clusters/{cluster['cluster_id']}/topics/orders/records"
            for data, expected in (
                ({"type": "AVRO", "schema": '"string"', "subject": "hidden-value", "data": "x"}, 40301),
                ({"type": "AVRO", "schema": '"string"', "subject": ":.:hidden-value", "data": "x"}, 40301),
                ({"subject": "hidden-value", "data": 1}, 40301),
                ({"schema_id": 1, "subject": "hidden-value", "data": 1}, 40301),
                ({"subject": "orders-value", "data": 1}, 200),
                ({"schema_id": 2, "data": ""}, 40301),
                ({"schema_id": 1, "data": 1}, 200),
            ):
                produced = await ask("POST", records, {"value": data}, alice)
                assert produced.json["error_code"] == expected, (data, produced.body)
                assert "subject" in data or b"hidden" not in produced.body
            assert (await ask("GET", f"{hidden}/versions", None, gateway)).json == [1]

            assert await status("POST", "/subjects/later-value/versions", INT) == 403
            allow(ResourceType.TOPIC, "later", AclOperation.DESCRIBE)
            assert await status("POST", "/subjects/later-value/versions", INT) == 403
            allow(ResourceType.TOPIC, "later", AclOperation.CREATE)
            assert await status("POST", "/subjects/later-value/versions", INT) == 200
            assert await status("POST", "/subjects/no%20topic/versions", INT) == 403
            assert await status("PUT", "/config", {"compatibility": "NONE"}) == 403
            assert await status("PUT", "/mode/:.x:", {"mode": "READONLY"}) == 403
            assert await status("PUT", "/mode/orders-value?force=true", {"mode": "IMPORT"}) == 403
            allow(ResourceType.BROKER, "kafka-cluster", AclOperation.ALTER_CONFIGS)
            allow(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE)
            assert await status("PUT", "/config", {"compatibility": "NONE"}) == 200
            assert await status("PUT", "/mode/orders-value?force=true", {"mode": "IMPORT"}) == 200

        conversation(broker.bootstrap, talk, (mount_registry,), mechanism="PLAIN", own=OWN)
