"""Any broker takes what is the controller's, and whoever asks gets the controller's answer, or an honest one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.client.core.quotas import alter_quotas_request
from headrace.net.peers import PeerUnreachable
from headrace.protocol.api import SUPPORTED, ApiKey
from headrace.protocol.encode import blank_response, encode_request, encode_response
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.peer import InternalApi, PeerMessage
from headrace.server.clustered.forwarding import CONTROLLER_APIS, refusal
from headrace.server.context import RequestInfo
from headrace.server.dispatch import decode_body
from headrace.testing.client import SimulatedClient
from headrace.testing.loop import run_virtual
from headrace.testing.network import SimulatedNetwork
from tests.support.handlers import versions
from tests.support.nodes import Cluster, Node, topics_request


class Trio:
    """Three brokers and a client, which asks the first."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork(5)
        self.cluster = Cluster()
        self.hosts = [self.network.host(f"b{number}") for number in (1, 2, 3)]
        self.nodes = [Node(self.cluster, host, n, host=host.name) for n, host in enumerate(self.hosts, 1)]
        self.killed: list[Node] = []
        self.client = SimulatedClient(self.network.host("c1"))

    def kill(self, number: int) -> None:
        self.hosts[number - 1].kill()
        self.killed.append(self.nodes[number - 1])

    async def create(self, *names: str, padding: int = 0) -> Any:
        request = topics_request(*names, padding=padding)
        return await self.client.ask(self.nodes[0].address, ApiKey.CREATE_TOPICS, 7, request)

    async def code(self) -> ErrorCode:
        answer = await self.create("orders")
        code = answer.topics[0].error_code
        assert isinstance(code, ErrorCode)
        return code

    def elapsed(self) -> float:
        return asyncio.get_running_loop().time()


@asynccontextmanager
async def trio(controller: int | None) -> AsyncIterator[Trio]:
    three = Trio()
    for node, host in zip(three.nodes, three.hosts, strict=True):
        await host.run(node.start(9092))
    three.cluster.controller = controller
    try:
        yield three
    finally:
        three.client.close()
        for node in three.nodes:
            if node not in three.killed:
                await node.stop()


def test_the_controller_answers_itself() -> None:
    async def main() -> None:
        async with trio(1) as three:
            assert await three.code() is ErrorCode.none
            assert [len(node.asked) for node in three.nodes] == [1, 0, 0]

    run_virtual(main)


def test_another_broker_sends_it_on_and_says_who_asked() -> None:
    async def main() -> None:
        async with trio(2) as three:
            answer = await three.create("orders", "payments")
            assert [topic.name for topic in answer.topics] == ["orders", "payments"]
            assert [len(node.asked) for node in three.nodes] == [0, 1, 0]
            (info,) = three.nodes[1].asked
            assert info.connection > 0
            asked = RequestInfo(ApiKey.CREATE_TOPICS, 7, "c1", "User:ANONYMOUS", "c1", connection=info.connection)
            assert info == asked._replace(forwarded_by=1)

    run_virtual(main)


def test_a_large_request_is_sent_on_whole() -> None:
    async def main() -> None:
        async with trio(2) as three:
            assert (await three.create("orders", padding=500)).topics[0].error_code is ErrorCode.none

    run_virtual(main)


def test_without_a_controller_a_request_waits_for_one() -> None:
    async def main() -> None:
        async with trio(None) as three:
            asyncio.get_running_loop().call_later(2, setattr, three.cluster, "controller", 3)
            assert await three.code() is ErrorCode.none
            assert len(three.nodes[2].asked) == 1

    run_virtual(main)


def test_without_a_controller_a_request_does_not_wait_for_long() -> None:
    async def main() -> None:
        async with trio(None) as three:
            began = three.elapsed()
            assert await three.code() is ErrorCode.not_controller
            assert 4 < three.elapsed() - began < 6

    run_virtual(main)


def test_a_request_follows_the_controller() -> None:
    """The broker that was asked believes in a controller that is none any more."""

    async def main() -> None:
        async with trio(2) as three:
            three.nodes[0].believed = 3
            asyncio.get_running_loop().call_later(1, setattr, three.nodes[0], "believed", 2)
            assert await three.code() is ErrorCode.none
            assert [len(node.asked) for node in three.nodes] == [0, 1, 0]

    run_virtual(main)


def test_a_controller_that_cannot_be_reached_is_waited_for() -> None:
    async def main() -> None:
        async with trio(2) as three:
            three.kill(2)
            asyncio.get_running_loop().call_later(2, setattr, three.cluster, "controller", 3)
            assert await three.code() is ErrorCode.none
            assert len(three.nodes[2].asked) == 1

    run_virtual(main)


def test_a_controller_that_dies_over_a_request_leaves_its_outcome_open() -> None:
    async def main() -> None:
        async with trio(2) as three:
            begun = asyncio.Event()

            async def work(request: Any, info: RequestInfo) -> None:
                begun.set()
                await asyncio.sleep(1000)

            three.nodes[1].work = work
            asked = asyncio.create_task(three.code())
            await begun.wait()
            three.cluster.controller = 3
            three.kill(2)
            assert await asked is ErrorCode.request_timed_out
            assert three.nodes[2].asked == []
            assert await three.code() is ErrorCode.none

    run_virtual(main)


def test_a_slow_request_does_not_keep_the_others() -> None:
    async def main() -> None:
        async with trio(2) as three:

            async def work(request: Any, info: RequestInfo) -> None:
                await asyncio.sleep(8 if request.topics[0].name == "slow" else 0)

            three.nodes[1].work = work
            other = SimulatedClient(three.network.host("c2"))
            slow = asyncio.create_task(
                other.ask(three.nodes[0].address, ApiKey.CREATE_TOPICS, 7, topics_request("slow"))
            )
            await asyncio.sleep(1)
            began = three.elapsed()
            assert await three.code() is ErrorCode.none
            assert three.elapsed() - began < 1
            assert (await slow).topics[0].error_code is ErrorCode.none
            other.close()

    run_virtual(main)


@pytest.mark.parametrize("controller", [1, 2])
def test_a_broker_asks_for_its_own_sake_in_the_name_of_who_asked_it(controller: int) -> None:
    async def main() -> None:
        async with trio(controller) as three:
            one, info = three.nodes[0], RequestInfo(ApiKey.CREATE_TOPICS, 7, "c1", "User:alice", "c1")
            answer = await one.forwarder.ask(
                info, topics_request("orders"), lambda entity: one.create_topics(one.context, entity, info)
            )
            assert answer.topics[0].name == "orders"
            forwarder = None if controller == 1 else 1
            assert three.nodes[controller - 1].asked == [info._replace(forwarded_by=forwarder)]

    run_virtual(main)


def test_an_error_of_the_controllers_handler_is_relayed() -> None:
    async def main() -> None:
        async with trio(2) as three:

            async def work(request: Any, info: RequestInfo) -> None:
                raise ZeroDivisionError

            three.nodes[1].work = work
            answer = await three.create("orders")
            assert answer.topics == ()

    run_virtual(main)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"api_key": int(ApiKey.METADATA), "version": 9}, ErrorCode.invalid_request),
        ({"api_key": int(ApiKey.CREATE_TOPICS), "version": 99}, ErrorCode.unsupported_version),
        ({"api_key": int(ApiKey.CREATE_TOPICS)}, ErrorCode.invalid_request),
    ],
)
def test_only_what_is_the_controllers_is_carried_out_for_other_brokers(values: dict[str, Any], code: ErrorCode) -> None:
    async def main() -> None:
        async with trio(2) as three:
            who = {"client_id": None, "principal": "User:a", "host": "h"}
            with pytest.raises(CodedError) as raised:
                await three.nodes[0].peers.send(2, InternalApi.FORWARD, PeerMessage({**who, **values}, b""))
            assert raised.value.code is code

    run_virtual(main)


def test_who_forwards_to_itself_would_be_a_loop_and_is_refused() -> None:
    async def main() -> None:
        async with trio(1) as three:
            with pytest.raises(PeerUnreachable):
                await three.nodes[0].peers.send(1, InternalApi.FORWARD, PeerMessage({}, b""))

    run_virtual(main)


REQUESTS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.CREATE_TOPICS: topics_request("a", "b"),
    ApiKey.DELETE_TOPICS: {
        "topics": [{"name": "a", "topic_id": None}, {"name": "b", "topic_id": None}],
        "topic_names": ["a", "b"],
        "timeout": 1000,
    },
    ApiKey.CREATE_PARTITIONS: {
        "topics": [{"name": name, "count": 3, "assignments": None} for name in "ab"],
        "timeout": 1000,
        "validate_only": False,
    },
    ApiKey.ALTER_CONFIGS: {
        "resources": [{"resource_type": 2, "resource_name": name, "configs": ()} for name in "ab"],
        "validate_only": False,
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: {
        "resources": [{"resource_type": 2, "resource_name": name, "configs": ()} for name in "ab"],
        "validate_only": False,
    },
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {
        "deletions": [{"name": name, "mechanism": 1} for name in "ab"],
        "upsertions": (),
    },
    ApiKey.ALTER_CLIENT_QUOTAS: alter_quotas_request([({"user": name}, {"producer_byte_rate": 1.0}) for name in "ab"]),
}


def _named(item: dict[str, Any]) -> str:
    if "entity" in item:
        (part,) = item["entity"]
        return str(part["entity_name"])
    return str(item.get("name") or item.get("user") or item["resource_name"])


@pytest.mark.parametrize(
    ("api_key", "version"),
    [
        (api_key, version)
        for api_key in REQUESTS
        for version in range(SUPPORTED[api_key].min, SUPPORTED[api_key].max + 1)
    ],
)
def test_a_refusal_names_all_that_was_asked_for(api_key: ApiKey, version: int) -> None:
    entity = decode_body(api_key, version, memoryview(encode_request(api_key, version, REQUESTS[api_key])))
    info = RequestInfo(api_key, version, None, "User:a", "h")
    values = refusal(info, entity, ErrorCode.not_controller, "none")
    assert encode_response(api_key, version, values)
    (items,) = (value for value in values.values() if isinstance(value, list))
    assert [_named(item) for item in items] == ["a", "b"]
    assert all(item["error_code"] is ErrorCode.not_controller for item in items)


def test_a_refused_election_names_every_partition() -> None:
    request = {"election_type": 0, "topic_partitions": [{"topic": "a", "partitions": [0, 1]}], "timeout": 1000}
    for version in range(SUPPORTED[ApiKey.ELECT_LEADERS].min, SUPPORTED[ApiKey.ELECT_LEADERS].max + 1):
        entity = decode_body(43, version, memoryview(encode_request(43, version, request)))
        info = RequestInfo(ApiKey.ELECT_LEADERS, version, None, "User:a", "h")
        values = refusal(info, entity, ErrorCode.not_controller, "none")
        assert encode_response(43, version, values)
        (topic,) = values["replica_election_results"]
        assert [p["error_code"] for p in topic["partition_result"]] == [ErrorCode.not_controller] * 2


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_ACLS))
def test_a_refusal_answers_every_acl_and_every_filter(version: int) -> None:
    acl = {"resource_type": 2, "resource_name": "a", "resource_pattern_type": 3, "principal": "User:a", "host": "*"}
    creations = [{**acl, "operation": 3, "permission_type": 3}] * 2
    anything = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1}
    filters = [{**anything, "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}] * 2
    for key, request, answered in (
        (ApiKey.CREATE_ACLS, {"creations": creations}, "results"),
        (ApiKey.DELETE_ACLS, {"filters": filters}, "filter_results"),
    ):
        entity = decode_body(key, version, memoryview(encode_request(key, version, request)))
        values = refusal(RequestInfo(key, version, None, "User:a", "h"), entity, ErrorCode.not_controller, "none")
        assert encode_response(key, version, values)
        assert [each["error_code"] for each in values[answered]] == [ErrorCode.not_controller] * 2


@pytest.mark.parametrize(
    "api_key",
    sorted(CONTROLLER_APIS & SUPPORTED.keys() - REQUESTS.keys() - {ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS}),
)
def test_every_other_refusal_has_a_place_for_the_whole(api_key: ApiKey) -> None:
    for version in range(SUPPORTED[api_key].min, SUPPORTED[api_key].max + 1):
        if (api_key, version) != (ApiKey.ELECT_LEADERS, 0):
            assert blank_response(api_key, version, 41)["error_code"] in (41, ErrorCode.not_controller)


def test_no_work_on_requests_is_left_when_brokers_stop() -> None:
    async def main() -> None:
        ended: list[str] = []

        async def wait_for_ever(request: Any, info: RequestInfo) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(request.topics[0].name)

        async with trio(2) as three:
            for node in three.nodes:
                node.work = wait_for_ever
            three.cluster.controller = 1
            here = asyncio.ensure_future(three.create("at the broker that was asked"))
            await asyncio.sleep(1)
            three.cluster.controller = 2
            other = SimulatedClient(three.network.host("c2"))
            request = topics_request("at another")
            there = asyncio.ensure_future(other.ask(three.nodes[0].address, ApiKey.CREATE_TOPICS, 7, request))
            await asyncio.sleep(1)
            assert [len(node.asked) for node in three.nodes] == [1, 1, 0]
            for node in reversed(three.nodes):
                await node.dispatcher.close()
                await node.gate.close()
            assert sorted(ended) == ["at another", "at the broker that was asked"]
            here.cancel()
            there.cancel()
            other.close()

    run_virtual(main)
