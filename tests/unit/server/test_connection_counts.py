"""Who is let in: at one time, and in a second, of all and of one address."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import pytest

from headrace.config.connection_caps import are_caps, connection_caps
from headrace.protocol.errors import ErrorCode
from headrace.server.connection_counts import (
    MOST_ADDRESSES,
    Caps,
    ConnectionCounts,
    ListenerCounts,
    Refusal,
    RefusalReason,
    is_loopback,
)
from headrace.testing import Broker
from tests.support.quotas import set_quotas
from tests.support.wire import Wire, request

pytestmark = pytest.mark.slow

NEAR, FAR, OTHER = "127.0.0.1", "10.0.0.1", "10.0.0.2"
UNLIMITED = 1 << 40


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def counts_of(clock: Clock, caps: Caps, quotas: dict[str, float] | None = None) -> ConnectionCounts:
    named = {address: (rate, address) for address, rate in (quotas or {}).items()}
    return ConnectionCounts(cast(asyncio.AbstractEventLoop, clock), lambda: caps, quota=named.get)


def come(counts: ConnectionCounts, address: str, times: int = 1) -> list[RefusalReason]:
    """So many connections of an address; why some are not taken."""
    reasons = []
    for _ in range(times):
        refusal: Refusal | None = counts.refusal(7, address)
        if refusal is None:
            counts.opened(address)
        else:
            reasons.append(refusal.reason)
    return reasons


def test_one_address_is_capped_and_others_are_taken(clock: Clock) -> None:
    counts = counts_of(clock, Caps(UNLIMITED, 3))
    assert come(counts, FAR, 5) == [RefusalReason.ADDRESS] * 2
    assert come(counts, OTHER) == []
    counts.closed(FAR)
    assert come(counts, FAR, 2) == [RefusalReason.ADDRESS]


def test_all_together_are_capped(clock: Clock) -> None:
    counts = counts_of(clock, Caps(3, UNLIMITED))
    assert come(counts, FAR, 2) == []
    assert come(counts, OTHER, 2) == [RefusalReason.BROKER]


def test_an_address_with_a_cap_of_its_own_has_that_one(clock: Clock) -> None:
    counts = counts_of(clock, Caps(UNLIMITED, 2, overrides={FAR: 4, OTHER: 0}, remote_address=1))
    assert len(come(counts, FAR, 9)) == 5
    assert len(come(counts, OTHER, 9)) == 9
    assert len(come(counts, NEAR, 9)) == 7


def test_only_remote_addresses_are_capped_by_default(clock: Clock) -> None:
    counts = counts_of(clock, Caps(UNLIMITED, UNLIMITED, remote_address=2, remote_rate=1000))
    assert come(counts, NEAR, 5000) == []
    assert come(counts, FAR, 3) == [RefusalReason.ADDRESS]


def test_all_addresses_of_one_subscriber_of_ipv6_are_capped_together(clock: Clock) -> None:
    proxy = "2001:db8:0:1::5"
    counts = counts_of(clock, Caps(UNLIMITED, UNLIMITED, overrides={proxy: 4}, remote_address=3, remote_rate=5))
    assert come(counts, proxy, 9) == [RefusalReason.ADDRESS] * 5, (
        "it has a number of its own, and takes none of others'"
    )
    taken = [not come(counts, f"2001:db8:0:1::{number:x}") for number in range(16, 26)]
    assert taken == [True] * 3 + [False] * 7
    assert come(counts, "2001:db8:0:2::1") == []
    counts.closed("2001:db8:0:1::10")
    assert come(counts, "2001:db8:0:1:ffff::1", 2) == [RefusalReason.ADDRESS]
    for address in [*[proxy] * 4, *(f"2001:db8:0:1::{number:x}" for number in (17, 18)), "2001:db8:0:1:ffff::1"]:
        counts.closed(address)
    counts.closed("2001:db8:0:2::1")
    assert not counts._per_address, "nothing is remembered of who is gone"


def test_all_addresses_of_one_subscriber_of_ipv6_have_one_rate(clock: Clock) -> None:
    counts = counts_of(clock, Caps(UNLIMITED, UNLIMITED, remote_rate=5))
    refused = [come(counts, f"2001:db8::{number:x}") for number in range(1, 101)]
    assert sum(map(len, refused)) == 100 - 51
    assert come(counts, "2001:db8:0:1::1") == []


def test_who_connects_too_fast_is_refused_until_it_has_waited(clock: Clock) -> None:
    counts = counts_of(clock, Caps(UNLIMITED, UNLIMITED, remote_rate=5))
    assert len(come(counts, FAR, 1000)) == 1000 - 51, "ten seconds' worth at once, and one that makes the debt"
    assert come(counts, OTHER) == []
    clock.now += 1.0
    assert len(come(counts, FAR, 100)) == 100 - 5
    clock.now += 1000.0
    assert len(come(counts, FAR, 1000)) == 1000 - 51


def test_the_quota_of_an_address_goes_first_and_holds_for_loopback_too(clock: Clock) -> None:
    counts = counts_of(clock, Caps(UNLIMITED, UNLIMITED, remote_rate=1), {NEAR: 2.0, FAR: 50.0})
    assert len(come(counts, NEAR, 100)) == 100 - 21
    assert len(come(counts, FAR, 100)) == 0
    assert len(come(counts, OTHER, 100)) == 100 - 11


def test_the_rates_of_many_addresses_take_bounded_memory(clock: Clock) -> None:
    counts = counts_of(clock, Caps(UNLIMITED, UNLIMITED, remote_rate=5))
    for number in range(MOST_ADDRESSES + 10):
        come(counts, f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}")
    assert len(counts._rates) == MOST_ADDRESSES


def test_a_broker_that_takes_so_many_a_second_lets_the_others_wait(clock: Clock) -> None:
    counts = counts_of(clock, Caps(UNLIMITED, UNLIMITED, rate=10))
    taken = 0
    while not counts.pause():
        assert come(counts, FAR) == []
        taken += 1
    assert taken == 101
    assert counts.pause() == pytest.approx(0.1)
    clock.now += 0.2
    assert not counts.pause()


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), (FAR, False), ("b1", False)],
)
def test_loopback_is_known(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


def test_overrides_are_read() -> None:
    assert connection_caps("10.0.0.5:2000, [2001:DB8::1]:50") == {"10.0.0.5": 2000, "2001:db8::1": 50}
    assert connection_caps("") == {}
    for wrong in ("10.0.0.5", "10.0.0.5:x", "example.com:5", ":5"):
        assert not are_caps(wrong)


@pytest.fixture
def capped() -> Iterator[Broker]:
    with Broker({"max.connections.per.ip": 100}) as running:
        yield running


def served(broker: Broker, source: str) -> bool:
    host, port = broker.bootstrap.rsplit(":", 1)
    wire = Wire.__new__(Wire)
    wire.socket = socket.create_connection((host, int(port)), 60, source_address=(source, 0))
    wire._correlation = 0
    with wire:
        try:
            return bool(wire.ask(18, 0, request(18, 0)).error_code is ErrorCode.none)
        except ConnectionError:
            return False


def test_of_a_thousand_connections_of_one_address_a_hundred_are_taken_and_others_are_served(capped: Broker) -> None:
    host, port = capped.bootstrap.rsplit(":", 1)
    with ExitStack() as opened:
        for _ in range(1000):
            opened.enter_context(socket.create_connection((host, int(port)), 60))
        assert not served(capped, "127.0.0.1")
        for _ in range(5):
            assert served(capped, "127.0.0.2")


def test_an_operator_limits_the_connections_a_second_of_an_address() -> None:
    with Broker() as broker:
        set_quotas(broker, {"ip": "127.0.0.3"}, connection_creation_rate=1)
        answers = [served(broker, "127.0.0.3") for _ in range(30)]
        assert answers[:10] == [True] * 10
        assert False in answers
        assert served(broker, "127.0.0.2")
        set_quotas(broker, {"ip": "127.0.0.3"}, connection_creation_rate=None)
        assert served(broker, "127.0.0.3")


def test_a_broker_accepts_no_faster_than_it_is_told() -> None:
    with Broker({"max.connection.creation.rate": 5, "quota.window.num": 2}) as broker:
        wires: list[Any] = [Wire(broker.bootstrap) for _ in range(12)]
        for wire in wires:
            assert wire.ask(18, 0, request(18, 0)).error_code is ErrorCode.none, "late, but served"
            wire.socket.close()


def test_a_listener_has_caps_of_its_own_below_those_of_all(clock: Clock) -> None:
    counts = counts_of(clock, Caps(5, UNLIMITED))
    small, large = counts.of_listener(lambda: Caps(2, 1)), counts.of_listener(lambda: Caps(UNLIMITED, UNLIMITED))

    def taken(listener: ListenerCounts, address: str) -> bool:
        if listener.refusal(7, address) is not None:
            return False
        listener.opened(address)
        return True

    assert [taken(small, address) for address in (FAR, FAR, OTHER, NEAR)] == [True, False, True, False]
    assert [taken(large, FAR) for _ in range(4)] == [True, True, True, False]
    small.closed(FAR)
    assert taken(large, FAR)


def test_who_floods_the_listener_of_clients_keeps_no_broker_out(clock: Clock) -> None:
    counts = counts_of(clock, Caps(UNLIMITED, UNLIMITED, rate=1, remote_rate=1, remote_address=20))
    clients = counts.of_listener(lambda: Caps(UNLIMITED, UNLIMITED))
    brokers = counts.of_listener(lambda: Caps(UNLIMITED, UNLIMITED), is_for_brokers=True)
    assert not clients.pause()
    while clients.refusal(7, FAR) is None:
        clients.opened(FAR)
    assert clients.pause()
    assert not brokers.pause()
    assert brokers.refusal(7, FAR) is None


def test_a_listener_is_capped_by_its_own_settings() -> None:
    settings = {
        "listeners": "IN://127.0.0.1:0,OUT://127.0.0.1:0",
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
        "inter.broker.listener.name": "IN",
        "listener.name.out.max.connections": 2,
    }
    with Broker(settings) as broker:
        wires = [Wire(broker.bootstrap) for _ in range(2)]
        for wire in wires:
            assert wire.ask(18, 0, request(18, 0)).error_code is ErrorCode.none
        assert not served(broker, "127.0.0.2")
        for wire in wires:
            wire.socket.close()
