"""SCRAM on the broker's side: who knows the password comes in, everybody else learns nothing."""

import hmac
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.core.sasl import ScramClient
from headrace.cluster.entries import EntryKind
from headrace.cluster.image import ClusterImage
from headrace.protocol.scram import ScramMechanism, encoded, escaped, pairs, sign, unescaped
from headrace.security.sasl.credentials import FoundCredential, ScramCredential, ScramUsers
from headrace.security.sasl.exchange import AuthenticationFailed, Challenge, Done, SaslServer
from headrace.security.sasl.scram import FoundUser, scram

SECRET: Final = b"of the cluster"
SALT: Final = b"W" * 32
MECHANISMS: Final = pytest.mark.parametrize("mechanism", ScramMechanism, ids=lambda each: each.title)


def users(**passwords: str) -> ScramUsers:
    image = ClusterImage(cluster_id="c", controller_id=1)
    for user, password in passwords.items():
        values = {
            each.title: ScramCredential.of_password(each, password, 4096, SALT).to_text() for each in ScramMechanism
        }
        image.put_entry(EntryKind.USER, user, values)
    return ScramUsers(image, SECRET)


def no_tokens(mechanism: ScramMechanism, token_id: str) -> FoundUser:
    return FoundUser(FoundCredential(users().find_nobody(mechanism, token_id), False), "")


ALICE: Final = users(alice="s3cret")


def begun(known: ScramUsers = ALICE, mechanism: ScramMechanism = ScramMechanism.SHA_256) -> SaslServer:
    return scram(mechanism, known.find, no_tokens, lambda: "theirs")()


def asked(exchange: SaslServer, first: bytes) -> dict[str, str]:
    step = exchange.step(first)
    assert isinstance(step, Challenge)
    return dict(pairs(step.token.decode()))


def logged_in(exchange: SaslServer, client: ScramClient) -> Done:
    challenge = exchange.step(client.first())
    assert isinstance(challenge, Challenge)
    done = exchange.step(client.answer(challenge.token))
    assert isinstance(done, Done)
    client.answer(done.token)
    assert client.is_done
    return done


@MECHANISMS
def test_who_knows_the_password_comes_in_and_is_shown_that_the_server_knows_it_too(mechanism: ScramMechanism) -> None:
    done = logged_in(begun(mechanism=mechanism), ScramClient(mechanism.title, "alice", "s3cret"))
    assert (done.principal, done.expires_at_ms, done.by_token) == ("User:alice", None, False)


def test_the_examples_of_rfc_7677_are_answered_as_it_says() -> None:
    nonce, server = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = ScramCredential.of_password(ScramMechanism.SHA_256, "pencil", 4096, salt)
    exchange = scram(ScramMechanism.SHA_256, lambda *_: FoundCredential(credential, True), no_tokens, lambda: server)()
    challenge = exchange.step(f"n,,n=user,r={nonce}".encode())
    assert challenge == Challenge(f"r={nonce}{server},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    done = exchange.step(f"c=biws,r={nonce}{server},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode())
    assert isinstance(done, Done)
    assert done.token == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@MECHANISMS
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("mallory", "s3cret"), ("alice", "")])
def test_a_wrong_password_and_an_unknown_user_are_told_the_same(
    mechanism: ScramMechanism, user: str, password: str
) -> None:
    exchange, client = begun(mechanism=mechanism), ScramClient(mechanism.title, user, password)
    challenge = exchange.step(client.first())
    assert isinstance(challenge, Challenge)
    with pytest.raises(AuthenticationFailed) as failed:
        exchange.step(client.answer(challenge.token))
    assert str(failed.value) == (
        f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism.title}"
    )
    assert (failed.value.user, failed.value.reason) == (user, "a wrong password, or nobody of that name")


def test_an_unknown_user_has_the_salt_of_always_and_the_shape_that_others_have() -> None:
    real = asked(begun(), b"n,,n=alice,r=mine")
    once, again = asked(begun(), b"n,,n=mallory,r=mine"), asked(begun(), b"n,,n=mallory,r=other")
    other = asked(begun(), b"n,,n=trudy,r=mine")
    assert once["s"] == again["s"] != other["s"]
    assert (once["i"], len(once["s"])) == (real["i"], len(real["s"]))
    assert once["s"] != asked(begun(mechanism=ScramMechanism.SHA_512), b"n,,n=mallory,r=mine")["s"]
    elsewhere = ScramUsers(ClusterImage(cluster_id="c", controller_id=1), b"another secret")
    assert asked(begun(elsewhere), b"n,,n=mallory,r=mine")["s"] != once["s"]


def test_nobody_comes_in_with_the_keys_that_are_made_up_for_unknown_users() -> None:
    """Whose stored key is known to be nothing: a proof for it can be worked out."""
    exchange = begun()
    challenge = exchange.step(b"n,,n=mallory,r=mine")
    assert isinstance(challenge, Challenge)
    without_proof = "c=biws,r=minetheirs"
    message = f"n=mallory,r=mine,{challenge.token.decode()},{without_proof}".encode()
    proof = sign(ScramMechanism.SHA_256, bytes(32), message)
    with pytest.raises(AuthenticationFailed):
        exchange.step(f"{without_proof},p={encoded(proof)}".encode())


def test_an_unknown_user_costs_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    digest, work = hmac.digest, Counter[str]()

    def counted(key: bytes, message: bytes, name: str) -> bytes:
        work["digests"] += 1
        return digest(key, message, name)

    def cost_of(user: str) -> int:
        client = ScramClient("SCRAM-SHA-256", user, "wrong")
        exchange = begun()
        first = client.first()
        work.clear()
        challenge = exchange.step(first)
        before, final = work["digests"], client.answer(challenge.token if isinstance(challenge, Challenge) else b"")
        work.clear()
        with pytest.raises(AuthenticationFailed):
            exchange.step(final)
        return before + work["digests"]

    monkeypatch.setattr(hmac, "digest", counted)
    assert cost_of("alice") == cost_of("mallory") > 0


FIRSTS: Final = {
    "channel binding": b"p=tls-unique,,n=alice,r=mine",
    "channel binding wished for": b"y,,n=alice,r=mine",
    "another's name": b"n,a=bob,n=alice,r=mine",
    "a mandatory extension": b"n,,m=what,n=alice,r=mine",
    "no nonce": b"n,,n=alice",
    "an empty nonce": b"n,,n=alice,r=",
    "a nonce that is not printed": b"n,,n=alice,r=a\x7fb",
    "no user": b"n,,n=,r=mine",
    "a name written wrong": b"n,,n=a=41lice,r=mine",
    "not text": b"n,,n=\xff,r=mine",
    "nothing": b"",
    "no header": b"n=alice,r=mine",
    "too long": b"n,,n=alice,r=" + b"x" * 20_000,
}


@pytest.mark.parametrize("first", FIRSTS.values(), ids=FIRSTS)
def test_a_first_message_that_is_not_as_it_must_be_is_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        begun().step(first)


def without_proof(final: bytes) -> bytes:
    return final.partition(b",p=")[0]


CHANGES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "nonce cut": lambda final: final.replace(b"r=minetheirs", b"r=mine"),
    "nonce longer": lambda final: final.replace(b"r=minetheirs", b"r=minetheirsx"),
    "nonce without ours": lambda final: final.replace(b"r=minetheirs", b"r=theirs"),
    "another binding": lambda final: final.replace(b"c=biws", b"c=cD0sLA=="),
    "no binding": lambda final: final.replace(b"c=biws", b"c="),
    "no proof": without_proof,
    "another proof": lambda final: without_proof(final) + b",p=" + encoded(bytes(32)).encode(),
    "a proof of another size": lambda final: without_proof(final) + b",p=" + encoded(bytes(64)).encode(),
    "a proof that is no base64": lambda final: without_proof(final) + b",p=!",
    "another order": lambda final: b"x=1," + final,
    "nothing": lambda final: final[:0],
    "not text": lambda final: b"\xff" + final,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_final_message_that_was_changed_is_refused(change: Callable[[bytes], bytes]) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "s3cret", "mine")
    exchange = begun()
    challenge = exchange.step(client.first())
    assert isinstance(challenge, Challenge)
    final = client.answer(challenge.token)
    with pytest.raises(AuthenticationFailed):
        exchange.step(change(final))


def test_a_final_message_repeats_the_header_of_the_first() -> None:
    exchange = begun()
    client = ScramClient("SCRAM-SHA-256", "alice", "s3cret", "mine")
    challenge = exchange.step(b"n,a=alice,n=alice,r=mine")
    assert isinstance(challenge, Challenge)
    with pytest.raises(AuthenticationFailed, match="invalid credentials"):
        exchange.step(client.answer(challenge.token))  # says it had no name in its header


def test_a_credential_with_too_few_iterations_lets_nobody_in() -> None:
    weak = ScramCredential.of_password(ScramMechanism.SHA_256, "s3cret", 4095, SALT)
    exchange = scram(ScramMechanism.SHA_256, lambda *_: FoundCredential(weak, True), no_tokens, lambda: "theirs")()
    client = ScramClient("SCRAM-SHA-256", "alice", "s3cret", "mine")
    challenge = exchange.step(client.first())
    assert isinstance(challenge, Challenge)
    final = client.answer(challenge.token.replace(b"i=4095", b"i=4096"))
    with pytest.raises(AuthenticationFailed):
        exchange.step(final)


def test_a_password_that_was_changed_counts_at_once() -> None:
    image = ClusterImage(cluster_id="c", controller_id=1)
    known = ScramUsers(image, SECRET)
    for password in ("old", "new"):
        text = ScramCredential.of_password(ScramMechanism.SHA_256, password, 4096).to_text()
        image.put_entry(EntryKind.USER, "alice", {"SCRAM-SHA-256": text})
        logged_in(begun(known), ScramClient("SCRAM-SHA-256", "alice", password))
    image.put_entry(EntryKind.USER, "alice", {})
    with pytest.raises(AuthenticationFailed):
        logged_in(begun(known), ScramClient("SCRAM-SHA-256", "alice", "new"))


def test_a_credential_is_what_its_text_says_and_shows_no_keys() -> None:
    credential = ScramCredential.of_password(ScramMechanism.SHA_512, "s3cret", 8192)
    assert ScramCredential.parse(credential.to_text()) == credential
    assert credential.to_text().split("=")[0] == "salt"
    assert "iterations=8192" in repr(credential)
    assert "salt" not in repr(credential)
    for text in ("", "salt=", "salt=AA==,stored_key=AA==,server_key=AA==,iterations=x", "iterations=4096", "\0"):
        assert ScramCredential.parse(text) is None


@given(st.text(min_size=1, max_size=30))
def test_any_name_can_be_written_and_read(name: str) -> None:
    assert unescaped(escaped(name)) == name


@given(st.lists(st.binary(max_size=80), max_size=3))
def test_no_bytes_at_all_are_more_than_refused(messages: list[bytes]) -> None:
    exchange = begun()
    try:
        for message in (b"n,,n=alice,r=mine", *messages):
            assert not isinstance(exchange.step(message), Done)
    except AuthenticationFailed:
        pass
