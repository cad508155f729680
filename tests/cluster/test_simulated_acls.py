"""ACLs in a cluster: asked for at any broker, decided by the controller for who asked, in force everywhere at once."""

from collections.abc import Awaitable, Callable
from typing import Any

from headrace.cluster.entries import EntryKind
from headrace.config import PLAIN_USERS
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing.client import SimulatedClient
from headrace.testing.cluster import PORT, Machine, SimulatedCluster
from headrace.testing.loop import run_virtual
from tests.support.acls import EVERY_ACL, TOPICS, USERS, Op, acl

SETTINGS = {
    PLAIN_USERS: USERS,
    "authorizer.class.name": "headrace",
    "super.users": "User:super",
    "auto.create.topics.enable": "true",
}


def told(story: Callable[[SimulatedCluster], Awaitable[None]]) -> None:
    async def main() -> None:
        cluster = SimulatedCluster(brokers=3, seed=3, settings=SETTINGS)
        for machine in cluster:
            machine.settings["listeners"] = f"SASL_PLAINTEXT://{machine.name}:{PORT}"
        await cluster.start()
        await story(cluster)
        await cluster.stop()

    run_virtual(main, 3, longest=3600)


async def login(cluster: SimulatedCluster, name: str, *machines: Machine) -> SimulatedClient:
    client = SimulatedClient(cluster.network.host(f"host of {name}"))
    for machine in machines or cluster.machines:
        await client.ask(machine.address, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        token = f"\0{name}\0{name}-secret".encode()
        answer = await client.ask(machine.address, ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token})
        assert answer.error_code is ErrorCode.none
    return client


async def create(client: SimulatedClient, machine: Machine, *acls: dict[str, Any]) -> ErrorCode:
    answer = await client.ask(machine.address, ApiKey.CREATE_ACLS, 3, {"creations": list(acls)})
    (code,) = {result.error_code for result in answer.results}
    return ErrorCode(code)


async def make(client: SimulatedClient, machine: Machine, name: str) -> ErrorCode:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 3, "assignments": [], "configs": []}
    asked = {"topics": [topic], "timeout": 30_000, "validate_only": False}
    answer = await client.ask(machine.address, ApiKey.CREATE_TOPICS, 5, asked)
    return ErrorCode(answer.topics[0].error_code)


def others(cluster: SimulatedCluster) -> list[Machine]:
    """The brokers that are not the controller."""
    controller = cluster.controller()
    return [machine for machine in cluster if machine is not controller]


def test_what_is_forwarded_to_the_controller_is_decided_for_who_asked() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        asked = others(cluster)[0]
        boss, alice = await login(cluster, "super"), await login(cluster, "literal")
        right = acl("literal", Op.CREATE, TOPICS, "mine")
        assert await create(alice, asked, right) is ErrorCode.cluster_authorization_failed
        assert await make(alice, asked, "mine") is ErrorCode.topic_authorization_failed
        assert await create(boss, asked, right) is ErrorCode.none
        assert await make(alice, asked, "mine") is ErrorCode.none
        assert await make(alice, asked, "theirs") is ErrorCode.topic_authorization_failed
        boss.close()
        alice.close()

    told(story)


def test_a_right_that_is_given_counts_at_every_broker_once_that_is_answered() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        boss, alice = await login(cluster, "super"), await login(cluster, "literal")
        asked = others(cluster)[-1]
        assert await make(boss, asked, "orders") is ErrorCode.none
        await cluster.until(cluster.is_whole, "the topic is whole")
        leader = cluster.leader("orders")
        denied = await alice.produce(leader.address, "orders", b"no")
        assert denied.error_code is ErrorCode.topic_authorization_failed
        assert await create(boss, asked, acl("literal", Op.WRITE, TOPICS, "orders")) is ErrorCode.none
        written = await alice.produce(leader.address, "orders", b"yes")
        assert written.error_code is ErrorCode.none
        gone = await boss.ask(asked.address, ApiKey.DELETE_ACLS, 3, {"filters": [EVERY_ACL]})
        assert len(gone.filter_results[0].matching_acls) == 1
        denied = await alice.produce(leader.address, "orders", b"no")
        assert denied.error_code is ErrorCode.topic_authorization_failed
        boss.close()
        alice.close()

    told(story)


def test_a_broker_that_comes_back_goes_by_what_was_changed_meanwhile() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        boss = await login(cluster, "super")
        away, there = others(cluster)
        assert await make(boss, there, "orders") is ErrorCode.none
        assert await create(boss, there, acl("literal", Op.READ, TOPICS, "orders")) is ErrorCode.none
        await away.stop()
        assert await create(boss, there, acl("prefixed", Op.READ, TOPICS, "orders")) is ErrorCode.none
        asked = {**EVERY_ACL, "principal_filter": "User:literal"}
        await boss.ask(there.address, ApiKey.DELETE_ACLS, 3, {"filters": [asked]})
        await away.start()
        await cluster.until(cluster.is_whole, "the topic is whole")
        for name, code in (("literal", ErrorCode.topic_authorization_failed), ("prefixed", ErrorCode.none)):
            client = await login(cluster, name, away)
            values = {"topics": [{"name": "orders"}], "allow_auto_topic_creation": False}
            found = await client.ask(away.address, ApiKey.METADATA, 7, values)
            assert found.topics[0].error_code is code
            client.close()
        boss.close()

    told(story)


def test_acls_survive_a_restart_of_all_brokers() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        boss = await login(cluster, "super")
        assert await create(boss, cluster[0], acl("literal", Op.READ, TOPICS, "orders")) is ErrorCode.none
        boss.close()
        await cluster.stop()
        await cluster.start()
        boss = await login(cluster, "super")
        for machine in cluster:
            found = await boss.ask(machine.address, ApiKey.DESCRIBE_ACLS, 3, EVERY_ACL)
            assert [each.resource_name for each in found.resources] == ["orders"]
        boss.close()

    told(story)


def test_the_entry_of_a_resource_goes_with_its_last_acl() -> None:
    async def story(cluster: SimulatedCluster) -> None:
        boss = await login(cluster, "super")
        assert await create(boss, cluster[0], acl("literal", Op.READ, TOPICS, "orders")) is ErrorCode.none
        assert cluster.ensemble.tree.names(f"/security/{EntryKind.ACL.value}")
        await boss.ask(cluster[0].address, ApiKey.DELETE_ACLS, 3, {"filters": [EVERY_ACL]})
        assert not cluster.ensemble.tree.names(f"/security/{EntryKind.ACL.value}")
        boss.close()

    told(story)
