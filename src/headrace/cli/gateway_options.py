"""The options of `headrace gateway`."""

from pathlib import Path
from typing import Annotated, Final

import typer

_CALLERS: Final = "Callers"
_BROKERS: Final = "Brokers"
_PUSH: Final = "Push"

Http = Annotated[str, typer.Option("--http", metavar="HOST:PORT", help="Where to listen.")]
AllowAnonymous = Annotated[
    bool,
    typer.Option(
        "--allow-anonymous",
        rich_help_panel=_CALLERS,
        help="Listen beyond this machine also where callers do not show who they are.",
    ),
]
Metrics = Annotated[
    bool, typer.Option("--metrics/--no-metrics", help="Whether /metrics is served there, for Prometheus.")
]
Advertise = Annotated[
    str,
    typer.Option(help="The URL at which this very gateway is reached, for members of groups that it keeps."),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=_CALLERS,
        help="A name by which callers may ask for this gateway, * for any; addresses and localhost always may.",
    ),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL", rich_help_panel=_CALLERS, help="A site whose pages may write; no other than our own may."
    ),
]
RateLimit = Annotated[
    float,
    typer.Option(min=0, rich_help_panel=_CALLERS, help="Requests a second of one caller; 0 for no limit."),
]
TlsCert = Annotated[Path | None, typer.Option(rich_help_panel=_CALLERS, help="Serve HTTPS with this certificate, PEM.")]
TlsKey = Annotated[
    Path | None, typer.Option(rich_help_panel=_CALLERS, help="Its key, where it is not in the same file.")
]
ClientCa = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=_CALLERS,
        help="Take certificates of callers that this one signed; without --sasl-mechanism each must have one.",
    ),
]
ClientUsers = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=_CALLERS,
        help='Whose they are: JSON, {"common name": {"username": "…", "password": "…"}}.',
    ),
]
SaslMechanism = Annotated[
    str | None,
    typer.Option(
        metavar="MECHANISM",
        rich_help_panel=_BROKERS,
        help="What callers' names and passwords go out with: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER "
        "(tokens only). Without it everybody is anonymous.",
    ),
]
User = Annotated[str, typer.Option(rich_help_panel=_BROKERS, help="The gateway's own user, for push and probes.")]
PasswordFile = Annotated[Path | None, typer.Option(rich_help_panel=_BROKERS, help="The file with its password.")]
BrokerTls = Annotated[bool, typer.Option("--broker-tls", rich_help_panel=_BROKERS, help="Brokers have TLS.")]
BrokerCa = Annotated[Path | None, typer.Option(rich_help_panel=_BROKERS, help="Who signed their certificates, PEM.")]
PushAllow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME|NETWORK",
        rich_help_panel=_PUSH,
        help="Where callbacks may lead beside public addresses: hooks.internal, 10.0.0.0/8.",
    ),
]
PushKeys = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=_PUSH,
        help="Keys that subscriptions and their secrets are encrypted with, the same file for all gateways: one a "
        "line, 32 bytes in base64 (openssl rand -base64 32); the first encrypts, each decrypts.",
    ),
]
Delays = Annotated[
    bool,
    typer.Option(
        "--delays/--no-delays",
        rich_help_panel=_BROKERS,
        help="Whether delayed messages and schedules are moved by this gateway, as its own user.",
    ),
]
WithStdin = Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)]
