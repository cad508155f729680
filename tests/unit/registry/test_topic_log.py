"""The registry's log in a topic of a broker."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.client.admin import Admin
from headrace.client.aio.client import Client
from headrace.client.core.handshake import ConnectionSettings
from headrace.net.address import Address
from headrace.registry.errors import RegistryError
from headrace.registry.judging import Inline, Judge
from headrace.registry.parsing import Posted
from headrace.registry.service import Registry
from headrace.registry.topic_log import SETTINGS, TopicLog
from headrace.schema_log.records import TOPIC
from headrace.testing import Broker
from tests.support.unreadable import plant

pytestmark = pytest.mark.slow
GATEWAYS = 4
SCHEMAS = 1000


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@asynccontextmanager
async def gateway(bootstrap: str, judge: Judge) -> AsyncIterator[Registry]:
    host, port = bootstrap.split(":")
    settings = ConnectionSettings(client_id="registry", connect_timeout=60, request_timeout=120)
    client = Client([Address(host, int(port))], settings)
    async with client, Registry(TopicLog(lambda: client), judge).running() as registry:
        yield registry


def schema(number: int) -> Posted:
    fields = [{"name": f"f{number}", "type": "int", "default": 0}]
    return Posted(text=json.dumps({"type": "record", "name": "R", "fields": fields}))


def test_a_thousand_schemas_from_four_gateways_have_the_same_dense_ids_everywhere(broker: Broker) -> None:
    judge = Inline()

    async def everything() -> tuple[set[int], list[object]]:
        async with AsyncExitStack() as stack:
            gateways = [await stack.enter_async_context(gateway(broker.bootstrap, judge)) for _ in range(GATEWAYS)]

            async def some(which: int) -> list[int]:
                mine = gateways[which]
                return [(await mine.registered(f"s{n % 50}", schema(n))).id for n in range(which, SCHEMAS, GATEWAYS)]

            ids = [i for found in await asyncio.gather(*map(some, range(GATEWAYS))) for i in found]
            assert len(ids) == SCHEMAS
            for each in gateways:
                await each.catch_up()
            return set(ids), [each.state.subjects for each in gateways]

    async def again() -> object:
        async with gateway(broker.bootstrap, judge) as registry:
            await registry.catch_up()
            return registry.state.subjects

    ids, states = asyncio.run(everything())
    assert ids == set(range(1, SCHEMAS + 1))
    assert all(state == states[0] for state in states)
    broker.restart()
    assert asyncio.run(again()) == states[0]


def test_the_topic_keeps_every_record_for_ever(broker: Broker) -> None:
    async def one() -> None:
        async with gateway(broker.bootstrap, Inline()) as registry:
            await registry.registered("s", schema(1))

    asyncio.run(one())
    settings = Admin(broker.bootstrap).topic_overrides(TOPIC)
    assert settings == SETTINGS


def test_a_log_without_its_beginning_is_not_guessed_at(broker: Broker) -> None:
    async def twice() -> None:
        async with gateway(broker.bootstrap, Inline()) as registry:
            await registry.registered("s", schema(1))
            await registry.registered("s", schema(2))

    async def after() -> None:
        async with gateway(broker.bootstrap, Inline()) as registry:
            with pytest.raises(RegistryError, match="has lost records") as refused:
                await registry.catch_up()
            assert refused.value.code == 50001

    asyncio.run(twice())
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    for deleted in client.delete_records([TopicPartition(TOPIC, 0, 1)]).values():
        deleted.result(60)
    asyncio.run(after())


def test_schemas_are_registered_and_found_around_batches_that_nobody_can_read(broker: Broker) -> None:
    judge = Inline()

    async def everything() -> tuple[int, int, int]:
        async with gateway(broker.bootstrap, judge) as before:
            first = (await before.registered("s", schema(1))).id
            plant(broker, TOPIC)
            second = (await before.registered("s", schema(2))).id
        async with gateway(broker.bootstrap, judge) as after:
            return first, second, (await after.registered("s", schema(2))).id

    assert asyncio.run(everything()) == (1, 2, 2)
