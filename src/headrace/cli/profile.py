"""`headrace profile`: clusters by name, so that addresses and passwords stand in no command line."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.client.properties import BOOTSTRAP, BadProperty, checked_name, is_secret, masked

from .client_options import read_client_file
from .console import Failure, bad_input, examples, note, say, say_json, say_table
from .options import Json, bootstrap_list
from .profiles import Profiles

app = typer.Typer(
    help="Clusters by name: where they are, and as whom to connect.",
    epilog=examples(
        "headrace profile set prod bootstrap=b1:9092,b2:9092 security.protocol=SASL_SSL sasl.password",
        "headrace profile use prod",
        "headrace topic list --profile prod",
    ),
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The profile.")]


@app.command("list", epilog=examples("headrace profile list", "headrace profile list --json"))
def list_(json: Json = False) -> None:
    """List profiles; the one in use has a star."""
    profiles = Profiles()
    rows = [(name, profiles.settings(name)) for name in profiles.names]
    shown = [(name, {key: one.value for key, one in settings.items()}) for name, settings in rows]
    if json:
        say_json(
            [
                {"profile": name, "in_use": name == profiles.default, "bootstrap": settings.get(BOOTSTRAP)}
                for name, settings in shown
            ]
        )
    elif shown:
        say_table(
            ("PROFILE", "", "BOOTSTRAP", "SECURITY", "USER"),
            [
                (
                    name,
                    "*" if name == profiles.default else "",
                    settings.get(BOOTSTRAP, "-"),
                    settings.get("security.protocol", "-"),
                    settings.get("sasl.username", "-"),
                )
                for name, settings in shown
            ],
        )
    else:
        note(f"no profiles in {profiles.path}; make one with `headrace profile set NAME bootstrap=HOST:PORT`")


@app.command(epilog=examples("headrace profile show prod", "headrace profile show --json"))
def show(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The profile; the one in use if absent.")] = None,
    json: Json = False,
) -> None:
    """Show the settings of a profile; passwords are masked."""
    profiles = Profiles()
    chosen = name or profiles.default
    if chosen is None:
        raise bad_input("no profile is in use; name one, or choose it with `headrace profile use NAME`")
    settings = {key: masked(key, one.value) for key, one in profiles.settings(chosen).items()}
    if json:
        say_json(
            {
                "profile": chosen,
                "in_use": chosen == profiles.default,
                "file": str(profiles.path),
                "settings": settings,
            }
        )
        return
    say(f"profile  {chosen}{' (in use)' if chosen == profiles.default else ''}")
    say(f"file     {profiles.path}")
    say_table(("SETTING", "VALUE"), list(settings.items()))


@app.command(epilog=examples("headrace profile use prod", "headrace profile use local --json"))
def use(name: Name, json: Json = False) -> None:
    """Choose the profile that counts where a command names none."""
    profiles = Profiles()
    profiles.use(name)
    if json:
        say_json({"profile": name, "in_use": True})
    else:
        say(f"{name}: in use")


@app.command(
    "set",
    epilog=examples(
        "headrace profile set local bootstrap=127.0.0.1:9092 registry=http://127.0.0.1:8080",
        "headrace profile set prod security.protocol=SASL_SSL sasl.username=alice sasl.password",
        "headrace profile set prod --from client.properties",
        "headrace profile set prod sasl.password < password.txt",
        "headrace profile set prod --unset ssl.ca.location",
    ),
)
def set_(
    name: Name,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME[=VALUE]",
            help="Settings of a client, bootstrap and registry; asked for without a value.",
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Take over a client file of Kafka's tools or kcat.")
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Remove a setting; may be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a profile, or change it.

    Passwords are asked for, or read from standard input: on a command line everybody on the machine could see them.
    """
    if not settings and source is None and not unset:
        raise bad_input("nothing to set; give settings, such as bootstrap=127.0.0.1:9092, --from FILE or --unset NAME")
    values = {} if source is None else {key: one.value for key, one in read_client_file(source).items()}
    for item in settings or ():
        key, equals, value = item.partition("=")
        key = _checked(key.strip())
        if equals and value and is_secret(key):
            raise bad_input(f"{key} would be seen by everybody on this machine; give it without a value to be asked")
        values[key] = value if equals else _prompted(key)
    if BOOTSTRAP in values:
        bootstrap_list(values[BOOTSTRAP], "bootstrap")
    removed = frozenset(_checked(key) for key in unset or ())
    both = sorted(removed & values.keys())
    if both:
        raise bad_input(f"'{both[0]}' is both set and --unset; keep one")
    profiles = Profiles()
    is_new, is_first = name not in profiles.names, not profiles.names
    profiles.set(name, values, removed)
    if is_first:
        Profiles().use(name)
    state = "created" if is_new else "changed"
    if json:
        shown = {key: masked(key, value) for key, value in values.items()}
        say_json({"profile": name, "state": state, "in_use": is_first or profiles.default == name, "set": shown})
    else:
        say(f"{name}: {state}{', and in use' if is_first else ''}")


@app.command(epilog=examples("headrace profile delete old", "headrace profile delete old --json"))
def delete(name: Name, json: Json = False) -> None:
    """Delete a profile."""
    Profiles().delete(name)
    if json:
        say_json({"profile": name, "state": "deleted"})
    else:
        say(f"{name}: deleted")


def _checked(key: str) -> str:
    try:
        return checked_name(key, "profile set")
    except BadProperty as error:
        raise bad_input(error.message) from error


def _prompted(key: str) -> str:
    if not sys.stdin.isatty():
        value = sys.stdin.readline().rstrip("\r\n")
        if not value:
            raise bad_input(f"{key} has no value, and standard input has no line for it")
        return value
    value = typer.prompt(key, hide_input=is_secret(key), err=True)
    if not value:
        raise Failure("nothing was set")
    return str(value)
