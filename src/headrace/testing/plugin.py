"""Fixtures for pytest, found by themselves once Headrace is installed.

| fixture | what it is |
|---|---|
| `headrace_broker` | a broker in this process, shared by the tests of the session |
| `headrace_topic` | a new topic for one test; `@pytest.mark.headrace_topic(partitions=3, cleanup_policy="compact")` |
| `headrace_gateway`, `headrace_registry` | the URLs of its HTTP gateway and its schema registry |
| `headrace_options` | what the shared broker is made with; override it in `conftest.py` |
| `make_headrace_broker` | makes brokers for one test: `make_headrace_broker(config={"num.partitions": 3})` |

Every pytest run of our users imports this module, so it imports nothing of ours before a fixture is asked for.
"""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .broker import Broker

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "headrace_topic(partitions=1, **configs): how the topic of the fixture headrace_topic is made"
    )


@pytest.fixture(scope="session")
def headrace_options() -> dict[str, Any]:
    """Arguments of the shared `Broker`: `config`, `topics`, `gateway`, `registry`, `data`."""
    return {}


@pytest.fixture(scope="session")
def headrace_broker(request: pytest.FixtureRequest, headrace_options: dict[str, Any]) -> "Iterator[Broker]":
    """A broker in this process, shared by the tests of the session; `.bootstrap` is its address.

    `@pytest.mark.parametrize("headrace_broker", [{"config": {...}}], indirect=True)` gives a test one of its own.
    """
    from .broker import Broker

    with Broker(**{**headrace_options, **getattr(request, "param", {})}) as broker:
        yield broker


@pytest.fixture
def headrace_topic(headrace_broker: "Broker", request: pytest.FixtureRequest) -> str:
    """The name of a new topic, which no other test uses; it has one partition unless the test is marked."""
    name = topic_name(request.node.name, next(_numbers))
    mark = request.node.get_closest_marker("headrace_topic")
    return headrace_broker.create_topic(name, **(mark.kwargs if mark else {}))


@pytest.fixture(scope="session")
def headrace_gateway(headrace_broker: "Broker") -> str:
    """The URL of an HTTP gateway beside the shared broker."""
    return headrace_broker.http_url


@pytest.fixture(scope="session")
def headrace_registry(headrace_broker: "Broker") -> str:
    """The URL of a schema registry beside the shared broker, for `schema.registry.url`."""
    return headrace_broker.registry_url


@pytest.fixture
def make_headrace_broker() -> "Iterator[Callable[..., Broker]]":
    """Makes running brokers with the arguments of `Broker`; they stop with the test."""
    from .broker import Broker

    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(Broker(*args, **options))


def topic_name(test_name: str, number: int) -> str:
    """A valid topic name that tells which test it belongs to."""
    readable = re.sub(r"[^a-zA-Z0-9._-]+", "-", test_name).strip("-.")[:200]
    return f"{readable or 'topic'}-{number}"
