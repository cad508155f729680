"""`headrace token`: delegation tokens, which stand for a user for some time without its password."""

import base64
import time
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from headrace.client.core.security import DelegationToken

from . import connecting
from .acl import principal_of
from .console import bad_input, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json
from .units import without_units

app = typer.Typer(
    help="Make, renew, expire and list delegation tokens.",
    epilog=examples("headrace token create --max-lifetime 7d", "headrace token list"),
    no_args_is_help=True,
)

_LONGEST: Final = -1

Token = Annotated[str, typer.Argument(metavar="TOKEN", help="The token, by its id.")]


@app.command(
    epilog=examples(
        "headrace token create --max-lifetime 7d --renewer ops",
        "headrace token create --owner alice --json",
    )
)
def create(
    renewer: Annotated[
        list[str] | None, typer.Option("--renewer", metavar="USER", help="Who else may renew it; may be repeated.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", metavar="USER", help="For whom it stands; whoever asks, if absent.")
    ] = None,
    max_lifetime: Annotated[
        str | None, typer.Option("--max-lifetime", metavar="TIME", help="For how long it can be renewed: 7d.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Make a token. Its id and HMAC are user and password for SCRAM; they are shown once, here."""
    lifetime = _milliseconds(max_lifetime, "--max-lifetime")
    with connecting.security_operations(bootstrap, properties) as operations:
        token = operations.create_token(
            [principal_of(each) for each in renewer or ()],
            owner=None if owner is None else principal_of(owner),
            lifetime_ms=lifetime,
        )
    hmac = base64.b64encode(token.hmac).decode()
    if json:
        say_json({**_to_json(token), "hmac": hmac})
        return
    say(f"owner     {token.owner}")
    say(f"expires   {_time(token.expires_ms)}; it can be renewed until {_time(token.most_ms)}")
    say('Connect with sasl.mechanism=SCRAM-SHA-512 (or -256), sasl.jaas.config in Java with tokenauth="true", and')
    say(f"username  {token.id}")
    say(f"password  {hmac}")


@app.command("list", epilog=examples("headrace token list", "headrace token list --owner alice --json"))
def list_(
    owner: Annotated[
        list[str] | None, typer.Option("--owner", metavar="USER", help="Only of these; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """List the tokens that you may see; never what they prove themselves with."""
    owners = [principal_of(each) for each in owner] if owner else None
    with connecting.security_operations(bootstrap, properties) as operations:
        tokens = operations.tokens(owners)
    if json:
        say_json([_to_json(token) for token in tokens])
    elif tokens:
        say_table(
            ("TOKEN", "OWNER", "RENEWERS", "ISSUED", "EXPIRES", "AT MOST"),
            [
                (
                    token.id,
                    token.owner,
                    ",".join(token.renewers) or "-",
                    _time(token.issued_ms),
                    _time(token.expires_ms),
                    _time(token.most_ms),
                )
                for token in tokens
            ],
        )
    else:
        note("no tokens; make one with `headrace token create`")


@app.command(epilog=examples("headrace token renew h2K7", "headrace token renew h2K7 --period 1d --json"))
def renew(
    token: Token,
    period: Annotated[
        str | None, typer.Option("--period", metavar="TIME", help="How long from now on: 1d; the most if absent.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Let a token live longer; its owner and its renewers can."""
    milliseconds = _milliseconds(period, "--period")
    with connecting.security_operations(bootstrap, properties) as operations:
        until = operations.renew_token(operations.token(token), milliseconds)
    _report(token, "renewed", until, json)


@app.command(epilog=examples("headrace token expire h2K7", "headrace token expire h2K7 --after 10m --json"))
def expire(
    token: Token,
    after: Annotated[str | None, typer.Option("--after", metavar="TIME", help="Not now, but after 10m.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Let a token end, now or soon."""
    milliseconds = _milliseconds(after, "--after")
    with connecting.security_operations(bootstrap, properties) as operations:
        until = operations.expire_token(operations.token(token), milliseconds)
    _report(token, "expires" if until > time.time() * 1000 else "expired", until, json)


def _report(token: str, state: str, until_ms: int, json: bool) -> None:
    if json:
        say_json({"token": token, "state": state, "expires": _time(until_ms)})
    else:
        say(f"{token}: {state}, {_time(until_ms)}")


def _to_json(token: DelegationToken) -> dict[str, object]:
    return {
        "token": token.id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued": _time(token.issued_ms),
        "expires": _time(token.expires_ms),
        "at_most": _time(token.most_ms),
    }


def _milliseconds(text: str | None, option: str) -> int:
    if text is None:
        return _LONGEST
    number = without_units({f"{option}.ms": text})[f"{option}.ms"]
    if not number.strip().isdecimal() or int(number) < 1:
        raise bad_input(f"{option} '{text}' is not a time; write it as 10m, 12h or 7d")
    return int(number)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
