from collections.abc import Iterator

import pytest

from headrace.testing import Broker


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """One broker for all tests of this folder; each makes topics of its own."""
    with Broker({"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker.bootstrap
