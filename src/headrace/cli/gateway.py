"""`headrace gateway`: HTTP beside the brokers."""

import json as jsonlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.client.probe import Address, parse_bootstrap

from .console import bad_input, examples, say, say_json
from .listening import exit_with, friendly_bind, stop_with_stdin
from .logs import FormatOption, LevelOption, LogFormat, LogLevel, configure_logs
from .options import DEFAULT_BOOTSTRAP, Bootstrap, Json, address, bootstrap_list

if TYPE_CHECKING:
    import ssl

    from headrace.gateway.settings import Account, Settings

_CALLERS = "Callers"
_BROKERS = "Brokers"
_PUSH = "Push"


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace gateway --bootstrap 127.0.0.1:9092 --http 127.0.0.1:8080",
            "headrace gateway --http 0.0.0.0:8443 --tls-cert server.pem --allow-host queue.example.com",
            "headrace gateway --sasl-mechanism SCRAM-SHA-512 --user gateway --password-file secret",
            "curl http://127.0.0.1:8080/readyz",
        )
    )(gateway)


def gateway(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    http: Annotated[str, typer.Option("--http", metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:8080",
    advertise: Annotated[
        str,
        typer.Option(help="The URL at which this very gateway is reached, for members of groups that it keeps."),
    ] = "",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_CALLERS,
            help="A name by which callers may ask for this gateway, * for any; addresses and localhost always may.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL", rich_help_panel=_CALLERS, help="A site whose pages may write; no other than our own may."
        ),
    ] = None,
    rate_limit: Annotated[
        float,
        typer.Option(min=0, rich_help_panel=_CALLERS, help="Requests a second of one caller; 0 for no limit."),
    ] = 0,
    tls_cert: Annotated[
        Path | None, typer.Option(rich_help_panel=_CALLERS, help="Serve HTTPS with this certificate, PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(rich_help_panel=_CALLERS, help="Its key, where it is not in the same file.")
    ] = None,
    client_ca: Annotated[
        Path | None, typer.Option(rich_help_panel=_CALLERS, help="Take certificates of callers that this one signed.")
    ] = None,
    client_users: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_CALLERS,
            help='Whose they are: JSON, {"common name": {"username": "…", "password": "…"}}.',
        ),
    ] = None,
    sasl_mechanism: Annotated[
        str | None,
        typer.Option(
            metavar="MECHANISM",
            rich_help_panel=_BROKERS,
            help="What callers' names and passwords go out with: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER "
            "(tokens only). Without it everybody is anonymous.",
        ),
    ] = None,
    user: Annotated[
        str, typer.Option(rich_help_panel=_BROKERS, help="The gateway's own user, for push and probes.")
    ] = "",
    password_file: Annotated[
        Path | None, typer.Option(rich_help_panel=_BROKERS, help="The file with its password.")
    ] = None,
    broker_tls: Annotated[
        bool, typer.Option("--broker-tls", rich_help_panel=_BROKERS, help="Brokers have TLS.")
    ] = False,
    broker_ca: Annotated[
        Path | None, typer.Option(rich_help_panel=_BROKERS, help="Who signed their certificates, PEM.")
    ] = None,
    push_allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|NETWORK",
            rich_help_panel=_PUSH,
            help="Where callbacks may lead beside public addresses: hooks.internal, 10.0.0.0/8.",
        ),
    ] = None,
    json: Json = False,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = LogLevel.INFO,
    with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Serve HTTP for a cluster, in the foreground: REST, streams, request and reply, push.

    /docs shows all of it, /openapi.json for programs; /healthz answers while this process serves, /readyz while the
    cluster does. Credentials of callers are handed to the brokers, which decide.
    """
    listen = address(http, "--http")
    configure_logs(log_format, log_level)
    if with_stdin:
        stop_with_stdin()
    from headrace.gateway.app import run_gateway
    from headrace.gateway.schemas import mount_registry
    from headrace.gateway.settings import Settings
    from headrace.net.channel import Address as Broker
    from headrace.web.guard import Guard
    from headrace.web.server import Listen

    settings = Settings(
        bootstrap=tuple(Broker(*each) for each in parse_bootstrap(bootstrap_list(bootstrap))),
        mechanism=_mechanism(sasl_mechanism),
        broker_tls=_broker_context(broker_ca) if broker_tls or broker_ca else None,
        own=_own_account(user, password_file),
        certificates=_users(client_users),
        push_allow=tuple(push_allow or ()),
        advertise=advertise.rstrip("/"),
    )
    _require_account(settings)
    guard = Guard(hosts=[listen.host, *(allow_host or ())], origins=allow_origin or (), rate=rate_limit)
    place = Listen(
        host=listen.host,
        port=listen.port,
        certificate=_readable(tls_cert, "--tls-cert"),
        key=_readable(tls_key, "--tls-key"),
        client_ca=_readable(client_ca, "--client-ca"),
    )
    scheme = "http" if tls_cert is None else "https"

    def ready(host: str, port: int) -> None:
        url = f"{scheme}://{Address(host, port)}"
        say_json({"ready": True, "http": url}) if json else say(f"headrace ready http={url}")

    with friendly_bind(listen, "--http"):
        code = run_gateway(settings, place, ready, guard, [mount_registry])
    exit_with(code)


def _mechanism(name: str | None) -> str | None:
    from headrace.net.sasl import MECHANISMS

    if name is not None and name not in MECHANISMS:
        raise bad_input(f"--sasl-mechanism '{name}' is none of {', '.join(MECHANISMS)}")
    return name


def _require_account(settings: "Settings") -> None:
    if settings.own is not None and settings.mechanism is None:
        raise bad_input("--user is of no use without --sasl-mechanism")


def _own_account(user: str, password_file: Path | None) -> "Account | None":
    from headrace.gateway.settings import Account

    if bool(user) != (password_file is not None):
        raise bad_input("--user and --password-file go together")
    if password_file is None:
        return None
    _readable(password_file, "--password-file")
    return Account(username=user, password=password_file.read_text().rstrip("\r\n"))


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
