"""Changes of many partitions: as few records written as there are, and each who asked gets its own answer."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import UUID

from headrace.cluster.election import Rules
from headrace.cluster.image import ClusterImage, PartitionState, Topic
from headrace.cluster.leaders import Leaders, Offline
from headrace.cluster.metadata_writer import TopicSpec
from headrace.config import BrokerConfig
from headrace.protocol.errors import CodedError, ErrorCode
from tests.unit.cluster.test_metadata_writer import Broker, with_broker

Changes = Callable[[Topic], Mapping[int, PartitionState]]


def counting(broker: Broker) -> tuple[Leaders, list[int]]:
    """Leaders of a controller, and how many partitions each of the changes that reach it changes."""
    sizes: list[int] = []

    async def change(name: str, changes: Changes) -> Topic:
        def counted(topic: Topic) -> Mapping[int, PartitionState]:
            found = changes(topic)
            sizes.append(len(found))
            return found

        return await broker.controller.change_partitions(name, counted)

    return Leaders(change, broker.image, broker.config), sizes


def bumped(state: PartitionState, _rules: Rules, _offline: Offline) -> PartitionState:
    return replace(state, partition_epoch=state.partition_epoch + 1)


def refused(_state: PartitionState, _rules: Rules, _offline: Offline) -> PartitionState:
    raise CodedError(ErrorCode.fenced_leader_epoch)


def test_partitions_of_one_topic_are_changed_together() -> None:
    async def work(broker: Broker) -> None:
        await broker.controller.create_topic(TopicSpec(name="t", partitions=500))
        leaders, sizes = counting(broker)
        await asyncio.gather(*(leaders.change_one("t", index, bumped) for index in range(500)))
        assert sizes == [500]
        topic = broker.image.topic("t")
        assert topic is not None
        assert {state.partition_epoch for state in topic.partitions} == {1}

    with_broker(work)


def test_changes_of_one_partition_follow_one_another() -> None:
    async def work(broker: Broker) -> None:
        await broker.controller.create_topic(TopicSpec(name="t", partitions=1))
        leaders, _ = counting(broker)
        await asyncio.gather(*(leaders.change_one("t", 0, bumped) for _ in range(5)))
        topic = broker.image.topic("t")
        assert topic is not None
        assert topic.partitions[0].partition_epoch == 5

    with_broker(work)


def test_one_that_is_refused_is_told_so_alone() -> None:
    async def work(broker: Broker) -> None:
        await broker.controller.create_topic(TopicSpec(name="t", partitions=3))
        leaders, sizes = counting(broker)
        outcomes = await asyncio.gather(
            leaders.change_one("t", 0, bumped),
            leaders.change_one("t", 1, refused),
            leaders.change_one("t", 7, bumped),
            leaders.change_one("t", 2, bumped),
            return_exceptions=True,
        )
        codes = [outcome.code if isinstance(outcome, CodedError) else None for outcome in outcomes]
        assert codes == [None, ErrorCode.fenced_leader_epoch, ErrorCode.unknown_topic_or_partition, None]
        assert sizes == [2]

    with_broker(work)


def test_everyone_learns_that_a_topic_is_gone() -> None:
    async def work(broker: Broker) -> None:
        leaders, _ = counting(broker)
        changes = [leaders.change_one("gone", index, bumped) for index in range(3)]
        outcomes = await asyncio.gather(*changes, return_exceptions=True)
        assert [o.code for o in outcomes if isinstance(o, CodedError)] == [ErrorCode.unknown_topic_or_partition] * 3

    with_broker(work)


def test_what_comes_while_others_are_stored_is_stored_next() -> None:
    async def work(broker: Broker) -> None:
        await broker.controller.create_topic(TopicSpec(name="t", partitions=4))
        leaders, sizes = counting(broker)
        later: list[asyncio.Task[Topic]] = []

        def first(state: PartitionState, rules: Rules, offline: Offline) -> PartitionState:
            later.extend(asyncio.ensure_future(leaders.change_one("t", index, bumped)) for index in (1, 2, 3))
            return bumped(state, rules, offline)

        await leaders.change_one("t", 0, first)
        await asyncio.gather(*later)
        assert sizes == [1, 3]

    with_broker(work)


def test_a_store_that_fails_fails_everyone_who_asked() -> None:
    async def change(_name: str, changes: Changes) -> Topic:
        changes(Topic(name="t", id=UUID(int=1), partitions=(PartitionState(replicas=(1,), isr=(1,), leader=1),) * 2))
        raise CodedError(ErrorCode.not_controller)

    async def main() -> None:
        leaders = Leaders(change, ClusterImage(cluster_id="c", controller_id=1), BrokerConfig.parse({}))
        for _ in range(2):
            changes = [leaders.change_one("t", index, bumped) for index in range(2)]
            outcomes = await asyncio.gather(*changes, return_exceptions=True)
            assert [o.code for o in outcomes if isinstance(o, CodedError)] == [ErrorCode.not_controller] * 2

    asyncio.run(main())
