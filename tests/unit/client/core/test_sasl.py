"""SASL from the client's side, against the examples of the RFCs and against servers that cheat."""

import base64
import hashlib
import hmac

import pytest

from headrace.client.core.errors import AuthenticationRefused
from headrace.client.core.sasl import MECHANISMS, OAuthBearerClient, Plain, ScramClient, credentials

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()


def rfc_7677() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_scram_gives_the_proof_of_rfc_7677_and_takes_its_servers() -> None:
    exchange = rfc_7677()
    assert exchange.first() == f"n,,n=user,r={NONCE}".encode()
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert exchange.answer(SERVER_FIRST) == f"c=biws,r={SERVER_NONCE},p={proof}".encode()
    assert not exchange.is_done
    assert exchange.answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") == b""
    assert exchange.is_done


@pytest.mark.parametrize(
    ("final", "reason"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "does not know the password"),
        (b"e=invalid-proof", "invalid-proof"),
        (b"v=", "malformed"),
        (b"", "malformed"),
        (b"\xff\xfe", "not text"),
    ],
)
def test_a_server_that_does_not_prove_itself_is_refused(final: bytes, reason: str) -> None:
    exchange = rfc_7677()
    exchange.answer(SERVER_FIRST)
    with pytest.raises(AuthenticationRefused, match=reason):
        exchange.answer(final)
    assert not exchange.is_done


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(), "nonce"),
        (f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1".encode(), "rounds"),
        (f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999999999".encode(), "rounds"),
        (f"r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=2000000".encode(), "rounds"),
        (f"r={SERVER_NONCE},s=!!,i=4096".encode(), "malformed"),
        (b"", "malformed"),
    ],
)
def test_a_first_message_that_weakens_the_exchange_is_refused(first: bytes, reason: str) -> None:
    with pytest.raises(AuthenticationRefused, match=reason):
        rfc_7677().answer(first)


def test_scram_sha_512_proves_what_a_server_with_the_password_computes() -> None:
    exchange = ScramClient("SCRAM-SHA-512", "a=b,c", "secret")
    first = exchange.first().decode()
    assert first.startswith("n,,n=a=3Db=2Cc,r=")
    nonce = first.rpartition("r=")[2]
    challenge = f"r={nonce}more,s={base64.b64encode(b'salt').decode()},i=5000"
    without_proof, _, proof = exchange.answer(challenge.encode()).decode().rpartition(",p=")
    salted = hashlib.pbkdf2_hmac("sha512", b"secret", b"salt", 5000)
    client_key = hmac.digest(salted, b"Client Key", "sha512")
    message = f"{first[3:]},{challenge},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha512(client_key).digest(), message, "sha512")
    assert bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True)) == client_key
    server = hmac.digest(hmac.digest(salted, b"Server Key", "sha512"), message, "sha512")
    exchange.answer(b"v=" + base64.b64encode(server))
    assert exchange.is_done


def test_two_exchanges_never_share_a_nonce() -> None:
    start = credentials("SCRAM-SHA-256", "user", "secret", None)
    assert start().first() != start().first()


def test_plain_and_bearer_say_all_at_once_and_take_no_question() -> None:
    for exchange, token in (
        (Plain("alice", "s3cret"), b"\0alice\0s3cret"),
        (OAuthBearerClient("abc"), b"n,,\x01auth=Bearer abc\x01\x01"),
    ):
        assert exchange.first() == token
        assert exchange.is_done
        with pytest.raises(AuthenticationRefused):
            exchange.answer(b"{}")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_credentials_say_what_is_missing(mechanism: str) -> None:
    with pytest.raises(ValueError, match="needs sasl"):
        credentials(mechanism, None, None, None)
    with pytest.raises(ValueError, match="mechanism must be one of"):
        credentials("GSSAPI", "a", "b", None)
