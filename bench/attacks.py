"""What a hostile neighbour does, again and again until it is ended: `python -m bench.attacks NAME PORT`.

Each attack is one process without threads. It opens `_CONNECTIONS` a second, to which an address is held that is not
the broker's own machine's, but for floods, which go as fast as they can. It runs on the load generator's core, and
gives way there to the good client that is measured: what the good client waits for is the broker.
"""

import os
import socket
import ssl
import struct
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final

import cramjam
from crc32c import crc32c

from headrace.protocol.encode import encode_request
from headrace.protocol.schema import request_shape

from .frames import create_topic_frame, request_frame

TOPICS: Final = {"hostile-plain": {}, "hostile-compacted": {"cleanup.policy": "compact"}}
_SECONDS: Final = 60.0
"""After which an attack that nobody has ended ends."""
_PATIENCE: Final = 2.0
_NICE: Final = 10
_CONNECTIONS: Final = 50
_PIECE: Final = bytes(1 << 16)
_RECORD: Final = b"\x0c\0\0\0\x01\x01\0"

Step = Callable[[int], object]
"""One round of an attack, given the port."""


class Wire:
    """One connection; whatever goes wrong with it is what was to be expected."""

    _next_at = 0.0
    """When the next one may be opened."""

    def __init__(self, port: int) -> None:
        time.sleep(max(Wire._next_at - time.monotonic(), 0.0))
        Wire._next_at = time.monotonic() + 1 / _CONNECTIONS
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def ask(self, frame: bytes) -> bytes:
        self.send(frame)
        return self.receive()

    def receive(self) -> bytes:
        """A whole answer; nothing once the broker has closed the connection."""
        head = self._read(4)
        return self._read(struct.unpack(">i", head)[0]) if head else b""

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.sock.recv(min(size - len(data), 1 << 20))
            if not part:
                return b""
            data += part
        return bytes(data)


def frame_of(api: int, version: int, values: Any) -> bytes:
    body = bytes(encode_request(api, version, values))
    return request_frame(api, version, body, flexible=request_shape(api, version).flexible)


def raw(api: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    return request_frame(api, version, body, flexible=flexible)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def batch(payload: bytes, records: int, *, codec: int = 0, magic: int = 2) -> bytes:
    now = int(time.time() * 1000)
    rest = struct.pack(">hiqqqhii", codec, records - 1, now, now, -1, -1, -1, records) + payload
    return struct.pack(">qiib", 0, len(rest) + 9, -1, magic) + struct.pack(">I", crc32c(rest)) + rest


def produce(topic: str, data: bytes) -> bytes:
    name = topic.encode()
    head = struct.pack(">hhi", -1, -1, 10_000) + struct.pack(">ih", 1, len(name)) + name
    return raw(0, 8, head + struct.pack(">iii", 1, 0, len(data)) + data)


def each(frames: Sequence[bytes]) -> Step:
    """Each of these on a connection of its own."""

    def step(port: int) -> None:
        for frame in frames:
            with suppress(OSError), Wire(port) as wire:
                wire.ask(frame)

    return step


def one_by_one(frames: Sequence[bytes]) -> Step:
    """All of these on one connection."""

    def step(port: int) -> None:
        with suppress(OSError), Wire(port) as wire:
            for frame in frames:
                wire.ask(frame)

    return step


def malformed() -> Step:
    """Lengths, counts and names that are none; other protocols on the port."""
    lengths = [struct.pack(">i", length) for length in (-1, 0, 2**31 - 1, -(2**31), 104_857_601)]
    return each(
        [
            *lengths,
            framed(b"abc"),
            raw(9999, 0, b""),
            raw(-1, 0, b""),
            raw(3, -1, bytes(4)),
            raw(3, 999, bytes(4)),
            struct.pack(">ihhih", 12, 3, 1, 1, 30_000) + b"ab",
            raw(3, 1, struct.pack(">i", 2**31 - 1)),
            raw(3, 12, b"\xff" * 12, flexible=True),
            raw(3, 12, b"\xff\xff\xff\xff\x0f", flexible=True),
            raw(3, 12, b"\x02" + bytes(16) + b"\xff\xff\xff\x7faa", flexible=True),
            framed(struct.pack(">hhih", 3, 12, 1, 0) + b"\xff\xff\xff\x7faaaa"),
            *(raw(api, 0, bytes(20)) for api in (4, 5, 52, 58, 10_000, 20_000, 30_000)),
            frame_of(56, 3, {"broker_id": 1, "broker_epoch": 0, "topics": []}),
            frame_of(27, 1, {"markers": []}),
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 100,
        ]
    )


def many_names() -> Step:
    """Metadata about very many topics that cannot be."""
    names = b"".join(struct.pack(">h", 7) + b"/%06x" % number for number in range(200_000))
    return each(
        [raw(3, 1, struct.pack(">i", 200_000) + names), raw(3, 1, struct.pack(">i", 2_000_000) + bytes(1 << 22))]
    )


def broken_batches() -> Step:
    """Batches that are damaged, or decompress without end, or into very many tiny records."""
    zeros = bytes(250_000_000)
    tiny = b"\x0e\0\0\0\x02k\x01\0" * 4_000_000
    packed = [
        (bytes(cramjam.gzip.compress(zeros)), 1, 1),
        (bytes(cramjam.zstd.compress(zeros)), 1, 4),
        (b"\xff\xff\xff\xff\x0f" + bytes(20), 1, 2),
        (bytes(cramjam.zstd.compress(tiny)), 4_000_000, 4),
        (b"not zstd at all", 1, 4),
        (bytes(cramjam.gzip.compress(_RECORD)), 2**31 - 1, 1),
    ]
    batches = [
        batch(_RECORD, 1)[:-1] + b"\x07",
        batch(_RECORD, 1, magic=1),
        batch(_RECORD, 1, codec=7),
        batch(_RECORD, 1, codec=0x20),
        batch(_RECORD, 2**31 - 1),
        batch(b"\xff" * 40, 1),
        batch(b"\x80\x80\x80\x80\x80\x80\x80\x01" + bytes(10), 1),
        *(batch(data, records, codec=codec) for data, records, codec in packed if len(data) < 900_000),
    ]
    del zeros, tiny
    return each([produce(topic, data) for topic in TOPICS for data in batches])


def greedy_admin() -> Step:
    """Topics with wrong names and sizes, topics by the hundred, expressions that are hard to match."""
    names = ("..", "a/b", "x" * 250, "ü", "a b")
    expressions = (
        "(a+)+$",
        "(a|aa)+$",
        "(.*)*.*x",
        "((((a{9}){9}){9}){9}){9}",
        "(" * 500 + "a" + ")" * 500,
        ".*" * 300,
    )
    frames = [create_topic_frame(name, {}) for name in names]
    frames += [create_topic_frame("huge", {}, partitions=partitions) for partitions in (2**31 - 1, 1_000_000)]
    rounds = count()

    def step(port: int) -> None:
        each(frames)(port)
        wanted = [{"name": f"hostile-{next(rounds)}"} for _ in range(20)]
        each([frame_of(3, 4, {"topics": wanted, "allow_auto_topic_creation": True})])(port)
        each([_heartbeat(expression) for expression in expressions])(port)

    return step


def _heartbeat(expression: str) -> bytes:
    values = {
        "group_id": f"hostile-{abs(hash(expression)) % 100}",
        "member_id": str(uuid.uuid4()),
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": expression,
        "server_assignor": None,
        "topic_partitions": [],
    }
    return frame_of(68, 1, values)


def wrong_logins() -> Step:
    """What is no login: other requests before it, wrong passwords, tokens without end."""
    handshake = frame_of(17, 1, {"mechanism": "PLAIN"})

    def token(data: bytes) -> bytes:
        return frame_of(36, 1, {"auth_bytes": data})

    tries = [
        [frame_of(3, 1, {"topics": None})],
        [handshake, frame_of(3, 1, {"topics": None})],
        [handshake, handshake],
        [handshake, token(b"\0alice\0wrong")],
        [handshake, token(b"\0nobody\0wrong")],
        [handshake, token(b"\0\0")],
        [handshake, token(b"\0alice\0x\0y")],
        [handshake, token(b"\0alice\0" + b"a" * 600_000)],
        [struct.pack(">i", 600_000)],
    ]

    def step(port: int) -> None:
        for frames in tries:
            with suppress(OSError), Wire(port) as wire:
                wire.sock.settimeout(0.05)
                for frame in frames:
                    wire.ask(frame)

    return step


def half_requests() -> Step:
    """Four connections with 95 MiB of a request of 100 MiB each, dropped and begun anew."""

    def step(port: int) -> None:
        wires = []
        for _ in range(4):
            with suppress(OSError):
                wire = Wire(port)
                wires.append(wire)
                wire.ask(raw(18, 0, b""))
                wire.send(struct.pack(">i", 104_857_600))
                for _ in range(95 * 16):
                    wire.send(_PIECE)
        for wire in wires:
            wire.sock.close()

    return step


def unread_answers() -> Step:
    """Metadata asked for again and again, and no answer read."""
    frames = raw(3, 1, struct.pack(">i", -1)) * 100

    def step(port: int) -> None:
        with suppress(OSError), Wire(port) as wire:
            wire.sock.settimeout(0.2)
            for _ in range(200):
                wire.send(frames)

    return step


def strange_values() -> Step:
    """Requests that are well formed and ask for what nobody should get."""
    fetch = {"replica_id": 2, "max_wait": 100, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0}
    partition = {"partition": 0, "fetch_offset": -5, "partition_max_bytes": 2**31 - 1}
    topics = [{"topic": "hostile-plain", "partitions": [partition]}]
    commit = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "x" * 30_000}
    return one_by_one(
        [
            frame_of(1, 4, {**fetch, "topics": topics}),
            frame_of(1, 4, {**fetch, "replica_id": -1, "max_wait": 0, "max_bytes": 2**31 - 1, "topics": topics}),
            frame_of(
                22,
                4,
                {"transactional_id": "x", "transaction_timeout": 2**31 - 1, "producer_id": -1, "producer_epoch": -1},
            ),
            frame_of(
                8,
                5,
                {
                    "group_id": "hostile",
                    "generation_id_or_member_epoch": -1,
                    "member_id": "",
                    "topics": [{"name": "hostile-plain", "partitions": [commit]}],
                },
            ),
            frame_of(10, 0, {"key": "g" * 30_000}),
            frame_of(22, 1, {"transactional_id": "../../\0etc", "transaction_timeout": 1000}),
            frame_of(18, 0, {}),
        ]
    )


def escapes() -> Step:
    """Names that would forge lines of a log."""
    bad = "x\x1b[31m\nlevel=error event=FAKE"
    join = {
        "group_id": bad,
        "session_timeout": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"x"}],
    }
    return one_by_one([create_topic_frame(bad, {}), frame_of(11, 0, join)])


def idle_connections() -> Step:
    """Connections by the thousand that say nothing, and some that drip."""
    held: list[socket.socket] = []

    def step(port: int) -> None:
        for _ in range(50):
            if len(held) < 3_000:
                held.append(socket.create_connection(("127.0.0.1", port)))
                if len(held) % 60 == 0:
                    held[-1].sendall(b"\0\0")
        time.sleep(0.01)

    return step


def handshakes() -> Step:
    """TLS handshakes, and connections that give up in the middle of one."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def step(port: int) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE) as sock:
            context.wrap_socket(sock, do_handshake_on_connect=True).close()

    return step


def half_handshakes() -> Step:
    """One ClientHello again and again: next to no work for who sends it, a signature for who gets it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    hello = outgoing.read()
    held: list[socket.socket] = []

    def step(port: int) -> None:
        sock = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE)
        sock.sendall(hello)
        held.append(sock)
        if len(held) >= 50:
            held.pop(0).close()

    return step


ATTACKS: Final[dict[str, Callable[[], Step]]] = {
    "malformed": malformed,
    "many-names": many_names,
    "broken-batches": broken_batches,
    "greedy-admin": greedy_admin,
    "wrong-logins": wrong_logins,
    "half-requests": half_requests,
    "unread-answers": unread_answers,
    "strange-values": strange_values,
    "escapes": escapes,
    "idle-connections": idle_connections,
    "handshakes": handshakes,
    "half-handshakes": half_handshakes,
}


def _rounds() -> Iterator[None]:
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        yield


def _give_way() -> None:
    """Let the good client run first, where both would."""
    policy = os.sched_getscheduler(0)
    if policy in (os.SCHED_RR, os.SCHED_FIFO):  # as they are where other work on the machine must not count
        os.sched_setscheduler(0, policy, os.sched_param(1))
    else:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.nice(_NICE)


def main() -> None:
    name, port = sys.argv[1], int(sys.argv[2])
    _give_way()
    step = ATTACKS[name]()
    step(port)
    print(f"ready 127.0.0.1:{port}", flush=True)
    for _ in _rounds():
        with suppress(OSError):
            step(port)


if __name__ == "__main__":
    main()
