"""The state of share-partitions that another broker coordinates: asked over a link, together, and again."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.coordinator.share.store import RoutedShareState
from headrace.net.peers import PeerUnreachable
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.share_state import (
    SharePartition,
    ShareState,
    ShareStateChange,
    ShareStateStore,
    StateBatch,
)
from tests.support.coordinator.world import World


class Link:
    """The other broker, over a link that may fail."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.failures = 0
        self.asked: list[int] = []
        """How many partitions there were in each request."""

    async def ask(self, broker_id: int, api_key: Any, version: int, values: Any, **_: Any) -> Any:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise PeerUnreachable(broker_id, "cut off", was_sent=True)
        self.asked.append(sum(len(topic["partitions"]) for topic in values["topics"]))
        return await self._world._serve(api_key, version, values)


@pytest.fixture
def world() -> Iterator[World]:
    world = World({"share.coordinator.state.topic.num.partitions": "1"})
    yield world
    world.close()


@pytest.fixture
def link(world: World) -> Link:
    return Link(world)


@pytest.fixture
def store(world: World, link: Link) -> ShareStateStore:
    return RoutedShareState(
        broker_id=2,
        coordinator=world.share,
        image=world.image,
        clock=world.clock,
        peers=link,  # type: ignore[arg-type]
    )


@pytest.fixture
def keys(world: World) -> list[SharePartition]:
    topic = world.topic("orders", 3)
    return [SharePartition("g", topic.id, index) for index in range(3)]


def test_everything_can_be_asked_of_another_broker(
    world: World, store: ShareStateStore, keys: list[SharePartition]
) -> None:
    key = keys[0]
    world.run(store.initialize(key, 1, 5))
    assert world.run(store.read(key, 3)) == ShareState(state_epoch=1, start_offset=5)
    batch = StateBatch(8, 9, 4, 5)
    change = ShareStateChange(state_epoch=1, leader_epoch=3, start_offset=7, delivery_complete_count=2, batches=[batch])
    world.run(store.write(key, change))
    assert world.run(store.read(key, 3)) == ShareState(state_epoch=1, start_offset=7, batches=(batch,))
    assert world.run(store.summary(key)) == world.run(world.share.summary(key))
    assert world.run(store.summary(key)).delivery_complete_count == 2
    world.run(store.delete(key))
    with pytest.raises(CodedError, match="was not initialized") as refused:
        world.run(store.read(key, 3))
    assert refused.value.code is ErrorCode.invalid_request


def test_what_is_asked_together_goes_in_one_request(
    world: World, store: ShareStateStore, link: Link, keys: list[SharePartition]
) -> None:
    async def together() -> None:
        first = asyncio.gather(*[store.initialize(key, 1, 0) for key in keys])
        await asyncio.sleep(0)
        await asyncio.gather(first, *[store.initialize(key, 2, 0) for key in (*keys, keys[0])])

    world.run(together())
    assert link.asked == [3, 3, 1], "nor are two of the same share-partition in one"


def test_a_link_that_fails_is_tried_again(
    world: World, store: ShareStateStore, link: Link, keys: list[SharePartition]
) -> None:
    link.failures = 1
    world.run(store.initialize(keys[0], 1, 5))
    assert world.run(world.share.summary(keys[0])).start_offset == 5


def test_who_finds_no_coordinator_for_long_is_told(
    world: World, store: ShareStateStore, link: Link, keys: list[SharePartition]
) -> None:
    link.failures = 10**9
    asked = world.loop.create_task(store.initialize(keys[0], 1, 5))
    world.settle()
    world.advance(60_000)
    with pytest.raises(CodedError, match="cut off") as refused:
        world.run(asyncio.wait_for(asked, 5))
    assert refused.value.code is ErrorCode.coordinator_not_available
