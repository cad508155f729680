"""OAUTHBEARER: only who holds a token that is signed by a known key, for us, and good now, comes in."""

import asyncio
import base64
import hmac
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from headrace.client.core.sasl import OAuthBearerClient as Client
from headrace.security.sasl.exchange import AuthenticationFailed, Done, Wait
from headrace.security.sasl.keys import KeyBook, KeySet, KeysUnavailable, fetch_keys, parse_keys
from headrace.security.sasl.oauthbearer import OAuthBearerServer, SigningKey, TokenRules
from headrace.testing.loop import run_virtual

NOW: Final = 1_800_000_000
RSA: Final = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
OTHER: Final = RSAKey.generate_key(2048, {"kid": "two"})
EC: Final = ECKey.generate_key("P-256", {"kid": "three", "alg": "ES256"})
ED: Final = OKPKey.generate_key("Ed25519", {"kid": "four"})
GOOD: Final = {"sub": "alice", "iat": NOW - 10, "exp": NOW + 600}


class StoppedClock:
    def now_ms(self) -> int:
        return NOW * 1000

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Keys:
    def __init__(self, keys: KeySet) -> None:
        self.keys = keys
        self.asked = 0

    def find(self, key_id: str | None, algorithm: str) -> SigningKey | None:
        return self.keys.find(key_id, algorithm)

    def look_again(self) -> Callable[[], Awaitable[object]] | None:
        self.asked += 1
        return None


def published(*keys: RSAKey | ECKey | OKPKey | OctKey) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=isinstance(key, OctKey)) for key in keys]}).encode()


KNOWN: Final = Keys(parse_keys(published(RSA, EC, ED)))


def token(claims: Mapping[str, Any] = GOOD, key: Any = RSA, algorithm: str = "RS256", **header: Any) -> str:
    head = {"alg": algorithm, "kid": key.kid, **header}
    return jwt.encode(
        {name: value for name, value in head.items() if value is not None}, dict(claims), key, [algorithm]
    )


def shown(text: str, rules: TokenRules | None = None, keys: Any = KNOWN) -> Done:
    done = OAuthBearerServer(keys, rules or TokenRules(), StoppedClock()).step(Client(text).first())
    assert isinstance(done, Done)
    return done


def refused(text: str, rules: TokenRules | None = None, keys: Any = KNOWN) -> str:
    with pytest.raises(AuthenticationFailed) as failed:
        shown(text, rules, keys)
    assert str(failed.value) == '{"status": "invalid_token"}'
    return failed.value.reason


def test_who_brings_a_good_token_comes_in_until_it_expires() -> None:
    done = shown(token())
    assert (done.principal, done.expires_at_ms) == ("User:alice", (NOW + 600) * 1000)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(RSA, "RS256"), (RSA, "RS512"), (RSA, "PS256"), (EC, "ES256"), (ED, "Ed25519"), (ED, "EdDSA")],
)
@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_every_usual_algorithm_is_understood(key: Any, algorithm: str) -> None:
    assert shown(token(key=key, algorithm=algorithm)).principal == "User:alice"


CLAIMS: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "expired": ({"exp": NOW - 31}, "expired"),
    "without expiry": ({"exp": None}, "no time of issue or of expiry"),
    "without time of issue": ({"iat": None}, "no time of issue or of expiry"),
    "not valid yet": ({"nbf": NOW + 31}, "not valid yet"),
    "issued later": ({"iat": NOW + 31}, "not valid yet"),
    "expired before issued": ({"iat": NOW + 20, "exp": NOW + 10}, "expired before it was issued"),
    "expiry is text": ({"exp": str(NOW + 600)}, "a claim exp that is no time"),
    "expiry is true": ({"exp": True}, "a claim exp that is no time"),
    "expiry is endless": ({"exp": 1e300}, "a claim exp that is no time"),
    "nobody": ({"sub": None}, "no name in claim sub"),
    "an empty name": ({"sub": " "}, "no name in claim sub"),
    "a number for a name": ({"sub": 7}, "no name in claim sub"),
    "for somebody": ({"aud": "payments"}, "made for somebody else"),
    "a scope that is none": ({"scope": {"a": 1}}, "a claim scope that is no scope"),
}


@pytest.mark.parametrize(("claims", "reason"), CLAIMS.values(), ids=CLAIMS)
def test_a_token_that_does_not_say_what_it_must_is_refused(claims: dict[str, Any], reason: str) -> None:
    given = {name: value for name, value in {**GOOD, **claims}.items() if value is not None}
    assert refused(token(given)) == reason


def test_clocks_may_be_off_by_so_much() -> None:
    assert shown(token({**GOOD, "iat": NOW - 600, "exp": NOW - 29})).expires_at_ms == (NOW + 1) * 1000
    assert shown(token({**GOOD, "nbf": NOW + 29})).principal == "User:alice"
    assert refused(token({**GOOD, "exp": NOW}), TokenRules(skew_seconds=0)) == "expired"


def test_issuer_and_audience_must_be_those_that_are_expected() -> None:
    rules = TokenRules(issuer="https://id", audiences=("kafka", "queue"))
    good = {**GOOD, "iss": "https://id", "aud": ["other", "queue"]}
    assert shown(token(good), rules).principal == "User:alice"
    assert shown(token({**good, "aud": "kafka"}), rules).principal == "User:alice"
    assert refused(token({**good, "iss": "https://evil"}), rules) == "issued by somebody else"
    assert refused(token({**good, "aud": ["other"]}), rules) == "made for somebody else"
    assert refused(token({**GOOD, "iss": "https://id"}), rules) == "made for somebody else"
    assert refused(token({**GOOD, "aud": "kafka"}), rules) == "issued by somebody else"


def test_another_claim_can_name_the_user() -> None:
    rules = TokenRules(subject_claim="client_id", scope_claim="scp")
    assert shown(token({**GOOD, "client_id": "orders", "scp": ["a"]}), rules).principal == "User:orders"
    assert refused(token(), rules) == "no name in claim client_id"


def unsigned(header: dict[str, Any], claims: Mapping[str, Any] = GOOD, signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def test_a_token_that_nobody_known_has_signed_is_refused() -> None:
    assert refused(token(key=OTHER)) == "no key that could have signed it"
    assert refused(token(key=OTHER, kid="one")) == "a signature that is wrong"
    assert refused(token()[:-8] + "AAAAAAAA") == "a signature that is wrong"
    header, _, signature = token().split(".")
    claims = base64.urlsafe_b64encode(json.dumps({**GOOD, "sub": "root"}).encode()).rstrip(b"=").decode()
    assert refused(f"{header}.{claims}.{signature}") == "a signature that is wrong"


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "HS512", "dir", "RS1", "", None, 5, ["RS256"]])
def test_an_algorithm_without_a_private_key_is_refused_whoever_is_said_to_have_signed(algorithm: Any) -> None:
    assert refused(unsigned({"alg": algorithm, "kid": "one"})).startswith("algorithm")


def test_the_public_key_is_no_password_of_an_hmac() -> None:
    """Which is how keys are confused: the key that everybody knows, used to sign."""
    header = {"alg": "HS256", "kid": "one"}
    signature = hmac.digest(RSA.as_pem(private=False), unsigned(header).rpartition(".")[0].encode(), "sha256")
    assert refused(unsigned(header, signature=signature)) == "algorithm 'HS256'"


def test_a_key_is_used_only_for_what_it_is_for() -> None:
    for_encryption = RSAKey.import_key({**RSA.as_dict(private=True), "use": "enc"})
    for_another = RSAKey.import_key({**RSA.as_dict(private=True), "alg": "PS256"})
    with pytest.raises(KeysUnavailable):
        parse_keys(published(for_encryption))
    assert refused(token(), keys=Keys(parse_keys(published(for_another)))) == "no key that could have signed it"


def test_a_token_without_the_id_of_its_key_counts_where_one_key_fits_alone() -> None:
    bare = jwt.encode({"alg": "RS256"}, dict(GOOD), RSA, ["RS256"])
    assert shown(bare).principal == "User:alice"
    assert refused(bare, keys=Keys(parse_keys(published(RSA, OTHER)))) == "no key that could have signed it"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer a.b.c",
        b"n,,\x01auth=Bearer a.b\x01\x01",
        b"n,,\x01auth=Bearer a.b.c.d.e\x01\x01",
        b"n,,\x01auth=Bearer e30.e30.\x01\x01",
        b"n,,\x01auth=Bearer " + b"W" * 5000 + b".e30.\x01\x01",
        b"y,,\x01auth=Bearer e30.e30.e30\x01\x01",
        b"n,,\x01auth=Bearer e30.e30.e30\x01auth=Bearer e30.e30.e30\x01\x01",
        b"n,,\x01auth=Bearer " + b"x" * 100_000 + b"\x01\x01",
        b"\xff\xfe",
    ],
)
def test_what_is_no_token_is_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        OAuthBearerServer(KNOWN, TokenRules(), StoppedClock()).step(message)


def test_no_name_but_ones_own_may_be_given() -> None:
    def step(authorization_id: str) -> Done | Wait:
        message = f"n,a={authorization_id},\x01auth=Bearer {token()}\x01host=h\x01\x01".encode()
        return OAuthBearerServer(KNOWN, TokenRules(), StoppedClock()).step(message)

    assert isinstance(step("alice"), Done)
    with pytest.raises(AuthenticationFailed):
        step("bob")


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_no_bytes_at_all_are_more_than_refused(head: bytes, claims: bytes, signature: bytes) -> None:
    parts = (base64.urlsafe_b64encode(part).rstrip(b"=") for part in (head, claims, signature))
    for message in (head + claims, b"n,,\x01auth=Bearer " + b".".join(parts) + b"\x01\x01"):
        with pytest.raises(AuthenticationFailed):
            OAuthBearerServer(KNOWN, TokenRules(), StoppedClock()).step(message)


class Published:
    """Where keys are fetched from."""

    def __init__(self, *documents: bytes) -> None:
        self.documents = list(documents)
        self.fetches = 0

    def fetch(self, _url: str) -> bytes:
        self.fetches += 1
        if not self.documents:
            raise KeysUnavailable("nobody there")
        return self.documents.pop(0) if len(self.documents) > 1 else self.documents[0]

    async def run(self, work: Callable[[], KeySet]) -> KeySet:
        await asyncio.sleep(0.5)
        return work()

    def book(self) -> KeyBook:
        return KeyBook(
            "https://id",
            fetch=self.fetch,
            run=self.run,
            clock=StoppedClock(),
            refresh_ms=60_000,
            backoff_ms=(100, 1000),
        )


def test_a_new_key_is_fetched_when_it_is_met_and_not_for_every_stranger() -> None:
    async def main() -> None:
        there = Published(published(RSA), published(RSA, OTHER))
        book = there.book()
        assert await book.refresh()
        await asyncio.sleep(20)
        exchange = OAuthBearerServer(book, TokenRules(), StoppedClock())
        message = Client(token(key=OTHER)).first()
        wait = exchange.step(message)
        assert isinstance(wait, Wait)
        await asyncio.gather(*(wait.until() for _ in range(5)))
        assert there.fetches == 2, "those who wait at the same time wait for one fetch"
        assert isinstance(exchange.step(message), Done)
        stranger = RSAKey.generate_key(2048, {"kid": "stranger"})
        with pytest.raises(AuthenticationFailed):
            OAuthBearerServer(book, TokenRules(), StoppedClock()).step(Client(token(key=stranger)).first())
        assert there.fetches == 2

    run_virtual(main)


def test_who_waited_in_vain_is_refused() -> None:
    async def main() -> None:
        book = Published(published(RSA)).book()
        exchange = OAuthBearerServer(book, TokenRules(), StoppedClock())
        message = Client(token(key=OTHER)).first()
        wait = exchange.step(message)
        assert isinstance(wait, Wait)
        await wait.until()
        with pytest.raises(AuthenticationFailed):
            exchange.step(message)

    run_virtual(main)


def test_without_keys_nobody_comes_in_and_old_ones_stay_where_new_ones_cannot_be_had() -> None:
    async def main() -> None:
        there = Published()
        book = there.book()
        following = asyncio.ensure_future(book.follow())
        await asyncio.sleep(3)
        assert there.fetches > 2, "it is tried again soon"
        assert book.find("one", "RS256") is None
        there.documents = [published(RSA)]
        await asyncio.sleep(3)
        assert book.find("one", "RS256") is not None
        for broken in (b"", b"[]", b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "AAAA"}]}', b"[" * 100_000):
            there.documents = [broken]
            await asyncio.sleep(120)
            assert book.find("one", "RS256") is not None
        following.cancel()

    run_virtual(main)


@pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")
def test_weak_and_secret_keys_are_passed_over() -> None:
    weak = RSAKey.generate_key(1024, {"kid": "weak"})
    found = parse_keys(published(weak, RSA, OctKey.generate_key(256, {"kid": "secret"})))
    assert found.find("weak", "RS256") is None
    assert found.find("secret", "HS256") is None
    assert found.find("one", "RS256") is not None


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key set.json"
    file.write_bytes(published(RSA))
    assert parse_keys(fetch_keys(file.as_uri())).find("one", "RS256") is not None
    with pytest.raises(KeysUnavailable, match="No such file"):
        fetch_keys((tmp_path / "absent").as_uri())
    file.write_bytes(bytes(2 << 20))
    with pytest.raises(KeysUnavailable, match="larger"):
        fetch_keys(file.as_uri())


class Site(BaseHTTPRequestHandler):
    """Serves keys, and what is none."""

    def do_GET(self) -> None:
        if self.path == "/garbage":
            self.wfile.write(b"what is this")
            return
        self.send_response({"/keys": 200, "/large": 200, "/moved": 302}.get(self.path, 404))
        self.send_header("Location", "/keys")
        self.end_headers()
        self.wfile.write(bytes(2 << 20) if self.path == "/large" else published(RSA))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_keys_come_from_a_server_and_from_nowhere_it_points_to(site: str) -> None:
    assert parse_keys(fetch_keys(f"{site}/keys")).find("one", "RS256") is not None
    for path, words in (("/moved", "302"), ("/absent", "404"), ("/large", "larger"), ("/garbage", "what is this")):
        with pytest.raises(KeysUnavailable, match=words):
            fetch_keys(f"{site}{path}")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "http://", "http://[", "http://a b/", "ftp://127.0.0.1/", "file:///"]
)
def test_an_address_that_leads_nowhere_gives_no_keys(url: str) -> None:
    with pytest.raises(KeysUnavailable):
        fetch_keys(url)
