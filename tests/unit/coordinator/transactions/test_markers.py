"""Which partitions need a marker: all but those that are known to be deleted."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from headrace.cluster.image import ClusterImage, PartitionState, Topic
from headrace.coordinator.errands import Errands
from headrace.coordinator.transactions.markers import Job, MarkerSender, is_gone
from headrace.protocol.errors import ErrorCode
from headrace.replication.transactions import TransactionMarker
from headrace.testing.loop import run_virtual

ID, OTHER = UUID(int=1), UUID(int=2)


def image(*topics: Topic, whole: bool = True) -> ClusterImage:
    made = ClusterImage(cluster_id="c", controller_id=0)
    for each in topics:
        made.put_topic(each)
    made.is_whole = whole
    return made


def topic(topic_id: UUID, partitions: int) -> Topic:
    state = PartitionState(replicas=(0,), isr=(0,), leader=0)
    return Topic(name="t", id=topic_id, partitions=(state,) * partitions)


@pytest.mark.parametrize("topic_id", [ID, None], ids=["with its id", "of a record without ids"])
def test_a_topic_that_is_not_known_is_deleted_only_for_who_knows_all_topics(topic_id: UUID | None) -> None:
    assert not is_gone(image(whole=False), ("t", 0), topic_id)
    assert is_gone(image(), ("t", 0), topic_id)


def test_a_partition_that_is_not_known_of_a_topic_that_is_comes_yet() -> None:
    assert not is_gone(image(topic(ID, 1)), ("t", 1), ID)


def test_a_topic_that_was_made_anew_with_fewer_partitions_is_another_one() -> None:
    assert is_gone(image(topic(OTHER, 1)), ("t", 1), ID)
    assert not is_gone(image(topic(OTHER, 1), whole=False), ("t", 1), ID)


def test_a_topic_that_was_made_anew_gets_the_marker_as_its_leader_may_have_been_ahead() -> None:
    assert not is_gone(image(topic(OTHER, 1)), ("t", 0), ID)


class FailingPeers:
    """Others, who cannot be asked for a reason that nobody has foreseen."""

    def __init__(self) -> None:
        self._asked = 0
        self.was_asked_often = asyncio.Event()

    async def ask(self, *_: Any, **__: Any) -> Any:
        self._asked += 1
        if self._asked == 3:
            self.was_asked_often.set()
        raise RuntimeError("a fault that nobody has foreseen")


@pytest.mark.parametrize("leader", [0, 1])
def test_a_marker_is_sent_again_whatever_kept_it_from_being_written(leader: int) -> None:
    marker = TransactionMarker(producer_id=1, producer_epoch=0, committed=True, coordinator_epoch=0)
    tries = 0

    async def append(topic: str, index: int, marker: TransactionMarker) -> ErrorCode:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RuntimeError("a fault that nobody has foreseen")
        return ErrorCode.none

    async def main() -> None:
        done = asyncio.Event()
        errands, peers = Errands(), FailingPeers()
        state = PartitionState(replicas=(leader,), isr=(leader,), leader=leader)
        known = image(Topic(name="t", id=ID, partitions=(state,)))
        sender = MarkerSender(
            broker_id=0,
            image=known,
            append=append,
            peers=peers,  # type: ignore[arg-type]
            spawn=errands.spawn,
        )
        sender.send(Job(marker, [("t", 0)], {"t": ID}, done=done.set, fenced=done.set, is_wanted=lambda: True))
        if leader:
            await peers.was_asked_often.wait()
            here = PartitionState(replicas=(0,), isr=(0,), leader=0)
            known.put_topic(Topic(name="t", id=ID, partitions=(here,)))
        await done.wait()
        await errands.cancel()

    run_virtual(main)
