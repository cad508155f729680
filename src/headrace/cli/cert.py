"""`headrace cert`: certificates for TLS, for those who have no authority of their own."""

from pathlib import Path
from typing import Annotated

import typer

from .console import examples, say, say_json
from .options import Json

app = typer.Typer(
    help="Make a certificate authority, and certificates for brokers and clients.",
    epilog=examples("headrace cert ca --out secrets", "headrace cert issue broker-1 --host broker-1.example.com"),
    no_args_is_help=True,
)

_DEFAULT: Path = Path("secrets")


@app.command(epilog=examples("headrace cert ca", "headrace cert ca --out secrets --name 'Example Kafka CA' --json"))
def ca(
    out: Annotated[Path, typer.Option("--out", metavar="DIRECTORY", help="Where its files go.")] = _DEFAULT,
    name: Annotated[str, typer.Option("--name", help="What it is called.")] = "Headrace CA",
    days: Annotated[int, typer.Option("--days", min=1, max=36500, help="How long it lasts.")] = 3650,
    json: Json = False,
) -> None:
    """Make an authority: ca.pem, which clients and brokers trust, and ca.key, which signs. Keep ca.key to yourself."""
    from .certificates import authority_path, make_authority

    made = make_authority(out, name, days)
    path, ends = authority_path(out), made.certificate.not_valid_after_utc
    if json:
        say_json({"certificate": str(path), "key": str(out / "ca.key"), "ends": ends.isoformat()})
        return
    say(f"certificate  {path} (until {ends:%Y-%m-%d}): whoever connects trusts it, as ssl.ca.location")
    say(f"key          {out / 'ca.key'}: only `headrace cert issue` needs it; brokers and clients do not")


@app.command(
    epilog=examples(
        "headrace cert issue broker-1 --host broker-1.example.com --host 10.0.0.1",
        "headrace cert issue alice --client --days 90",
        "headrace cert issue broker-1 --host 10.0.0.1 --ca ca-directory --out /etc/headrace/tls --json",
    )
)
def issue(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: its CN, and the name of its files.")],
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="HOST", help="A name or address that clients connect to; may be repeated."),
    ] = None,
    client: Annotated[bool, typer.Option("--client", help="For a client, which has no hosts.")] = False,
    ca: Annotated[Path, typer.Option("--ca", metavar="DIRECTORY", help="Where the authority is.")] = _DEFAULT,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIRECTORY", help="Where the files go; beside the authority's.")
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=36500, help="How long it lasts.")] = 365,
    json: Json = False,
) -> None:
    """Make a certificate with a new key. One of that name is replaced: a running broker takes up the new one.

    A broker's needs every name and address that clients reach it by. A client that shows its certificate is known by
    its subject, CN=NAME (ssl.principal.mapping.rules say otherwise).
    """
    from .certificates import issue as make
    from .certificates import load_authority
    from .console import bad_input

    if client == bool(host):
        raise bad_input("give --host for each name and address of a broker, or --client for a client's certificate")
    made = make(out or ca, name, load_authority(ca), hosts=host or (), is_client=client, days=days)
    if json:
        say_json(
            {
                "certificate": str(made.certificate),
                "key": str(made.key),
                "keystore": str(made.keystore),
                "ends": made.ends.isoformat(),
            }
        )
        return
    say(f"certificate  {made.certificate} (until {made.ends:%Y-%m-%d}), with the authority's")
    say(f"key          {made.key}")
    if client:
        say(
            f"connect      ssl.ca.location={ca / 'ca.pem'} ssl.certificate.location={made.certificate} "
            f"ssl.key.location={made.key}"
        )
    else:
        say(f"broker       ssl.keystore.location={made.keystore} ssl.keystore.type=PEM")
