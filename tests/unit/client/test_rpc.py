"""Functions that are called over topics."""

import asyncio
import itertools
import json
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from headrace.client import NoReply, NotDelivered, Producer, RemoteError, Rpc, Undecodable
from headrace.client.handlers import App, Worker
from headrace.client.replying import request_headers
from headrace.testing import Broker

pytestmark = pytest.mark.slow
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": False}) as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(f"doubling-{next(_numbers)}", partitions=3)


def doubling(broker: Broker, topic: str) -> App:
    app = App(broker.bootstrap)

    @app.serve(topic)
    async def double(number: int) -> int:
        if number < 0:
            raise ValueError("it is negative")
        await asyncio.sleep(0.001)
        return number * 2

    return app


def test_a_call_returns_the_reply_or_tells_why_there_is_none(broker: Broker, topic: str) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        worker = asyncio.create_task(Worker(doubling(broker, topic)).run(stop))
        async with (
            asyncio.timeout(110),
            Rpc(broker.bootstrap, settings={"topic.metadata.propagation.max.ms": 300}) as rpc,
        ):
            assert await rpc.call(topic, 21, reply=int, timeout=60) == 42
            with pytest.raises(RemoteError, match="ValueError: it is negative"):
                await rpc.call(topic, -1, timeout=60)
            with pytest.raises(Undecodable):
                await rpc.call(topic, 1, reply=dict[str, int], timeout=60)
            with pytest.raises(NotDelivered, match="absent"):
                await rpc.call("absent", 1, timeout=60)
            stop.set()
            await worker
            with pytest.raises(NoReply, match=r"no reply from .* within 0\.2 s"):
                await rpc.call(topic, 1, timeout=0.2)

    asyncio.run(main())


def test_a_request_whose_reply_can_go_nowhere_keeps_no_other_from_its_own(broker: Broker, topic: str) -> None:
    async def main() -> None:
        stop = asyncio.Event()
        worker = asyncio.create_task(Worker(doubling(broker, topic)).run(stop))
        async with asyncio.timeout(110), Rpc(broker.bootstrap) as rpc:
            with Producer(broker.bootstrap) as producer:
                for reply_topic, partition in (("headrace.replies", 99), ("../nowhere", 0)):
                    producer.send(topic, 1, headers=request_headers(b"x", reply_topic, partition, None))
            assert await rpc.call(topic, 21, reply=int, timeout=60) == 42
            stop.set()
            await worker

    asyncio.run(main())


def test_no_reply_is_lost_while_servers_come_and_go_under_many_callers(broker: Broker, topic: str) -> None:
    async def ask(start: int, until: int, rpc: Rpc) -> list[int]:
        return [await rpc.call(topic, start + number, reply=int, timeout=60) for number in range(until)]

    async def main() -> list[list[int]]:
        first, others = asyncio.Event(), asyncio.Event()
        async with asyncio.timeout(110), AsyncExitStack() as stack:
            servers = [asyncio.create_task(Worker(doubling(broker, topic)).run(stop)) for stop in (first, others)]
            callers = [await stack.enter_async_context(Rpc(broker.bootstrap)) for _ in range(4)]
            await asyncio.gather(*(ask(0, 10, rpc) for rpc in callers))
            asking = [asyncio.create_task(ask(1000 * number, 150, rpc)) for number, rpc in enumerate(callers)]
            first.set()  # while they ask one server goes, and another comes
            servers.append(asyncio.create_task(Worker(doubling(broker, topic)).run(others)))
            found = await asyncio.gather(*asking)
            others.set()
            await asyncio.gather(*servers)
            return list(found)

    found = asyncio.run(main())
    assert found == [[2 * (start + number) for number in range(150)] for start in range(0, 4000, 1000)]


def test_requests_of_the_gateway_are_answered(broker: Broker, topic: str) -> None:
    broker.create_topic(f"{topic}.replies")
    url = f"{broker.http_url}/api/v1/topics/{topic}/request"

    def ask() -> bytes:
        request = urllib.request.Request(url, b"4", {"Content-Type": "text/plain"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
            return found

    async def main() -> bytes:
        stop = asyncio.Event()
        worker = asyncio.create_task(Worker(doubling(broker, topic)).run(stop))
        answer = await asyncio.to_thread(ask)
        stop.set()
        await worker
        return answer

    assert json.loads(asyncio.run(main()))["reply"]["value"] in (8, "8")
