"""Nothing acknowledged is lost, whatever order messages, elections, stops and returns come in."""

from random import Random

import pytest

from .replicas import World

STEPS = 4_500


@pytest.mark.parametrize("seed", range(12))
def test_what_was_acknowledged_is_on_every_member_of_the_isr(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(STEPS):
        world.step()
    assert len(world.acknowledged) > 20, "the schedule let nothing happen"
