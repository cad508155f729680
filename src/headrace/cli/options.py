"""Options that several commands share, and how their values are read."""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from headrace.net.address import Address, parse_address, parse_bootstrap

from .console import bad_input

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="HEADRACE_BOOTSTRAP", metavar="HOST:PORT", help="Brokers to start from, by commas."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A broker setting by Kafka's name; may be repeated."),
]
ClientProperties = Annotated[
    list[str] | None,
    typer.Option(
        "--property", "-X", metavar="NAME=VALUE", help="A setting of the client library (librdkafka); may be repeated."
    ),
]
AllowAnonymous = Annotated[
    bool,
    typer.Option(
        "--allow-anonymous",
        help="Listen beyond this machine also where clients do not show who they are, and may do everything.",
    ),
]
DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"

_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RELATIVE: Final = re.compile(r"-(\d+)(ms|s|m|h|d)")
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|[ntr0\\])")
_ESCAPED: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def pairs(items: Iterable[str] | None, option: str) -> dict[str, str]:
    """`NAME=VALUE` options as a dictionary; the last of a name holds."""
    values: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            raise bad_input(f"{option} '{item}' is not NAME=VALUE, for example {option} retention.ms=60000")
        values[name.strip()] = value
    return values


def address(text: str, option: str) -> Address:
    """The value of an option that is one address."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise bad_input(f"{option}: {error}") from error


def listeners(texts: Sequence[str] | None, option: str) -> str | None:
    """Addresses as the setting `listeners` has them: `HOST:PORT` is PLAINTEXT, `NAME://HOST:PORT` stays."""
    if not texts:
        return None
    parts = [part.strip() for text in texts for part in text.split(",")]
    return ",".join(part if "://" in part else f"PLAINTEXT://{address(part, option)}" for part in parts)


def bootstrap_list(text: str, where: str = "--bootstrap") -> str:
    """A bootstrap list that has been looked at."""
    try:
        return ",".join(str(a) for a in parse_bootstrap(text))
    except ValueError as error:
        raise bad_input(f"{where}: {error}") from error


def time_ms(text: str, option: str, now_ms: int) -> int:
    """A time: milliseconds since 1970, an ISO date and time (local unless it names a zone), or `-10m` before now."""
    if text.isascii() and text.isdigit():
        return int(text)
    relative = _RELATIVE.fullmatch(text)
    if relative is not None:
        return now_ms - int(relative[1]) * _UNITS[relative[2]]
    if text == "now":
        return now_ms
    try:
        return int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise bad_input(
            f"{option} '{text}' is not a time; write milliseconds since 1970, 2026-01-31T12:00, or -10m"
        ) from error


def delimiter(text: str, option: str) -> bytes:
    r"""Bytes that separate; `\n \t \r \0 \\ \xHH` stand for what they stand for in Python."""
    out = bytearray()
    position = 0
    for found in _ESCAPE.finditer(text):
        out += text[position : found.start()].encode()
        escape = found[1]
        out += bytes([int(escape[1:], 16)]) if escape[0] == "x" else _ESCAPED[escape]
        position = found.end()
    out += text[position:].encode()
    if not out:
        raise bad_input(f"{option} is empty; give at least one character")
    return bytes(out)
