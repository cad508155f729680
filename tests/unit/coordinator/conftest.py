from collections.abc import Iterator

import pytest

from tests.support.coordinator.world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World({"group.initial.rebalance.delay.ms": "0"})
    yield world
    world.close()
