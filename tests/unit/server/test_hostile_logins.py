"""Whatever comes in at the entrance of a listener with SASL: nobody gets in who should not, nothing breaks or grows."""

import gc
import logging
import socket
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from struct import pack
from typing import Final

import pytest

from headrace.client.core.sasl import ScramClient
from headrace.protocol.api import ApiKey
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.server.authentication import Authenticator
from headrace.server.connection import Connection
from headrace.testing import Broker
from tests.fuzz.mutation import mutated
from tests.support.logins import ALICE, MECHANISMS, PASSWORD, Issuer, login_settings

FEW, MANY = 2_000, 120_000
MOST_GROWTH: Final = 2 << 20
_METADATA: Final = {"topics": (), "allow_auto_topic_creation": False}


class Entrance:
    """A broker that is attacked, and what it has said of it."""

    def __init__(self, broker: Broker, issuer: Issuer, admitted: set[str]) -> None:
        host, port = broker.bootstrap.rsplit(":", 1)
        self.address = host, int(port)
        self.issuer = issuer
        self.admitted = admitted

    def say(self, *frames: bytes) -> bytes:
        """Send it all, and no more; what came back until the broker had closed."""
        with socket.create_connection(self.address, 20) as sock:
            try:
                sock.sendall(b"".join(frames))
                sock.shutdown(socket.SHUT_WR)
                answer = b""
                while piece := sock.recv(65536):
                    answer += piece
            except OSError:
                return b""
        return answer

    def challenge(self, mechanism: str, exchange: ScramClient, after: Random, sound: list[bytes]) -> None:
        """A sound first step, and a second that was tampered with."""
        with socket.create_connection(self.address, 20) as sock:
            try:
                sock.sendall(handshake(mechanism) + authenticate(exchange.first()))
                answers = sock.makefile("rb")
                answers.read(int.from_bytes(answers.read(4), "big"))
                body = answers.read(int.from_bytes(answers.read(4), "big"))
                answer = decode_response(ApiKey.SASL_AUTHENTICATE, 2, memoryview(body)[5:])
                final = exchange.answer(bytes(answer.auth_bytes))
                sock.sendall(authenticate(mutated(after, final, [*sound, final])))
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(65536):
                    pass
            except OSError:
                pass


def frame(api_key: int, version: int, body: bytes, is_flexible: bool = False) -> bytes:
    head = pack(">hhih", api_key, version, 7, -1) + (b"\0" if is_flexible else b"")
    return pack(">i", len(head) + len(body)) + head + body


def handshake(mechanism: str, version: int = 1) -> bytes:
    body = bytes(encode_request(ApiKey.SASL_HANDSHAKE, version, {"mechanism": mechanism}))
    return frame(ApiKey.SASL_HANDSHAKE, version, body)


def authenticate(token: bytes) -> bytes:
    body = bytes(encode_request(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token}))
    return frame(ApiKey.SASL_AUTHENTICATE, 2, body, is_flexible=True)


def bare(token: bytes) -> bytes:
    return pack(">i", len(token)) + token


METADATA: Final = frame(ApiKey.METADATA, 4, bytes(encode_request(ApiKey.METADATA, 4, _METADATA)))
VERSIONS: Final = frame(ApiKey.API_VERSIONS, 0, b"")


@pytest.fixture
def entrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Entrance]:
    for name in ("FIRST_DELAY", "LONGEST_DELAY", "LONGEST_PAUSE"):
        monkeypatch.setattr(f"headrace.security.failed_logins.{name}", 0.0)
    monkeypatch.setattr("headrace.security.failed_logins.WRONG_A_SECOND", 1e9)
    admitted: set[str] = set()
    admit = Authenticator.admit

    def noted(self: Authenticator, connection: Connection, principal: str) -> None:
        admitted.add(principal)
        admit(self, connection, principal)

    monkeypatch.setattr(Authenticator, "admit", noted)
    issuer = Issuer(tmp_path)
    with Broker(login_settings(issuer)) as broker:
        yield Entrance(broker, issuer, admitted)


def attack(entrance: Entrance, cases: int, seed: int) -> None:
    """So many connections, none of which says all of what it would have to say."""
    random = Random(seed)
    tokens = [
        f"\0{ALICE}\0guess".encode(),
        ScramClient("SCRAM-SHA-256", ALICE, "guess").first(),
        ScramClient("SCRAM-SHA-512", "mallory", "guess").first() + b",tokenauth=true",
        b"c=biws,r=mine,p=AAAA",
        f"n,,\x01auth=Bearer {entrance.issuer.token(seconds=-60)}\x01\x01".encode(),
        b"n,,\x01auth=Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0.\x01\x01",
        b"",
    ]
    for case in range(cases):
        mechanism = random.choice(MECHANISMS)
        token = random.choice(tokens)
        if random.random() < 0.7:
            token = mutated(random, token, tokens)
        if random.random() < 0.1 and mechanism.startswith("SCRAM"):
            entrance.challenge(mechanism, ScramClient(mechanism, ALICE, "guess", f"nonce{case}"), random, tokens)
            continue
        first = handshake(mechanism, random.choice((0, 1, 1, 1)))
        frames = [VERSIONS, first, random.choice((authenticate, authenticate, bare))(token), METADATA]
        if random.random() < 0.4:
            frames[random.randrange(4)] = mutated(random, random.choice(frames), frames)
        if random.random() < 0.2:
            random.shuffle(frames)
        entrance.say(*frames)


def test_nobody_gets_in_by_what_was_tampered_with(entrance: Entrance, caplog: pytest.LogCaptureFixture) -> None:
    attack(entrance, FEW, seed=1)
    assert not entrance.admitted
    assert not [line for line in caplog.records if line.exc_info or line.levelname in ("ERROR", "CRITICAL")]
    answer = entrance.say(handshake("PLAIN"), authenticate(f"\0{ALICE}\0{PASSWORD}".encode()), METADATA)
    assert entrance.admitted == {f"User:{ALICE}"}
    assert len(answer) > 50, "the broker serves as before"


@pytest.fixture
def quiet() -> Iterator[None]:
    """What is logged of each attack would be kept by who looks for errors."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.long
@pytest.mark.usefixtures("quiet")
def test_nothing_grows_however_many_try(entrance: Entrance, caplog: pytest.LogCaptureFixture) -> None:
    attack(entrance, MANY // 10, seed=2)
    caplog.clear()
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for part in range(9):
        attack(entrance, MANY // 10, seed=3 + part)
        assert not [line for line in caplog.records if line.exc_info or line.levelname in ("ERROR", "CRITICAL")]
        caplog.clear()
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not entrance.admitted
    assert after - before < MOST_GROWTH
