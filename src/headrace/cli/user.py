"""`headrace user`: who can log in by SCRAM, and with which password."""

import secrets
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.client.core.security import ScramUser
from headrace.protocol.scram import LEAST_ITERATIONS, MOST_STORED_ITERATIONS, SCRAM_MECHANISMS, ScramMechanism

from . import connecting
from .console import Failure, bad_input, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json
from .profiles import warn_if_readable

app = typer.Typer(
    help="List, make and delete users, and change their passwords (SCRAM).",
    epilog=examples("headrace user create alice", "headrace user list"),
    no_args_is_help=True,
)

_PASSWORD_BYTES: Final = 18
_LONGEST_PASSWORD: Final = 4096

Name = Annotated[str, typer.Argument(metavar="NAME", help="The user, as it logs in.")]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option("--mechanism", help="SCRAM-SHA-512 (the default) or SCRAM-SHA-256; may be repeated."),
]
Iterations = Annotated[
    int,
    typer.Option(
        "--iterations", min=LEAST_ITERATIONS, max=MOST_STORED_ITERATIONS, help="Rounds of hashing: what guessing costs."
    ),
]
PasswordFile = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="Where the password is, in the first line.")
]
Generate = Annotated[bool, typer.Option("--generate", help="Make a password, and print it once.")]


@app.command("list", epilog=examples("headrace user list", "headrace user list --json"))
def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, properties: ClientProperties = None, json: Json = False) -> None:
    """List users with how they can log in."""
    with connecting.security_operations(bootstrap, properties) as operations:
        users = operations.users()
    if json:
        say_json([_to_json(user) for user in users])
    elif users:
        rows = [(u.name, m.title, n) for u in users for m, n in sorted(u.iterations.items())]
        say_table(("USER", "MECHANISM", "ITERATIONS"), rows)
    else:
        note("no users yet; make one with `headrace user create NAME`")


def _to_json(user: ScramUser) -> dict[str, object]:
    return {"user": user.name, "mechanisms": {each.title: count for each, count in sorted(user.iterations.items())}}


@app.command(
    epilog=examples(
        "headrace user create alice",
        "headrace user create alice --generate --json",
        "headrace user create alice --password-file alice.txt --mechanism SCRAM-SHA-256 --mechanism SCRAM-SHA-512",
        "headrace user create alice < password.txt",
    )
)
def create(
    name: Name,
    mechanism: Mechanisms = None,
    iterations: Iterations = 8192,
    password_file: PasswordFile = None,
    generate: Generate = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Make a user.

    The password is asked for, or read from a file or standard input: on a command line everybody on the machine could
    see it. Brokers get it salted and hashed. What the user may do is said by `headrace acl add`.
    """
    mechanisms = _chosen(mechanism) or [ScramMechanism.SHA_512]
    _check_name(name)
    with connecting.security_operations(bootstrap, properties) as operations:
        if operations.users([name]):
            raise Failure(f"user '{name}' exists; `headrace user passwd {name}` changes the password")
        password = generated() if generate else new_password(name, password_file)
        operations.set_password(name, mechanisms, password, iterations)
    _report(name, "created", mechanisms, password if generate else None, json)


@app.command(
    epilog=examples(
        "headrace user passwd alice", "headrace user passwd alice --generate", "headrace user passwd bob --json"
    )
)
def passwd(
    name: Name,
    mechanism: Mechanisms = None,
    iterations: Iterations = 8192,
    password_file: PasswordFile = None,
    generate: Generate = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Change a user's password, for all the ways in which it can log in unless some are named.

    Connections that are open stay until they have to log in again.
    """
    with connecting.security_operations(bootstrap, properties) as operations:
        user = _existing(operations.users([name]), name)
        mechanisms = _chosen(mechanism) or sorted(user.iterations)
        password = generated() if generate else new_password(name, password_file)
        operations.set_password(name, mechanisms, password, iterations)
    _report(name, "password changed", mechanisms, password if generate else None, json)


@app.command(
    epilog=examples("headrace user delete alice --yes", "headrace user delete alice --mechanism SCRAM-SHA-256 --yes")
)
def delete(
    name: Name,
    mechanism: Mechanisms = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Delete a user, or one way in which it can log in. Its ACLs and quotas stay."""
    with connecting.security_operations(bootstrap, properties) as operations:
        user = _existing(operations.users([name]), name)
        mechanisms = _chosen(mechanism) or sorted(user.iterations)
        if not yes:
            _confirm(name)
        operations.delete_credentials(name, mechanisms)
    _report(name, "deleted", mechanisms, None, json)


def _confirm(name: str) -> None:
    if not sys.stdin.isatty():
        raise bad_input(f"deleting user {name} needs --yes, as there is no terminal to ask on")
    if not typer.confirm(f"Delete user '{name}'? It cannot log in any more.", err=True):
        raise Failure("nothing was deleted")


def _existing(users: list[ScramUser], name: str) -> ScramUser:
    if not users:
        raise Failure(f"there is no user '{name}'; `headrace user list` shows those that are")
    return users[0]


def _chosen(given: list[str] | None) -> list[ScramMechanism]:
    found = []
    for text in given or ():
        if text.upper() not in SCRAM_MECHANISMS:
            raise bad_input(f"--mechanism '{text}' is not one of {', '.join(SCRAM_MECHANISMS)}")
        found.append(SCRAM_MECHANISMS[text.upper()])
    return sorted(set(found))


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable():
        raise bad_input(f"user {name!r}: a name has visible characters only")
    if name.startswith("User:"):
        raise bad_input(f"user '{name}': leave out User:, which is the kind of principal that a user becomes")


def generated() -> str:
    """A password that nobody can guess."""
    return secrets.token_urlsafe(_PASSWORD_BYTES)


def new_password(name: str, file: Path | None) -> str:
    """The password that somebody wants: from a file, from standard input, or asked for twice."""
    if file is not None:
        warn_if_readable(file)
        return _sound(_first_line(file), str(file))
    if not sys.stdin.isatty():
        return _sound(sys.stdin.readline(_LONGEST_PASSWORD + 2).rstrip("\r\n"), "standard input")
    return _sound(str(typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True)), "that")


def _first_line(file: Path) -> str:
    try:
        with file.open(encoding="utf-8") as lines:
            return lines.readline(_LONGEST_PASSWORD + 2).rstrip("\r\n")
    except OSError as error:
        raise bad_input(f"--password-file {file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError:
        raise bad_input(f"--password-file {file} is not text in UTF-8") from None


def _sound(password: str, where: str) -> str:
    if not password:
        raise bad_input(f"there is no password in {where}; write it into the first line, or use --generate")
    if len(password) > _LONGEST_PASSWORD:
        raise bad_input(f"the password in {where} has more than {_LONGEST_PASSWORD} characters")
    return password


def _report(name: str, state: str, mechanisms: list[ScramMechanism], password: str | None, json: bool) -> None:
    titles = [each.title for each in mechanisms]
    if json:
        shown = {} if password is None else {"password": password}
        say_json({"user": name, "state": state, "mechanisms": titles, **shown})
        return
    say(f"{name}: {state} ({', '.join(titles)})")
    if password is not None:
        say(f"password: {password}")
