"""TLS behind the interface of a socket: bytes come whole and in order, however they are cut; ends are told apart."""

import contextlib
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from headrace.net.network import Buffer
from headrace.net.tls import ServerTls, ServerTlsSettings
from headrace.net.tls_stream import PIECE, TURN, Scratch, TlsFailure, TlsStream
from tests.support.certificates import Authority, Signed
from tests.support.key_updates import KeyUpdates

AUTHORITY = Authority()
SERVER = AUTHORITY.sign()
CLIENT = AUTHORITY.sign("alice", hosts=())
VERSIONS = ("TLSv1.2", "TLSv1.3")


class Peer:
    """The other side, in memory: what it says has to be carried over by hand."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.to, self.back = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.to, self.back, server_hostname="localhost")

    def hand_over(self, sock: socket.socket, step: int = 1 << 20) -> Iterator[None]:
        """Send what it has to say, so many bytes at a time; yields after each."""
        data = memoryview(self.back.read())
        for start in range(0, len(data), step):
            sock.sendall(data[start : start + step])
            yield

    def listen(self, sock: socket.socket) -> None:
        try:
            self.to.write(sock.recv(1 << 20, socket.MSG_DONTWAIT))
        except BlockingIOError:
            pass

    def heard(self, sock: socket.socket) -> bytes:
        """All that it can read now."""
        self.listen(sock)
        found = bytearray()
        try:
            while data := self.tls.read(1 << 16):
                found += data
        except ssl.SSLWantReadError:
            pass
        return bytes(found)


class Pair:
    """A stream, and who speaks with it."""

    def __init__(self, version: str = "TLSv1.3", *, step: int = 1 << 20, client_auth: str = "none") -> None:
        near, self.far = socket.socketpair()
        near.setblocking(False)
        settings = ServerTlsSettings(
            certificate_chain=SERVER.chain_pem,
            key=SERVER.key_pem(),
            truststore_certificates=AUTHORITY.pem,
            client_auth=client_auth,
            protocols=(version,),
        )
        self.stream = TlsStream(near, ServerTls(settings).context, Scratch())
        self.step = step

    def connect(self, context: ssl.SSLContext | None = None) -> "Pair":
        self.peer = Peer(context or trusting())
        for _ in range(10):
            try:
                self.peer.tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            for _ in self.peer.hand_over(self.far, self.step):
                self.stream.is_open or self.stream.shake_hands()
            if self.stream.is_open:
                self.peer.listen(self.far)
                return self
            self.peer.listen(self.far)
        raise AssertionError("no handshake")

    def say(self, data: bytes) -> None:
        self.peer.tls.write(data)
        for _ in self.peer.hand_over(self.far):
            pass

    def read(self, size: int = 1 << 16) -> bytes:
        """All that the stream has, through a buffer of that size."""
        buffer, found = memoryview(bytearray(size)), bytearray()
        while True:
            try:
                count = self.stream.recv_into(buffer)
            except BlockingIOError:
                assert not self.stream.has_more
                return bytes(found)
            if not count:
                return bytes(found)
            found += buffer[:count]


def trusting(authority: Authority = AUTHORITY) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.pem)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.parametrize("version", VERSIONS)
def test_a_handshake_and_a_request_come_through_one_byte_at_a_time(version: str) -> None:
    pair = Pair(version, step=1).connect()
    pair.peer.tls.write(b"request")
    found = bytearray()
    for _ in pair.peer.hand_over(pair.far, 1):
        found += pair.read()
    assert bytes(found) == b"request"
    assert pair.stream.session.version() == version


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 7, 4096, 16384, 100_000])
def test_what_does_not_fit_into_the_readers_buffer_is_kept_and_told_of(version: str, size: int) -> None:
    pair = Pair(version).connect()
    data = Random(size).randbytes(50_000)
    pair.say(data)
    buffer, found = memoryview(bytearray(size)), bytearray()
    count = pair.stream.recv_into(buffer)
    found += buffer[:count]
    while pair.stream.has_more or len(found) < len(data):
        try:
            count = pair.stream.recv_into(buffer)
        except BlockingIOError:
            break
        found += buffer[:count]
    assert bytes(found) == data


def test_bytes_that_came_with_the_end_of_the_handshake_are_told_of() -> None:
    pair = Pair("TLSv1.3")
    pair.peer = Peer(trusting())
    with pytest.raises(ssl.SSLWantReadError):
        pair.peer.tls.do_handshake()
    list(pair.peer.hand_over(pair.far))
    assert not pair.stream.shake_hands()
    pair.peer.listen(pair.far)
    pair.peer.tls.do_handshake()
    pair.peer.tls.write(b"early")
    list(pair.peer.hand_over(pair.far))
    assert pair.stream.shake_hands()
    assert pair.stream.has_more
    assert pair.read() == b"early"


class Narrow:
    """A socket that takes some bytes, and now and then none."""

    def __init__(self, sock: socket.socket, rng: Random) -> None:
        self._sock = sock
        self._rng = rng

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, buffer: memoryview, /) -> int:
        return self._sock.recv_into(buffer)

    def send(self, data: Buffer, flags: int = 0, /) -> int:
        return self._sock.send(data, flags)

    def sendmsg(self, buffers: list[Buffer], /) -> int:
        if self._rng.random() < 0.5:
            raise BlockingIOError
        joined = b"".join(buffers)
        return self._sock.send(joined[: self._rng.randint(1, 40_000)])

    def close(self) -> None:
        self._sock.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("how", ["send", "sendmsg", "sendfile"])
def test_what_a_full_socket_does_not_take_is_neither_lost_nor_sent_twice(
    version: str, how: str, tmp_path: Path
) -> None:
    pair, rng = Pair(version).connect(), Random(f"{version}{how}")
    pair.stream._sock = Narrow(pair.stream._sock, rng)  # type: ignore[arg-type,assignment]
    data = rng.randbytes(2 * PIECE + 12_345)
    path = tmp_path / "log"
    path.write_bytes(data)
    received, at = bytearray(), 0
    with path.open("rb") as file:
        while at < len(data):
            try:
                if how == "sendfile":
                    at += pair.stream.sendfile(file.fileno(), at, len(data) - at)
                elif how == "send":
                    at += pair.stream.send(memoryview(data)[at:])
                else:
                    rest = memoryview(data)[at:]
                    at += pair.stream.sendmsg([rest[:5], rest[5:70], rest[70:]])
            except BlockingIOError:
                assert pair.stream.is_blocked
            received += pair.peer.heard(pair.far)
    received += pair.peer.heard(pair.far)
    assert bytes(received) == data
    assert not pair.stream.is_blocked


class Wide:
    """A socket that takes all it is given, and keeps it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.taken: list[bytes] = []

    def fileno(self) -> int:
        return self._sock.fileno()

    def recv_into(self, buffer: memoryview, /) -> int:
        return self._sock.recv_into(buffer)

    def send(self, data: Buffer, _flags: int = 0, /) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: list[Buffer], /) -> int:
        self.taken.append(b"".join(buffers))
        return len(self.taken[-1])

    def close(self) -> None:
        self._sock.close()


def test_the_head_of_an_answer_goes_with_the_file_that_follows_it(tmp_path: Path) -> None:
    pair = Pair().connect()
    wide = Wide(pair.stream._sock)  # type: ignore[arg-type]
    pair.stream._sock = wide  # type: ignore[assignment]
    path = tmp_path / "log"
    path.write_bytes(bytes(3 * TURN))
    assert pair.stream.send(b"head", socket.MSG_MORE) == 4
    assert not wide.taken
    with path.open("rb") as file:
        assert [pair.stream.sendfile(file.fileno(), at, 3 * TURN - at) for at in (0, TURN)] == [TURN, TURN]
    assert len(wide.taken) == 2, "one call of the system for each turn"
    pair.peer.to.write(b"".join(wide.taken))
    assert pair.peer.heard(pair.far) == b"head" + bytes(2 * TURN)


def test_a_head_that_nothing_follows_goes_with_the_next_answer() -> None:
    pair = Pair().connect()
    assert pair.stream.send(b"head", socket.MSG_MORE) == 4
    assert pair.stream.send(b"more") == 4
    assert pair.peer.heard(pair.far) == b"headmore"


def test_a_file_that_ends_too_soon_sends_nothing(tmp_path: Path) -> None:
    pair = Pair().connect()
    (tmp_path / "log").write_bytes(b"abc")
    with (tmp_path / "log").open("rb") as file:
        assert pair.stream.sendfile(file.fileno(), 3, 100) == 0
    assert pair.peer.heard(pair.far) == b""


def test_the_end_that_is_said_is_an_end_and_the_one_that_is_not_is_a_loss() -> None:
    said, cut = Pair().connect(), Pair().connect()
    for pair in (said, cut):
        pair.say(b"last words")
    with pytest.raises(ssl.SSLWantReadError):
        said.peer.tls.unwrap()
    list(said.peer.hand_over(said.far))
    cut.far.close()
    buffer = memoryview(bytearray(100))
    for pair in (said, cut):
        assert pair.stream.recv_into(buffer) == len(b"last words")
    assert said.stream.recv_into(buffer) == 0
    with pytest.raises(ConnectionResetError, match="without a word"):
        cut.stream.recv_into(buffer)


@pytest.mark.parametrize("version", VERSIONS)
def test_closing_says_so_to_the_other_side(version: str) -> None:
    pair = Pair(version).connect()
    pair.stream.send(b"answer")
    pair.stream.close()
    pair.stream.close()
    pair.peer.listen(pair.far)
    assert pair.peer.tls.read(100) == b"answer"
    assert pair.peer.tls.read(100) == b""  # close_notify; without it there would be an error


def test_garbled_records_end_the_connection_with_words_and_no_traceback() -> None:
    pair = Pair().connect()
    pair.peer.tls.write(b"x" * 100)
    data = bytearray(pair.peer.back.read())
    data[30] ^= 1
    pair.far.sendall(data)
    with pytest.raises(TlsFailure, match="garbled"):
        pair.stream.recv_into(memoryview(bytearray(1000)))
    pair.stream.close()


def updating(pair: Pair, directory: Path) -> KeyUpdates:
    """What goes on in the place of the client, after its handshake."""
    context = trusting()
    context.keylog_filename = str(directory / "keys")
    pair.connect(context)
    return KeyUpdates(directory / "keys")


def test_key_updates_are_followed_and_answered(tmp_path: Path) -> None:
    pair = Pair()
    client = updating(pair, tmp_path)
    said = [client.data(b"before "), client.one(asks=True), client.data(b"between "), client.one(asks=False)]
    pair.far.sendall(b"".join([*said, client.data(b"after")]))
    assert pair.read() == b"before between after"
    assert not pair.stream.is_blocked
    pair.stream.send(b"answer")
    assert pair.peer.heard(pair.far) == b"answer"  # after the server's own key update


def test_who_asks_for_key_updates_between_bytes_and_reads_nothing_is_cut_off(tmp_path: Path) -> None:
    """Also while an answer waits: what TLS has to say itself is bounded."""
    pair = Pair()
    client = updating(pair, tmp_path)
    with pytest.raises(BlockingIOError):  # noqa: PT012
        while True:
            pair.stream.send(bytes(PIECE))
    with pytest.raises(TlsFailure, match="reads no answers"):  # noqa: PT012
        for _ in range(40_000):
            pair.far.sendall(client.one(asks=True) + client.data(b"x"))
            pair.stream.recv_into(memoryview(bytearray(100)))


@pytest.mark.parametrize("asks", [True, False])
def test_who_sends_key_updates_without_end_is_cut_off(tmp_path: Path, asks: bool) -> None:
    pair = Pair()
    client = updating(pair, tmp_path)
    with pytest.raises(TlsFailure, match=r"nothing in them|reads no answers"):  # noqa: PT012
        for _ in range(10_000):
            pair.far.sendall(client.one(asks=asks))
            with contextlib.suppress(BlockingIOError):
                pair.stream.recv_into(memoryview(bytearray(100_000)))
    pair.stream.close()


def test_who_makes_tls_answer_and_never_reads_is_cut_off() -> None:
    pair = Pair().connect()
    pair.stream._unsent.append(memoryview(bytes(70_000)))
    pair.stream._unsent_bytes = 70_000
    pair.stream._sock = Narrow(pair.stream._sock, Random(0))  # type: ignore[arg-type,assignment]
    pair.stream._sock._rng.random = lambda: 0.0  # type: ignore[attr-defined]
    pair.stream._outgoing.write(b"x")  # as an answer to a key update
    pair.say(b"request")
    with pytest.raises(TlsFailure, match="reads no answers"):
        pair.stream.recv_into(memoryview(bytearray(100)))


def failure(pair: Pair, context: ssl.SSLContext | None = None) -> str:
    with pytest.raises((TlsFailure, ssl.SSLError)) as caught:
        pair.connect(context)
    if isinstance(caught.value, TlsFailure):
        return str(caught.value)
    list(pair.peer.hand_over(pair.far))  # the alert
    with pytest.raises(TlsFailure) as told:
        pair.stream.shake_hands()
    return str(told.value)


@pytest.mark.parametrize("version", VERSIONS)
def test_failures_are_told_in_plain_words(version: str) -> None:
    assert failure(Pair(version), trusting(Authority("Another"))) == "it does not trust our certificate"
    assert "no client certificate" in failure(Pair(version, client_auth="required"))
    stranger = trusting()
    load(stranger, Authority("Another").sign("mallory", hosts=()))
    assert "signed by nobody in the truststore" in failure(Pair(version, client_auth="required"), stranger)
    expired = trusting()
    load(expired, AUTHORITY.sign("alice", hosts=(), begins=-9, ends=-1))
    assert "it has expired" in failure(Pair(version, client_auth="requested"), expired)
    other = trusting()
    other.minimum_version = other.maximum_version = ssl.TLSVersion[f"TLSv1_{'23'[version == 'TLSv1.2']}"]
    assert "TLS version" in failure(Pair(version), other)


def load(context: ssl.SSLContext, signed: Signed) -> None:
    with tempfile.NamedTemporaryFile() as file:
        context.load_cert_chain(signed.write(Path(file.name)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0\0\0\x1a\0\x12\0\0\0\0\0\x01\0\x04test", "it spoke plain text on a TLS listener"),
        (b"GET / HTTP/1.1\r\n\r\n", "it spoke plain text on a TLS listener"),
        (b"", "it closed the connection before it said anything"),
        (b"\x16\x03\x01", "it closed the connection in the middle of the handshake"),
    ],
)
def test_who_does_not_speak_tls_is_told_apart(data: bytes, words: str) -> None:
    pair = Pair()
    pair.far.sendall(data)
    pair.far.shutdown(socket.SHUT_WR)
    with pytest.raises(TlsFailure, match=words):
        pair.stream.shake_hands()
    pair.stream.close()


def test_a_verified_client_certificate_can_be_asked_for() -> None:
    context = trusting()
    load(context, CLIENT)
    pair = Pair(client_auth="requested").connect(context)
    assert pair.stream.session.getpeercert(binary_form=True) == CLIENT.der
    assert Pair(client_auth="requested").connect().stream.session.getpeercert(binary_form=True) is None


def test_old_versions_and_renegotiation_are_off() -> None:
    context = ServerTls(ServerTlsSettings(certificate_chain=SERVER.chain_pem, key=SERVER.key_pem())).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    names = {cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2"}
    assert len(names) == 6
    assert all(name.startswith("ECDHE-") for name in names)


def test_random_sizes_both_ways_come_through(tmp_path: Path) -> None:
    pair, rng = Pair().connect(), Random(3)
    for _ in range(50):
        data = rng.randbytes(rng.choice([1, 5, 16_383, 16_384, 16_385, 60_000]))
        pair.say(data)
        assert pair.read(rng.choice([3, 1000, 1 << 20])) == data
        assert pair.stream.send(data) == len(data)
        assert pair.peer.heard(pair.far) == data


def test_no_descriptor_stays_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        pair = Pair().connect()
        pair.stream.close()
        pair.far.close()
    assert len(os.listdir("/proc/self/fd")) <= before
