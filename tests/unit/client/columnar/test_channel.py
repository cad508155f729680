"""A channel takes the answers of a broker in the order of its questions, and none that are not theirs."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from struct import pack
from typing import Any

import pytest

from headrace.client.columnar.channel import RESTING_SIZE, Channel
from headrace.client.core.errors import ConnectionLost, VersionNotServed
from headrace.client.core.versions import SPOKEN, agreed
from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_response
from headrace.protocol.exchange import LARGEST_ANSWER

LIST_OFFSETS = ApiKey.LIST_OFFSETS
VERSION = 1
ANSWER = bytes(encode_response(LIST_OFFSETS, VERSION, {"topics": ()}))


@contextmanager
def channel_and_peer(timeout: float = 60.0) -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, Address("peer", 1), client_id="test", timeout=timeout)
    try:
        yield channel, theirs
    finally:
        channel.close()
        theirs.close()


def answer(correlation_id: int, body: bytes) -> bytes:
    return pack(">ii", 4 + len(body), correlation_id) + body


def ask(channel: Channel, body: bytes = b"") -> None:
    channel.send(LIST_OFFSETS, VERSION, [body])


def test_answers_to_several_requests_come_in_their_order() -> None:
    with channel_and_peer() as (channel, peer):
        for _ in range(3):
            ask(channel)
        assert channel.in_flight == 3
        peer.sendall(b"".join(answer(n, bytes([n])) for n in (1, 2, 3)))
        assert [bytes(channel.receive().body) for _ in range(3)] == [b"\1", b"\2", b"\3"]
        assert channel.in_flight == 0


def test_an_answer_to_another_request_ends_the_connection() -> None:
    with channel_and_peer() as (channel, peer):
        ask(channel)
        peer.sendall(answer(7, ANSWER))
        with pytest.raises(ConnectionLost, match="peer:1: an answer to request 7 where 1 was asked"):
            channel.receive()
        assert channel.is_closed
        with pytest.raises(ConnectionLost, match="closed"):
            ask(channel)


@pytest.mark.parametrize("length", [-1, 0, 3, -(2**31)])
def test_a_length_that_cannot_be_ends_the_connection(length: int) -> None:
    with channel_and_peer() as (channel, peer):
        ask(channel)
        peer.sendall(pack(">ii", length, 1))
        with pytest.raises(ConnectionLost, match="is this a Kafka broker"):
            channel.receive()


def test_a_huge_length_without_bytes_takes_no_memory() -> None:
    with channel_and_peer(timeout=0.1) as (channel, peer):
        ask(channel)
        peer.sendall(pack(">ii", LARGEST_ANSWER, 1) + b"x")
        with pytest.raises(ConnectionLost, match=r"nothing came or went for 0\.1 s"):
            channel.receive()
        assert len(channel._buffer) == RESTING_SIZE


def test_a_large_answer_arrives_whole_and_its_buffer_is_used_again_then_given_back() -> None:
    large = bytes(range(256)) * 20_000
    with channel_and_peer() as (channel, peer):
        for number in (1, 2):
            ask(channel)
            sender = threading.Thread(target=peer.sendall, args=(answer(number, large),))
            sender.start()
            body = channel.receive().body
            sender.join()
            assert body == large
        first = channel._buffer
        assert len(first) == len(large)
        ask(channel)
        peer.sendall(answer(3, ANSWER))
        assert bytes(channel.receive().body) == ANSWER
        assert channel._buffer is first
        channel.rest()
        assert len(channel._buffer) == RESTING_SIZE


def test_many_parts_of_a_request_are_sent_whole_in_their_order() -> None:
    parts: list[bytes | bytearray | memoryview] = [bytes([n % 251]) * (n % 7) for n in range(5000)]
    with channel_and_peer() as (channel, peer):
        channel.send(LIST_OFFSETS, VERSION, parts)
        received = bytearray()
        expected = b"".join(parts)
        while len(received) < 4 + 10 + len(b"test") + len(expected):
            received += peer.recv(1 << 16)
        assert received[18:] == expected
        assert received[:4] == pack(">i", len(received) - 4)


def test_a_peer_that_closes_is_told_apart_from_one_that_is_slow() -> None:
    with channel_and_peer() as (channel, peer):
        ask(channel)
        peer.recv(1 << 16)
        peer.close()
        with pytest.raises(ConnectionLost, match="closed the connection"):
            channel.receive()


def test_an_answer_that_does_not_decode_ends_the_connection() -> None:
    with channel_and_peer() as (channel, peer):
        ask(channel)
        peer.sendall(answer(1, pack(">i", 2_000_000_000)))
        with pytest.raises(ConnectionLost, match="an array of 2000000000"):
            channel.receive_entity()
        assert channel.is_closed


def test_a_request_without_an_answer_leaves_nothing_under_way() -> None:
    with channel_and_peer() as (channel, _):
        channel.send(ApiKey.PRODUCE, 9, [b""], is_answered=False)
        assert channel.in_flight == 0


def test_a_channel_is_reusable_only_while_nothing_is_under_way_or_unread() -> None:
    with channel_and_peer() as (channel, peer):
        assert channel.is_reusable(0.0)
        ask(channel)
        assert not channel.is_reusable(0.0)
        peer.sendall(answer(1, ANSWER))
        channel.receive()
        assert channel.is_reusable(0.0)
        channel.expires_at = 5.0
        assert not channel.is_reusable(5.0)
        channel.expires_at = None
        peer.close()
        assert not channel.is_reusable(0.0)


@pytest.mark.parametrize(
    ("served", "expected"), [((0, 100), SPOKEN[ApiKey.FETCH][1]), ((4, 6), 6), ((17, 18), 17), ((0, 4), 4)]
)
def test_the_highest_version_that_both_speak_is_agreed_on(served: tuple[int, int], expected: int) -> None:
    assert agreed(ApiKey.FETCH, {ApiKey.FETCH: served}) == expected


@pytest.mark.parametrize("served", [{}, {ApiKey.FETCH: (0, 3)}, {ApiKey.FETCH: (18, 20)}])
def test_no_common_version_is_an_error_that_names_the_api(served: Any) -> None:
    with pytest.raises(VersionNotServed, match="FETCH"):
        agreed(ApiKey.FETCH, served)
