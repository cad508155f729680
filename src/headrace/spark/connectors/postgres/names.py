"""Names and connections of PostgreSQL. Names are quoted and values bound, always."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ...errors import Unreachable
from ..base import ConnectorError, Option

EXTRA: Final = 'pip install "headrace[postgres]"'
DSN: Final = Option("how to connect: postgresql://user@host/database, or what libpq takes", required=True)
_SLOT: Final = re.compile(r"[a-z0-9_]{1,63}")
_PASSWORD: Final = re.compile(r"(?i)(password\s*=\s*)('[^']*'|\S+)|(://[^:/@\s]*:)[^@\s]*@")
_CONNECT_SECONDS: Final = 10
_AWAY: Final = ("08", "57P", "53", "40", "55006")
"""Classes of SQLSTATE that pass by themselves: connections, shutdown, resources, conflicts; a slot that is in use."""


def connect(dsn: str, **options: Any) -> Any:
    """A connection, which is in no transaction yet."""
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise ConnectorError(f"the connector postgres needs the package 'psycopg': {EXTRA}") from error
    _require_readable(dsn)
    with translated():
        return psycopg.connect(dsn, connect_timeout=_CONNECT_SECONDS, application_name="headrace", **options)


def _require_readable(dsn: str) -> None:
    """ConnectorError unless libpq can tell the parts of a DSN apart; what it says of one quotes pieces of passwords."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        host = str(conninfo_to_dict(dsn).get("host", ""))
    except psycopg.Error:
        host = "@@"
    if "@" in host[1:]:  # a first one is that of an abstract socket
        raise ConnectorError(
            "the dsn cannot be read: in a URL, what is special in a user name or a password is written as %20 (a "
            "space), %25 (%), %40 (@), %2F (/), %3A (:); in words, it stands in single quotes",
            "dsn",
        )


@contextmanager
def translated() -> Iterator[None]:
    """Errors of the database in a line, without the password; those that pass by themselves as such."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        words = " ".join(_PASSWORD.sub(r"\1\3***@", str(error)).split()) or type(error).__name__
        state = error.sqlstate or ""
        is_away = state.startswith(_AWAY) or (not state and isinstance(error, psycopg.OperationalError))
        raise (Unreachable if is_away else ConnectorError)(f"PostgreSQL: {words}") from None


def table_name(text: str) -> tuple[str, str]:
    """A schema and a name: `orders` is `public.orders`. A name with a dot in it stands in double quotes."""
    parts = re.findall(r'"((?:[^"]|"")+)"|([^".]+)', text)
    names = [quoted.replace('""', '"') or plain for quoted, plain in parts]
    if not 1 <= len(names) <= 2 or not all(names) or "\0" in text:
        raise ConnectorError(f"'{text}' is not the name of a table; write schema.table", "table")
    return (names[0], names[1]) if len(names) == 2 else ("public", names[0])


def identifier(*names: str) -> Any:
    """A name, quoted."""
    from psycopg import sql

    return sql.Identifier(*names)


def slot_name(text: str) -> str:
    """A name that PostgreSQL takes for a replication slot."""
    if not _SLOT.fullmatch(text):
        raise ConnectorError(f"'{text}' cannot be a slot: a-z, 0-9 and _, 63 at most", "slot")
    return text


def derived_slot(schema: str, table: str) -> str:
    """The slot of a table where none is named."""
    return "headrace_" + re.sub(r"[^a-z0-9_]", "_", f"{schema}_{table}".lower())[:50]
