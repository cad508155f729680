"""Nothing acknowledged is lost, whatever order messages, elections, stops and returns come in."""

from random import Random

import pytest

from headrace.cluster.image import PartitionState
from tests.support.replicas import World

STEPS = 4_500


@pytest.mark.parametrize("seed", range(12))
def test_what_was_acknowledged_is_on_every_member_of_the_isr(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(STEPS):
        world.step()
    assert len(world.acknowledged) > 20, "the schedule let nothing happen"


def test_a_new_replica_that_its_leader_has_not_heard_of_yet_comes_into_the_isr_once_it_has() -> None:
    world = World(Random(1), min_isr=1)
    leader, follower = world.replicas[:2]
    world.states = [PartitionState(replicas=(0,), isr=(0,), leader=0)]
    for replica in (leader, follower):
        replica.disk.kill()
        replica.start()
        world.registered[replica.id] = replica.epoch
    leader.hear(0)
    world.rng = Random(leader.id)
    for _ in range(30):
        world.produce()
    world.states.append(PartitionState(replicas=(1, 0), isr=(0,), leader=0, partition_epoch=1, adding=(1,)))
    follower.hear(1)

    def converse() -> None:
        for _ in range(200):
            world.send_request()
            world.deliver_request()
            world.deliver_answer()

    converse()
    leader.hear(1)
    for call in world.later:
        call()
    converse()
    assert [wish.isr for wish in world.wishes] == [{0, 1}]
