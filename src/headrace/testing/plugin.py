"""Fixtures for pytest, found by themselves once Headrace is installed.

Every pytest run of our users imports this module, so it imports nothing of ours before a fixture is asked for.
"""

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .broker import Broker

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def headrace_broker() -> "Iterator[Broker]":
    """A broker in this process, shared by the tests of the session; `.bootstrap` is its address."""
    from .broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def headrace_topic(headrace_broker: "Broker", request: pytest.FixtureRequest) -> str:
    """The name of a new topic with one partition, which no other test uses."""
    name = topic_name(request.node.name, next(_numbers))
    headrace_broker.create_topic(name)
    return name


def topic_name(test_name: str, number: int) -> str:
    """A valid topic name that tells which test it belongs to."""
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", test_name).strip("-.")[:200]
    return f"{readable or 'topic'}-{number}"
