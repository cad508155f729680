"""A broker's certificates follow its settings and files, while it runs: what is new is used, what is bad is refused."""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import uvloop
from structlog.testing import capture_logs

from headrace.config import BrokerConfig, ConfigError
from headrace.health import ProblemCode
from headrace.metrics.exposition import render
from headrace.net.keystore import read_pem
from headrace.net.tls import ServerTls, ServerTlsSettings
from headrace.server.broker import Broker
from headrace.server.tls import ListenerTls
from tests.support.certificates import Authority

AUTHORITY = Authority()
OLD, NEW = AUTHORITY.sign("old", ends=100), AUTHORITY.sign("new", ends=200)


async def inline(work: Callable[[], None]) -> None:
    work()


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1000)


def made(config: BrokerConfig, protocol: str = "SSL", clock: Clock | None = None) -> ListenerTls:
    loop = asyncio.new_event_loop()
    try:
        return ListenerTls(loop, config, protocol.lower(), protocol, (clock or Clock()).now_ms, inline)
    finally:
        loop.close()


def settings(directory: Path, **more: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(directory / "server.pem"), **named}


def watched(tls: ListenerTls, what: Callable[[ListenerTls], Awaitable[None]] = ListenerTls.watch) -> list[str]:
    """The events logged by a look at what has changed."""
    with capture_logs() as logs:
        asyncio.run(what(tls))  # type: ignore[arg-type]
    return [line["event"] for line in logs]


@pytest.mark.parametrize("allowed", [False, True])
def test_a_listener_beyond_this_machine_is_not_opened_to_all_while_it_runs_unless_that_is_allowed(
    tmp_path: Path, allowed: bool
) -> None:
    OLD.write(tmp_path / "server.pem")
    AUTHORITY.write(tmp_path / "ca.pem")
    given = {
        **settings(tmp_path),
        "listeners": "SSL://10.0.0.1:9093",
        "ssl.client.auth": "required",
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "headrace.allow.anonymous.listeners": str(allowed).lower(),
    }
    config = BrokerConfig(given)
    tls = made(config)
    config.use_dynamic(cluster={"ssl.client.auth": "none"}, own={})
    assert watched(tls) == [f"TLS certificate {'renewed' if allowed else 'refused'}"]
    assert tls.tls.settings.client_auth == ("none" if allowed else "required")
    assert [problem.code for problem in tls.problems()] == ([] if allowed else [ProblemCode.CERTIFICATE_REFUSED])


def test_a_certificate_that_is_replaced_is_taken_up_and_a_bad_one_is_not(tmp_path: Path) -> None:
    OLD.write(tmp_path / "server.pem")
    tls = made(BrokerConfig(settings(tmp_path)))
    before = tls.tls.context
    assert watched(tls) == []
    NEW.write(tmp_path / "server.pem")
    assert watched(tls) == ["TLS certificate renewed"]
    assert tls.tls.certificate.subject == "CN=new"
    assert tls.tls.context is not before
    now = tls.tls.context
    (tmp_path / "server.pem").write_text(NEW.chain_pem + OLD.key_pem())
    assert watched(tls) == ["TLS certificate refused"]
    assert watched(tls) == []  # once for each change
    (problem,) = tls.problems()
    assert problem.code is ProblemCode.CERTIFICATE_REFUSED
    assert "the key is not that of the certificate" in problem.message
    assert tls.tls.context is now
    (tmp_path / "server.pem").unlink()
    assert watched(tls) == ["TLS certificate refused"]
    AUTHORITY.sign("late", begins=-9, ends=-1).write(tmp_path / "server.pem")
    assert watched(tls) == ["TLS certificate refused"]
    assert tls.tls.context is now
    NEW.write(tmp_path / "server.pem")
    assert watched(tls) == ["TLS certificate renewed"]
    assert list(tls.problems()) == []


def test_a_refused_file_that_is_put_back_as_it_was_is_no_problem_any_more(tmp_path: Path) -> None:
    path = tmp_path / "server.pem"
    OLD.write(path)
    tls = made(BrokerConfig(settings(tmp_path)))
    kept = path.rename(tmp_path / "aside")
    assert watched(tls) == ["TLS certificate refused"]
    kept.rename(path)
    assert watched(tls) == []
    assert list(tls.problems()) == []


def test_sighup_reads_again_also_what_looks_the_same(tmp_path: Path) -> None:
    OLD.write(tmp_path / "server.pem")
    tls = made(BrokerConfig(settings(tmp_path)))
    assert watched(tls, ListenerTls.renew) == ["TLS certificate renewed"]


def test_settings_that_change_are_taken_up(tmp_path: Path) -> None:
    """Those of the listener go before those of all; a new file is read, or a request has changed them."""
    OLD.write(tmp_path / "server.pem")
    NEW.write(tmp_path / "other.pem")
    config = BrokerConfig(settings(tmp_path))
    tls = made(config)
    own = "listener.name.ssl.ssl.keystore.location"
    reloaded = config.reload(BrokerConfig({**settings(tmp_path), own: str(tmp_path / "other.pem")}))
    assert (len(reloaded.changed), reloaded.needs_restart) == (1, [])
    assert watched(tls) == ["TLS certificate renewed"]
    assert tls.tls.certificate.subject == "CN=new"
    config.use_dynamic(cluster={}, own={own: str(tmp_path / "server.pem")})
    assert watched(tls) == ["TLS certificate renewed"]
    assert tls.tls.certificate.subject == "CN=old"
    config.use_dynamic(cluster={}, own={"ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/"})
    assert watched(tls) == ["TLS certificate renewed"]
    assert tls.handshakes.mapping.principal("CN=bob") == "User:bob"
    config.use_dynamic(cluster={}, own={"ssl.principal.mapping.rules": "nonsense"})
    assert watched(tls) == ["TLS certificate refused"]
    assert tls.handshakes.mapping.principal("CN=bob") == "User:bob"


def test_operators_are_warned_before_a_certificate_expires(tmp_path: Path) -> None:
    OLD.write(tmp_path / "server.pem")
    clock = Clock()
    tls = made(BrokerConfig(settings(tmp_path)), clock=clock)
    clock.now = tls.tls.certificate.expires - timedelta(days=15)
    assert list(tls.problems()) == []
    clock.now = tls.tls.certificate.expires - timedelta(days=13, hours=23)
    assert [(p.code, "in 13 day(s)" in p.message) for p in tls.problems()] == [(ProblemCode.CERTIFICATE_EXPIRES, True)]
    clock.now = tls.tls.certificate.expires + timedelta(seconds=1)
    assert [p.code for p in tls.problems()] == [ProblemCode.CERTIFICATE_EXPIRED]


def test_handshakes_and_expiry_are_metrics_and_problems_are_reported(tmp_path: Path) -> None:
    soon = AUTHORITY.sign(ends=5)
    soon.write(tmp_path / "server.pem")

    async def work() -> None:
        broker = Broker(BrokerConfig(settings(tmp_path, log_dirs=str(tmp_path / "data"))))
        await broker.start()
        try:
            host, port = broker.bootstrap.split(":")
            context = ssl.create_default_context(cadata=AUTHORITY.pem)
            _, writer = await asyncio.open_connection(host, int(port), ssl=context)
            writer.close()
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.read()
            text = render(await broker.metrics.collect()).body.decode()
            assert 'headrace_tls_handshakes_total{listener="ssl",outcome="succeeded"} 1.0' in text
            assert 'headrace_tls_handshakes_total{listener="ssl",outcome="failed"} 1.0' in text
            (expiry,) = re.findall(r'\nheadrace_tls_certificate_expiry_timestamp_seconds{listener="ssl"} (\S+)', text)
            assert float(expiry) == soon.certificate.not_valid_after_utc.timestamp()
            report = await broker.health.report()
            assert ProblemCode.CERTIFICATE_EXPIRES in {problem.code for problem in report.problems}
            assert report.ready
        finally:
            await broker.stop()

    uvloop.run(work())


def test_what_stands_for_all_listeners_asks_no_certificates_of_those_with_sasl(tmp_path: Path) -> None:
    OLD.write(tmp_path / "server.pem")
    ca = AUTHORITY.write(tmp_path / "ca.pem")
    given = settings(tmp_path, ssl_client_auth="required", ssl_truststore_location=ca)
    assert made(BrokerConfig(given)).tls.settings.client_auth == "required"
    assert made(BrokerConfig(given), "SASL_SSL").tls.settings.client_auth == "none"
    own = {"listener.name.sasl_ssl.ssl.client.auth": "requested"}
    assert made(BrokerConfig(given | own), "SASL_SSL").tls.settings.client_auth == "requested"


def test_every_form_of_keystore_is_read(tmp_path: Path) -> None:
    OLD.write_pkcs12(tmp_path / "server.p12", "secret")
    OLD.write(tmp_path / "locked.pem", "secret")
    forms: list[dict[str, str]] = [
        {"ssl.keystore.location": str(tmp_path / "server.p12"), "ssl.keystore.password": "secret"},
        {"ssl.keystore.location": str(tmp_path / "locked.pem"), "ssl.key.password": "secret"},
        {
            "ssl.keystore.certificate.chain": OLD.chain_pem,
            "ssl.keystore.key": OLD.key_pem(),
            "ssl.keystore.type": "PEM",
        },
        {
            "ssl.keystore.certificate.chain": OLD.chain_pem.replace("\n", " "),
            "ssl.keystore.key": OLD.key_pem("x").replace("\n", ""),
            "ssl.key.password": "x",
            "ssl.truststore.certificates": AUTHORITY.pem.replace("\n", " "),
            "ssl.client.auth": "required",
        },
    ]
    for form in forms:
        assert made(BrokerConfig({"listeners": "SSL://127.0.0.1:0", **form})).tls.certificate.subject == "CN=old"


def test_no_secret_is_shown() -> None:
    settings = ServerTlsSettings(certificate_chain=OLD.chain_pem, key=OLD.key_pem(), key_password="hunter2")
    for shown in (repr(settings), repr(read_pem("x", OLD.key_pem() + OLD.chain_pem)), repr(ServerTls(settings))):
        assert "hunter2" not in shown
        assert "PRIVATE KEY" not in shown


JKS = b"\xfe\xed\xfe\xed\x00\x00\x00\x02"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ssl.keystore.location": ""}, "TLS needs a certificate and its key"),
        ({"ssl.keystore.location": "/nowhere.pem"}, "'/nowhere.pem' cannot be read: no such file"),
        ({"ssl.keystore.location": "{jks}"}, "keytool -importkeystore"),
        ({"ssl.keystore.location": "{text}"}, "has no certificate and no key in PEM"),
        ({"ssl.keystore.location": "{ca}"}, "has no private key"),
        ({"ssl.keystore.location": "{p12}", "ssl.keystore.password": "wrong"}, "is its password right?"),
        ({"ssl.keystore.location": "{p12}", "ssl.keystore.type": "PEM"}, "is not PEM"),
        ({"ssl.keystore.location": "{locked}", "ssl.key.password": "wrong"}, "is ssl.key.password right?"),
        ({"ssl.keystore.location": "{locked}"}, "is encrypted: set ssl.key.password"),
        ({"ssl.client.auth": "required"}, "set ssl.truststore.location"),
        ({"ssl.client.auth": "required", "ssl.truststore.location": "{jks}"}, "is a Java keystore"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_RC4_128_MD5"}, "TLS_RSA_WITH_RC4_128_MD5, which is not served"),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "cannot be chosen one by one"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "one or more of TLSv1.2, TLSv1.3"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "is no rule"),
        ({"ssl.keystore.key": "-"}, "keep one of them"),
    ],
)
def test_what_cannot_be_used_is_told_with_what_to_do(tmp_path: Path, given: dict[str, str], words: str) -> None:
    (tmp_path / "jks").write_bytes(JKS)
    (tmp_path / "text").write_text("hello")
    AUTHORITY.write(tmp_path / "ca")
    OLD.write(tmp_path / "server.pem")
    OLD.write(tmp_path / "locked", "secret")
    OLD.write_pkcs12(tmp_path / "p12", "secret")
    places = {name: str(tmp_path / name) for name in ("jks", "text", "ca", "p12", "locked")}
    with pytest.raises(ConfigError) as caught:
        made(BrokerConfig({**settings(tmp_path), **{name: value.format(**places) for name, value in given.items()}}))
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
