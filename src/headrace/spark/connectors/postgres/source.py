"""A table of PostgreSQL as a source: its changes (by logical decoding), its new rows (by a column), or its rows once.

Changes are peeked at, never taken: the slot moves on only when Spark says that all before a position is written. So a
batch that is run again finds the same changes, and a transaction comes whole, in one batch. Positions are the ends of
commits in the log.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

from ..base import ConnectorError, Given, Option, Position, SourceConnector
from .names import DSN, connect, derived_slot, identifier, slot_name, table_name, translated
from .pgoutput import UNCHANGED, BadMessage, Begin, Change, Commit, Relation, Truncate, Value, parse
from .types import Column, value_of

CHANGES, INCREMENTAL, SNAPSHOT = "changes", "incremental", "snapshot"
SNAPSHOT_ROW, INSERTED, UPDATED, DELETED = "r", "c", "u", "d"
_SETTINGS: Final = "-c datestyle=ISO -c timezone=UTC -c bytea_output=hex -c intervalstyle=postgres"
_MOST_BEHIND: Final = 16 << 20
"""Bytes of the log without a change of the table after which the slot moves on all the same."""
_FETCH: Final = 2_000
_OF_CHANGES: Final = "`_op` STRING, `_lsn` BIGINT, `_seq` BIGINT, `_time` TIMESTAMP"


class PostgresSource(SourceConnector):
    """Rows of one table. Changes have `_op` (r: of the snapshot, c, u, d), `_lsn`, `_seq` and `_time` as well."""

    options: ClassVar = {
        "dsn": DSN,
        "table": Option("the table, as schema.table", required=True),
        "mode": Option("what is read", default=CHANGES, choices=(CHANGES, INCREMENTAL, SNAPSHOT)),
        "columns": Option("the columns to read; default: all", is_list=True),
        "column": Option("of incremental: a column that only grows, such as an id"),
        "slot": Option("of changes: the replication slot, made when it is missing"),
        "publication": Option("of changes: the publication, made when it is missing"),
        "snapshot": Option("of changes: whether the rows that are there come first", default="true"),
        "truncate": Option("of changes: what a TRUNCATE does", default="fail", choices=("fail", "ignore")),
        "maxRowsPerBatch": Option("about how many rows or changes a batch has at most", default="100000"),
        "pollSeconds": Option("how often to look for new rows", default="1"),
    }

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._schema, self._table = table_name(self.text("table"))
        self._mode = self.text("mode")
        self._most = self.number("maxRowsPerBatch")
        self.poll_seconds = self.seconds("pollSeconds")  # type: ignore[misc]
        self._slot = slot_name(self.text("slot") or derived_slot(self._schema, self._table))
        self._publication = self.text("publication") or self._slot
        self._with_snapshot = self.flag("snapshot")
        if (self._mode == INCREMENTAL) != ("column" in given):
            raise ConnectorError("'column' belongs to mode incremental, which needs it", "column")
        self._columns: list[Column] | None = None
        self._connection: Any = None

    # What Spark asks

    def schema(self) -> str:
        columns = ", ".join(column.ddl for column in self._known_columns())
        return f"{columns}, {_OF_CHANGES}" if self._mode == CHANGES else columns

    def initial(self) -> Position:
        if self._mode == SNAPSHOT:
            return {"done": False}
        if self._mode == INCREMENTAL:
            return {"after": None}
        self._require_publication()
        confirmed = self._require_slot()
        return {"snapshot": True} if self._with_snapshot else {"lsn": confirmed}

    def latest(self, start: Position) -> Position:
        if self._mode == SNAPSHOT:
            return {"done": True}
        if self._mode == INCREMENTAL:
            return self._latest_value(start)
        if "snapshot" in start:
            return {"lsn": self._confirmed()}
        return {"lsn": self._latest_commit(int(start["lsn"]))}

    def read(self, start: Position, end: Position) -> Iterator[tuple[object, ...]]:
        if self._mode == CHANGES and "snapshot" not in start:
            yield from self._changes(int(start["lsn"]), int(end["lsn"]))
        elif self._mode == CHANGES:
            for number, row in enumerate(self._rows("", ())):
                yield *row, SNAPSHOT_ROW, int(end["lsn"]), number, None
        elif self._mode == SNAPSHOT:
            yield from self._rows("", ())
        else:
            yield from self._rows_between(start, end)

    def done(self, position: Position) -> None:
        if self._mode == CHANGES and "lsn" in position and int(position["lsn"]) > self._confirmed():
            self._ask("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", self._slot, lsn_text(position["lsn"]))

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Rows

    def _rows(self, condition: Any, values: Sequence[object]) -> Iterator[tuple[object, ...]]:
        """Rows of the table as of one moment."""
        from psycopg import sql

        columns = self._known_columns()
        chosen = sql.SQL(", ").join(sql.SQL("{}::text").format(identifier(column.name)) for column in columns)
        query = sql.SQL("SELECT {} FROM {}").format(chosen, identifier(self._schema, self._table))
        if condition:
            query = query + condition
        with connect(self.text("dsn"), options=_SETTINGS) as connection, translated():
            connection.read_only = True
            with connection.cursor(name="headrace") as cursor:
                cursor.itersize = _FETCH
                for row in cursor.execute(query, values):
                    yield tuple(value_of(column, text) for column, text in zip(columns, row, strict=True))

    def _rows_between(self, start: Position, end: Position) -> Iterator[tuple[object, ...]]:
        from psycopg import sql

        name, kind = self._growing()
        bound = sql.SQL("CAST(%s AS {})").format(sql.SQL(kind))
        after = sql.SQL(" AND {} > {}").format(name, bound) if start["after"] is not None else sql.SQL("")
        condition = sql.SQL(" WHERE {} <= {}{} ORDER BY {}").format(name, bound, after, name)
        values = (end["after"],) if start["after"] is None else (end["after"], start["after"])
        return self._rows(condition, values)

    def _latest_value(self, start: Position) -> Position:
        from psycopg import sql

        name, kind = self._growing()
        after = start["after"]
        bound = sql.SQL(" WHERE {} > CAST(%s AS {})").format(name, sql.SQL(kind)) if after is not None else sql.SQL("")
        query = sql.SQL(
            "SELECT max(value)::text FROM (SELECT {} AS value FROM {}{} ORDER BY 1 LIMIT {}) AS next"
        ).format(name, identifier(self._schema, self._table), bound, sql.Literal(self._most))
        ((found,),) = self._ask(query, *(() if after is None else (after,)))
        return start if found is None else {"after": found}

    def _growing(self) -> tuple[Any, str]:
        """The name of the column that grows, quoted, and its type, which the database itself has named."""
        wanted = self.text("column")
        known = {column.name: column.kind for column in self._all_columns()}
        if wanted not in known:
            raise ConnectorError(f"{self._title} has no column '{wanted}'; it has {', '.join(known)}", "column")
        return identifier(wanted), known[wanted]

    # Changes

    def _changes(self, start: int, end: int) -> Iterator[tuple[object, ...]]:
        """What was committed behind `start` and up to `end`."""
        query = (
            "SELECT data FROM pg_logical_slot_peek_binary_changes("
            "%s, %s::pg_lsn, NULL, 'proto_version', '1', 'publication_names', %s)"
        )
        decoded = _Decoded(self._known_columns(), self._title, self.text("truncate"))
        with (
            connect(self.text("dsn"), options=_SETTINGS, autocommit=True) as connection,
            translated(),
            connection.cursor() as cursor,
        ):
            for (data,) in cursor.stream(query, (self._slot, lsn_text(end), _quoted_list(self._publication))):
                yield from decoded.take(bytes(data), start)

    def _latest_commit(self, start: int) -> int:
        """The end of a commit before which there are about as many changes as a batch may have."""
        confirmed = self._confirmed()
        if confirmed > start:
            raise ConnectorError(
                f"the replication slot {self._slot} is at {lsn_text(confirmed)}, and this query has read up to "
                f"{lsn_text(start)}: somebody else has moved it or made it anew, and changes in between are gone. "
                "Start with a new checkpoint, which reads a snapshot, or name another slot"
            )
        ((now,),) = self._ask("SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint")
        most = self._most
        while True:
            ((last, count),) = self._ask(
                "SELECT (max(lsn) - '0/0'::pg_lsn)::bigint, count(*) FROM pg_logical_slot_peek_binary_changes("
                "%s, NULL, %s, 'proto_version', '1', 'publication_names', %s)",
                self._slot,
                most,
                _quoted_list(self._publication),
            )
            if last is not None and last > start:
                return int(last)
            if count < most:
                return int(now) if now - start > _MOST_BEHIND else start
            most *= 4  # All of these were read already, and the slot was not moved on yet.

    def _confirmed(self) -> int:
        """Up to where the slot has moved."""
        found = self._ask(
            "SELECT (confirmed_flush_lsn - '0/0'::pg_lsn)::bigint FROM pg_replication_slots WHERE slot_name = %s",
            self._slot,
        )
        if not found:
            raise ConnectorError(
                f"there is no replication slot {self._slot} (any more): changes since are gone. Start with a new "
                "checkpoint, which makes one and reads a snapshot"
            )
        return int(found[0][0])

    def _require_slot(self) -> int:
        found = self._ask("SELECT plugin FROM pg_replication_slots WHERE slot_name = %s", self._slot)
        if not found:
            self._ask("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", self._slot)
        elif found[0][0] != "pgoutput":
            raise ConnectorError(f"the slot {self._slot} is of the plugin {found[0][0]}; name another one", "slot")
        return self._confirmed()

    def _require_publication(self) -> None:
        from psycopg import sql

        if not self._ask("SELECT 1 FROM pg_publication WHERE pubname = %s", self._publication):
            table = identifier(self._schema, self._table)
            self._ask(sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(identifier(self._publication), table))
        found = self._ask(
            "SELECT 1 FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s",
            self._publication,
            self._schema,
            self._table,
        )
        if not found:
            raise ConnectorError(
                f"the publication {self._publication} does not have {self._title}: ALTER PUBLICATION ... ADD TABLE, or "
                "name another one",
                "publication",
            )

    # The table

    @property
    def _title(self) -> str:
        return f"table {self._schema}.{self._table}"

    def _known_columns(self) -> list[Column]:
        if self._columns is None:
            every, wanted = self._all_columns(), self.texts("columns")
            known = [column.name for column in every]
            for name in wanted:
                if name not in known:
                    raise ConnectorError(f"{self._title} has no column '{name}'; it has {', '.join(known)}", "columns")
            self._columns = [column for column in every if not wanted or column.name in wanted]
        return self._columns

    def _all_columns(self) -> list[Column]:
        found = self._ask(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), COALESCE(a.attnum = ANY(i.indkey), false) "
            "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
            "LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary "
            "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' "
            "ORDER BY a.attnum",
            self._schema,
            self._table,
        )
        if not found:
            raise ConnectorError(f"there is no {self._title}, or it may not be seen by this user", "table")
        return [Column(*row) for row in found]

    def _ask(self, query: Any, *values: object) -> list[Any]:
        """The rows of a statement, committed at once."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.text("dsn"), options=_SETTINGS, autocommit=True)
        with translated():
            cursor = self._connection.execute(query, values or None)
            return list(cursor.fetchall()) if cursor.description else []


class _Decoded:
    """Messages of a slot as rows."""

    def __init__(self, columns: list[Column], title: str, truncate: str) -> None:
        self._columns = columns
        self._title = title
        self._truncate = truncate
        self._relations: dict[int, Relation] = {}
        self._begin: Begin | None = None
        self._number = 0

    def take(self, data: bytes, start: int) -> Iterator[tuple[object, ...]]:
        """The rows of the next message; none of transactions that were committed before `start`."""
        try:
            message = parse(data)
        except (BadMessage, UnicodeDecodeError) as error:
            raise ConnectorError(f"a message of logical decoding is not understood: {error}") from error
        if isinstance(message, Relation):
            self._relations[message.id] = message
        elif isinstance(message, Begin):
            self._begin, self._number = message, 0
        elif isinstance(message, Commit):
            self._begin = None
        elif self._begin is not None and self._begin.lsn >= start and message is not None:
            yield from self._rows(message, self._begin)

    def _rows(self, message: Change | Truncate, begin: Begin) -> Iterator[tuple[object, ...]]:
        if isinstance(message, Truncate):
            if self._truncate == "fail":
                raise ConnectorError(
                    f"{self._title} was truncated, which tells no rows: empty what was made of it and set `truncate: "
                    "ignore`, or start with a new checkpoint and slot",
                    "truncate",
                )
            return
        relation = self._relations[message.relation]
        if f"table {relation.schema}.{relation.name}" != self._title:
            return  # The publication has more tables.
        if message.op == DELETED and message.before is not None:
            yield self._row(relation, message.before, None, DELETED, begin)
        elif message.after is not None:
            if message.before is not None and self._has_new_key(relation, message.before, message.after):
                yield self._row(relation, message.before, None, DELETED, begin)
                yield self._row(relation, message.after, message.before, INSERTED, begin)
            else:
                yield self._row(relation, message.after, message.before, message.op, begin)

    def _has_new_key(self, relation: Relation, before: tuple[Value, ...], after: tuple[Value, ...]) -> bool:
        """Whether an update moved a row: to who copies it, it is another one. Of full rows the primary key counts."""
        primary = {column.name for column in self._columns if column.is_key}
        keys = [name for name in relation.keys if name in primary] or list(relation.keys)
        places = [relation.columns.index(name) for name in keys]
        return any(after[at] is not UNCHANGED and before[at] != after[at] for at in places)

    def _row(
        self,
        relation: Relation,
        values: tuple[Value, ...],
        before: tuple[Value, ...] | None,
        op: str,
        begin: Begin,
    ) -> tuple[object, ...]:
        row = []
        for column in self._columns:
            if column.name not in relation.columns:
                raise ConnectorError(f"{self._title} has lost its column '{column.name}'; start the pipeline again")
            at = relation.columns.index(column.name)
            value = values[at]
            if value is UNCHANGED and before is not None:
                value = before[at]
            if value is UNCHANGED:
                raise ConnectorError(
                    f"an update of {self._title} did not send the large value of column '{column.name}', which it did "
                    f"not change: ALTER TABLE {relation.schema}.{relation.name} REPLICA IDENTITY FULL and start with a "
                    "new slot and checkpoint, or leave the column out with `columns`"
                )
            row.append(value_of(column, value if isinstance(value, str) else None))
        self._number += 1
        moment: datetime = begin.time
        return (*row, op, begin.lsn, self._number, moment)


def lsn_text(lsn: object) -> str:
    """A position as PostgreSQL writes it."""
    number = int(str(lsn))
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


def _quoted_list(name: str) -> str:
    """A publication as the plugin takes a list of them."""
    return '"' + name.replace('"', '""') + '"'
