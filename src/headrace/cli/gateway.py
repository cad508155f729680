"""`headrace gateway`: HTTP beside the brokers."""

import gc
import json as jsonlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from headrace.net.address import Address, is_loopback, parse_bootstrap
from headrace.net.turns import SHORT_NS, ask_for_turns

from . import gateway_options as options
from .console import bad_input, examples, say, say_json
from .listening import exit_with, friendly_bind, stop_with_stdin, survive_hangup
from .logs import FormatOption, LevelOption, LogFormat, LogLevel, configure_logs
from .options import DEFAULT_BOOTSTRAP, Bootstrap, Json, address, bootstrap_list
from .service_manager import ServiceManager

if TYPE_CHECKING:
    import ssl

    from headrace.gateway.settings import Account, Settings
    from headrace.web.guard import Guard
    from headrace.web.server import Listen


_COLLECT_AFTER: Final = (50_000, 4, 250)
"""Allocations between garbage collections: requests make no cycles, and what is there at the start stays."""


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace gateway --bootstrap 127.0.0.1:9092 --http 127.0.0.1:8080",
            "headrace gateway --http 0.0.0.0:8443 --tls-cert server.pem --sasl-mechanism SCRAM-SHA-512 "
            "--allow-host queue.example.com",
            "headrace gateway --sasl-mechanism SCRAM-SHA-512 --user gateway --password-file secret",
            "curl http://127.0.0.1:8080/readyz",
        )
    )(gateway)


def gateway(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    http: options.Http = "127.0.0.1:8080",
    allow_anonymous: options.AllowAnonymous = False,
    metrics: options.Metrics = True,
    advertise: options.Advertise = "",
    allow_host: options.AllowHost = None,
    allow_origin: options.AllowOrigin = None,
    rate_limit: options.RateLimit = 0,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    client_ca: options.ClientCa = None,
    client_users: options.ClientUsers = None,
    sasl_mechanism: options.SaslMechanism = None,
    user: options.User = "",
    password_file: options.PasswordFile = None,
    broker_tls: options.BrokerTls = False,
    broker_ca: options.BrokerCa = None,
    push_allow: options.PushAllow = None,
    push_keys: options.PushKeys = None,
    delays: options.Delays = True,
    json: Json = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = LogLevel.INFO,
    with_stdin: options.WithStdin = False,
) -> None:
    """Serve HTTP for a cluster, in the foreground: REST, streams, request and reply, push.

    /docs shows all of it, /openapi.json for programs; /healthz answers while this process serves, /readyz while the
    cluster does. Credentials of callers are handed to the brokers, which decide.
    """
    survive_hangup()
    listen = address(http, "--http")
    configure_logs(log_format, log_level)
    if with_stdin:
        stop_with_stdin()
    from headrace.gateway.settings import Settings
    from headrace.web.guard import Guard
    from headrace.web.server import Listen

    settings = Settings(
        bootstrap=tuple(parse_bootstrap(bootstrap_list(bootstrap))),
        mechanism=_mechanism(sasl_mechanism),
        broker_tls=_broker_context(broker_ca) if broker_tls or broker_ca else None,
        own=_own_account(user, password_file),
        certificates=_users(client_users),
        push_allow=tuple(push_allow or ()),
        push_keys=_push_keys(push_keys),
        advertise=advertise.rstrip("/"),
        metrics=metrics,
        mover=_mover(sasl_mechanism, user, password_file, tls=broker_tls, ca=broker_ca) if delays else None,
    )
    _require_account(settings)
    guard = Guard(hosts=[listen.host, *(allow_host or ())], origins=allow_origin or (), rate=rate_limit)
    listening = Listen(
        host=listen.host,
        port=listen.port,
        certificate=_readable(tls_cert, "--tls-cert"),
        key=_readable(tls_key, "--tls-key"),
        client_ca=_readable(client_ca, "--client-ca"),
        requires_certificate=settings.mechanism is None,
    )
    if not allow_anonymous:
        _refuse_open(settings, listening)
    _serve(settings, listening, guard, in_json=json)


def _serve(settings: "Settings", listening: "Listen", guard: "Guard", *, in_json: bool) -> None:
    from headrace.gateway.app import run_gateway
    from headrace.gateway.schemas import mount_registry

    manager = ServiceManager()

    def ready(host: str, port: int) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECT_AFTER)
        ask_for_turns(SHORT_NS)
        url = f"{'http' if listening.certificate is None else 'https'}://{Address(host, port)}"
        manager.ready(f"the gateway serves at {url}")
        say_json({"ready": True, "http": url}) if in_json else say(f"headrace ready http={url}")

    with friendly_bind(Address(listening.host, listening.port), "--http"):
        code = run_gateway(settings, listening, ready, guard, [mount_registry], manager.stopping)
    exit_with(code)


def _mechanism(name: str | None) -> str | None:
    from headrace.client.core.sasl import MECHANISMS

    if name is not None and name not in MECHANISMS:
        raise bad_input(f"--sasl-mechanism '{name}' is none of {', '.join(MECHANISMS)}")
    return name


def _require_account(settings: "Settings") -> None:
    if settings.own is not None and settings.mechanism is None:
        raise bad_input("--user is of no use without --sasl-mechanism")
    if settings.own is not None and settings.mechanism == "OAUTHBEARER":
        raise bad_input(
            "--user has no token for --sasl-mechanism OAUTHBEARER: name SCRAM-SHA-512 there, which the brokers must "
            "have too; callers' bearer tokens go out as OAUTHBEARER all the same"
        )


def _refuse_open(settings: "Settings", listening: "Listen") -> None:
    """Callers from other machines have to show who they are."""
    asks = settings.mechanism is not None or (listening.certificate is not None and listening.client_ca is not None)
    if asks or is_loopback(listening.host):
        return
    raise bad_input(
        f"--http {Address(listening.host, listening.port)}: anybody who reaches this machine could do everything "
        "there. Let callers log in (--sasl-mechanism, with --tls-cert), ask for their certificates (--tls-cert with "
        "--client-ca), or listen on 127.0.0.1; where everybody may, or a proxy authenticates, say --allow-anonymous"
    )


def _own_account(user: str, password_file: Path | None) -> "Account | None":
    from headrace.gateway.settings import Account

    if bool(user) != (password_file is not None):
        raise bad_input("--user and --password-file go together")
    if password_file is None:
        return None
    _readable(password_file, "--password-file")
    return Account(username=user, password=password_file.read_text().rstrip("\r\n"))


def _push_keys(path: Path | None) -> tuple[bytes, ...]:
    from headrace.gateway.push.sealing import read_keys

    if path is None:
        return ()
    _readable(path, "--push-keys")
    try:
        keys = read_keys(path.read_text().splitlines())
    except ValueError as error:
        raise bad_input(f"--push-keys '{path}': {error}") from error
    if not keys:
        raise bad_input(f"--push-keys '{path}' has no key: openssl rand -base64 32 makes one")
    return keys


def _mover(
    mechanism: str | None, user: str, password_file: Path | None, *, tls: bool, ca: Path | None
) -> dict[str, str] | None:
    """How delayed messages are moved: as the gateway's own user; None where it has none and needs one."""
    if mechanism is not None and password_file is None:
        return None
    tls = tls or ca is not None
    protocol = ("SASL_SSL" if tls else "SASL_PLAINTEXT") if mechanism else ("SSL" if tls else "PLAINTEXT")
    found = {"security.protocol": protocol}
    if mechanism is not None and password_file is not None:
        password = password_file.read_text().rstrip("\r\n")
        found |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    return found if ca is None else {**found, "ssl.ca.location": str(ca)}


def _broker_context(authority: Path | None) -> "ssl.SSLContext":
    from headrace.net.tls import TlsSettings, client_context

    try:
        return client_context(TlsSettings(ca_location=None if authority is None else str(authority)))
    except ValueError as error:
        raise bad_input(f"--broker-ca: {error}") from error


def _users(path: Path | None) -> "Mapping[str, Account]":
    from headrace.gateway.settings import Account

    if path is None:
        return {}
    _readable(path, "--client-users")
    try:
        found = jsonlib.loads(path.read_bytes())
        return {
            str(name): Account(username=each["username"], password=each["password"]) for name, each in found.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        form = '{"common name": {"username": "…", "password": "…"}}'
        raise bad_input(f"--client-users '{path}' is not {form}: {error}") from error


def _readable(path: Path | None, option: str) -> str | None:
    if path is None:
        return None
    try:
        path.open("rb").close()
    except OSError as error:
        raise bad_input(f"{option} '{path}' cannot be read: {(error.strerror or str(error)).lower()}") from error
    return str(path)
