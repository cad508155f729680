"""ARCHITECTURE.md: its map names every package, and each of its walks is what really runs.

A walk is followed by doing the thing, with every call of ours written down: its stops must come in that order.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import headrace
from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.spark.source.options import parse
from headrace.spark.source.reading import Rows
from headrace.spark.source.stream import StreamReader
from headrace.testing import Broker
from headrace.testing.client import SimulatedClient
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import run_virtual
from tests.support.asgi import Asker, conversation

PACKAGE: Final = Path(headrace.__file__).parent
DOCUMENT: Final = (PACKAGE.parents[1] / "ARCHITECTURE.md").read_text()
MOST_STOPS: Final = 10
ALONE: Final = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class Stop(NamedTuple):
    """A function by its file and qualified name."""

    file: str
    function: str


def walk_of(title: str) -> list[Stop]:
    """The stops that the document lists for a walk."""
    section = DOCUMENT.split(f"### {title}\n", 1)[1].split("\n#", 1)[0]
    return [Stop(*found) for found in re.findall(r"^\d+\. `([\w/]+\.py)` `([\w.]+)`", section, re.MULTILINE)]


class Calls:
    """Calls of functions in the package, in order, while it listens."""

    def __init__(self) -> None:
        self.made: list[Stop] = []
        self._root = f"{PACKAGE}/"

    def _note(self, frame: Any, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self._root):
            self.made.append(Stop(code.co_filename.removeprefix(self._root), code.co_qualname))

    @contextmanager
    def listening(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)


def check(title: str, calls: Calls) -> None:
    """Each stop of a walk is called, after the one before it."""
    stops = walk_of(title)
    assert 0 < len(stops) <= MOST_STOPS
    made = iter(calls.made)
    for stop in stops:
        assert stop in made, f"{title}: {stop.file} {stop.function} is not called there"


Talk = Callable[[SimulatedClient, Address, Calls], Awaitable[None]]


def on_a_cluster(talk: Talk) -> Calls:
    """Calls that brokers make during a conversation with the leader of a topic."""
    calls = Calls()

    async def main() -> None:
        cluster = SimulatedCluster(brokers=1, seed=1, settings=ALONE)
        await cluster.start()
        client = SimulatedClient(cluster.network.host("client"))
        synced = {"name": "flush.messages", "value": "1"}
        topic = {"name": "orders", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": [synced]}
        await client.ask(cluster[0].address, ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 5_000})
        await talk(client, cluster[0].address, calls)
        client.close()
        await cluster.stop()

    run_virtual(main, seed=1)
    return calls


async def find_coordinator(client: SimulatedClient, broker: Address, key: str, key_type: int) -> None:
    """Have the internal topic made, and wait, in virtual time, until its partition is loaded."""
    await client.ask(broker, ApiKey.FIND_COORDINATOR, 4, {"key_type": key_type, "coordinator_keys": [key]})
    await asyncio.sleep(3.0)


def test_the_map_names_every_package() -> None:
    in_map = set(re.findall(r"^  ([a-z_]+)/ ", DOCUMENT, re.MULTILINE))
    assert in_map == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_a_produce_request_goes_as_the_document_says() -> None:
    async def talk(client: SimulatedClient, broker: Address, calls: Calls) -> None:
        with calls.listening():
            assert (await client.produce(broker, "orders", b"v")).error_code == 0

    check("A produce request", on_a_cluster(talk))


def test_a_fetch_request_goes_as_the_document_says() -> None:
    async def talk(client: SimulatedClient, broker: Address, calls: Calls) -> None:
        await client.produce(broker, "orders", b"v")
        with calls.listening():
            _, values = await client.fetch(broker, "orders")
        assert values == [b"v"]

    check("A fetch request", on_a_cluster(talk))


def test_a_join_goes_as_the_document_says() -> None:
    async def talk(client: SimulatedClient, broker: Address, calls: Calls) -> None:
        await find_coordinator(client, broker, "g", 0)
        request = {
            "group_id": "g",
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
            "reason": None,
        }
        with calls.listening():
            assert (await client.ask(broker, ApiKey.JOIN_GROUP, 3, request)).error_code == 0

    check("A member joins a group", on_a_cluster(talk))


def test_a_commit_of_a_transaction_goes_as_the_document_says() -> None:
    async def talk(client: SimulatedClient, broker: Address, calls: Calls) -> None:
        await find_coordinator(client, broker, "t", 1)
        asked = {"transactional_id": "t", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        producer = await client.ask(broker, ApiKey.INIT_PRODUCER_ID, 4, asked)
        ids = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        added = {f"v3_and_below_{name}": value for name, value in ids.items()}
        added |= {"v3_and_below_transactional_id": "t"}
        added |= {"v3_and_below_topics": [{"name": "orders", "partitions": [0]}]}
        await client.ask(broker, ApiKey.ADD_PARTITIONS_TO_TXN, 3, added)
        with calls.listening():
            ended = {"transactional_id": "t", "committed": True, **ids}
            assert (await client.ask(broker, ApiKey.END_TXN, 3, ended)).error_code == 0
            await asyncio.sleep(1.0)  # of virtual time: the markers follow

    check("A transaction commits", on_a_cluster(talk))


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker({"auto.create.topics.enable": True}) as broker:
        yield broker.bootstrap


@pytest.mark.slow
def test_a_rest_publish_goes_as_the_document_says(bootstrap: str) -> None:
    calls = Calls()

    async def talk(ask: Asker) -> None:
        await ask("POST", "/api/v1/topics", {"name": "published"})
        with calls.listening():
            answer = await ask("POST", "/api/v1/topics/published/messages", b"v")
        assert answer.status in (200, 201), answer.body

    conversation(bootstrap, talk)
    check("A REST publish", calls)


@pytest.mark.slow
def test_a_micro_batch_goes_as_the_document_says(bootstrap: str) -> None:
    async def talk(ask: Asker) -> None:
        await ask("POST", "/api/v1/topics", {"name": "streamed"})
        await ask("POST", "/api/v1/topics/streamed/messages", b"v")

    conversation(bootstrap, talk)
    calls = Calls()
    options = {"bootstrap": bootstrap, "subscribe": "streamed", "startingOffsets": "earliest"}
    reader = StreamReader(Rows(parse(options), ["value"]))
    with calls.listening():
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        rows: Sequence[Any] = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
    assert sum(batch.num_rows for batch in rows) == 1
    check("A micro-batch", calls)
