from collections.abc import Iterator

import pytest

from headrace.gateway import health
from headrace.testing import Broker


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """One broker for all tests of this folder; each makes topics of its own."""
    with Broker({"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker.bootstrap


@pytest.fixture
def patient_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is slow to answer counts as well: this machine may be busy with other tests."""
    monkeypatch.setattr(health, "_PROBE_SECONDS", 60.0)
