"""Real servers for the tests of clusters."""

from collections.abc import Iterator

import pytest

from headrace.cli.zookeeper import Ensemble
from tests.support.cli import run
from tests.support.zookeeper import zookeeper

__all__ = ["run", "zookeeper"]


@pytest.fixture(scope="session")
def _three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    with Ensemble(tmp_path_factory.mktemp("ensemble"), 3) as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(_three: Ensemble) -> Iterator[Ensemble]:
    """Three servers that serve; those that a test killed are started again after it."""
    yield _three
    for server in _three.servers:
        if not server.is_running():
            server.start()
