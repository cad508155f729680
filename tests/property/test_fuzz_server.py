"""Whatever bytes arrive, the broker logs no traceback, keeps nothing, and serves the next client."""

from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from struct import pack
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.protocol.api import SUPPORTED
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.wire import Closed, Wire, batch_of, produce_request, request

SERVED = [(int(key), version) for key, served in SUPPORTED.items() for version in range(served.min, served.max + 1)]
PIECES = [b"\0", b"\1", b"\xff", b"\x7f", b"\0\0\0\1"]
bodies = st.binary(max_size=200) | st.lists(st.sampled_from(PIECES)).map(b"".join)
fuzz = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(
        {"auto.create.topics.enable": False, "headrace.audit": "topic", "headrace.audit.level": "all"}
    ) as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def failures() -> Iterator[list[str]]:
    """What the broker logged as its own fault."""
    found: list[str] = []

    def note(_: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if method in ("exception", "error", "critical"):
            found.append(str(event))
        return event

    before = structlog.get_config()["processors"]
    structlog.configure(processors=[note, *before])
    yield found
    structlog.configure(processors=before)


def send_and_part(wire: Wire) -> None:
    """Read what is answered until nothing more comes."""
    wire.socket.settimeout(0.05)
    with suppress(Closed, TimeoutError):
        while True:
            wire.receive_frame()


def assert_serves(broker: Broker) -> None:
    with Wire(broker.bootstrap) as wire:
        assert wire.ask(18, 0, request(18, 0)).error_code is ErrorCode.none


@fuzz
@given(st.binary(max_size=300))
def test_any_bytes(broker: Broker, failures: list[str], data: bytes) -> None:
    with Wire(broker.bootstrap) as wire, suppress(Closed):
        wire.send_bytes(data)
        wire.send_frame(data)
        send_and_part(wire)
    assert_serves(broker)
    assert not failures


@fuzz
@given(st.sampled_from(SERVED), bodies)
def test_any_body_under_a_sound_header(broker: Broker, failures: list[str], api: tuple[int, int], body: bytes) -> None:
    with Wire(broker.bootstrap) as wire, suppress(Closed):
        wire.send_body(*api, body)
        wire.send_frame(pack(">hhi", *api, 1) + body)
        send_and_part(wire)
    assert_serves(broker)
    assert not failures


@fuzz
@given(st.data())
def test_a_good_produce_request_with_any_bytes_changed(
    broker: Broker, failures: list[str], data: st.DataObject
) -> None:
    batch = bytearray(batch_of(b"value", b"other"))
    for _ in range(data.draw(st.integers(0, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    with Wire(broker.bootstrap) as wire, suppress(Closed):
        answer = wire.ask(0, 9, produce_request("t", bytes(batch), acks=data.draw(st.integers(-3, 3).filter(bool))))
        assert answer.responses[0].partition_responses[0].index == 0
    assert_serves(broker)
    assert not failures
