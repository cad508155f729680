"""`headrace sql`: queries over topics."""

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.client.properties import for_columnar

from . import connecting
from .client_options import resolve_target
from .console import bad_input, examples, is_terminal, note
from .consume import Isolation
from .lean import lean_imports
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json
from .positions import Position, PositionKind, parse_position
from .registries import RegistryUrl, find_registry_options

if TYPE_CHECKING:
    from headrace.client.columnar.cluster import Cluster
    from headrace.client.columnar.model import TopicPartition
    from headrace.sql.engine import Engine, EngineOptions

_ENGINES: Final = ("duckdb", "spark")


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            'headrace sql "SELECT customer, sum(total) FROM orders GROUP BY customer"',
            'headrace sql "SELECT * FROM orders WHERE _timestamp > now() - INTERVAL 1 HOUR" --output orders.parquet',
            "headrace sql \"SELECT customer, total FROM orders WHERE status = 'failed'\" --follow --from end",
            "headrace sql \"SELECT * FROM orders JOIN 'data/customers.csv' USING (customer)\" --files data",
            'headrace sql "SELECT count(*) FROM orders" --on spark --master spark://host:7077',
            "headrace sql",
        )
    )(sql)


def sql(
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="What to ask. Without it: that of stdin, or a prompt on a terminal."),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="table, json (an object in each line), csv or parquet; else by --output's name."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the answer to this file.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new records as they come; not for aggregates and joins.")
    ] = False,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            help="Where to begin: beginning, end, an offset, the last N of each partition (-10), or a time.",
        ),
    ] = "beginning",
    schema: Annotated[
        list[str] | None,
        typer.Option(
            "--schema",
            metavar="TOPIC=SCHEMA",
            help="The fields of a topic's JSON, as 'orders=id BIGINT, total DOUBLE', or a file; may be repeated.",
        ),
    ] = None,
    read: Annotated[
        list[str] | None,
        typer.Option(
            "--read",
            metavar="TOPIC:NAME=VALUE",
            help="How a topic's values are read, by options of the Spark source: orders:format=avro; may be repeated.",
        ),
    ] = None,
    bad_records: Annotated[
        str,
        typer.Option(
            "--bad-records", help="What becomes of records that cannot be decoded: keep (with _error), skip or fail."
        ),
    ] = "keep",
    files: Annotated[
        list[Path] | None,
        typer.Option("--files", metavar="DIR", help="A directory that queries may read files of; may be repeated."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="How much memory DuckDB takes, such as 2GB; then it uses files."),
    ] = None,
    on: Annotated[str, typer.Option("--on", help="What runs the query: duckdb, in this process, or spark.")] = "duckdb",
    master: Annotated[
        str, typer.Option("--master", metavar="URL", help="Where Spark runs, with --on spark.")
    ] = "local[*]",
    registry: RegistryUrl = None,
    isolation: Annotated[
        Isolation, typer.Option("--isolation", help="Whether records of open or aborted transactions count.")
    ] = Isolation.COMMITTED,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Ask topics in SQL: each topic is a table of the fields of its values.

    Beside the fields there are _key, _topic, _partition, _offset, _timestamp, _headers, _tombstone and _error; a topic
    of text or bytes is a table of key, value, topic, partition, offset, timestamp and headers. The fields are those of
    the schema in the registry, of --schema, or what some records look like: `DESCRIBE orders` shows them.
    Conditions on _partition, _offset and _timestamp are not fetched from brokers and thrown away: they narrow what is
    fetched. Queries read topics, and the files of --files, alone.
    """
    if on not in _ENGINES:
        raise bad_input(f"--on {on} is not known; use {' or '.join(_ENGINES)}")
    with lean_imports():
        from headrace.sql.engine import duckdb_module
        from headrace.sql.output import format_for
    duckdb_module()
    if follow and on == "spark":
        raise bad_input("--follow is for DuckDB; on Spark, a pipeline follows topics: `headrace pipeline run`")
    chosen = format_for("json" if json and format_ is None else format_, output)
    if chosen == "parquet" and (follow or (output is None and is_terminal())):
        raise bad_input("parquet is a file that ends: name it with --output, and leave out --follow")
    with TemporaryDirectory(prefix="headrace-sql-") as temporary:
        options = _options(
            bootstrap,
            properties,
            registry,
            declared=_declared(schema, read),
            begin=_begin(from_),
            read_committed=isolation is Isolation.COMMITTED,
            on_bad=bad_records,
            files=_directories(files),
            memory_limit=memory,
            temporary=Path(temporary),
        )
        if on == "spark":
            _on_spark(options, _text(query), master, chosen, output)
            return
        _on_duckdb(options, query, follow=follow, chosen=chosen, output=output)


def _on_duckdb(options: "EngineOptions", query: str | None, *, follow: bool, chosen: str, output: Path | None) -> None:
    from headrace.sql.engine import Engine
    from headrace.sql.follow import follow as followed

    with Engine(options, report=_report) as engine:
        if query is None and sys.stdin.isatty():
            from .sql_shell import Shell

            Shell(engine, lambda text: _answer(engine, text, chosen, None)).run()
            return
        text = _text(query)
        if not follow:
            _answer(engine, text, chosen, output)
            return
        schema, batches = followed(engine, text)
        _write(schema, batches, chosen, output)


def _on_spark(options: "EngineOptions", query: str, master: str, chosen: str, output: Path | None) -> None:
    try:
        from headrace.spark.sql import run_query
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise bad_input("--on spark needs PySpark: pip install 'headrace[spark]'") from None
    with run_query(options, query, master) as reader:
        _write(reader.schema, reader, chosen, output)


def _answer(engine: "Engine", text: str, chosen: str, output: Path | None) -> None:
    reader = engine.query(text)
    _write(reader.schema, reader, chosen, output)


def _write(schema: Any, batches: Any, chosen: str, output: Path | None) -> None:
    from headrace.sql.output import opened, writer_for

    with opened(output, sys.stdout.buffer) as out:
        writer = writer_for(chosen, schema, out, is_terminal=output is None and is_terminal())
        for batch in batches:
            writer.write(batch)
        writer.close()


def _report(message: str) -> None:
    note(f"headrace: {message}")


def _text(query: str | None) -> str:
    return sys.stdin.read() if query in (None, "-") else query or ""


def _options(bootstrap: str, properties: list[str] | None, registry: str | None, **more: Any) -> "EngineOptions":
    from headrace.sql.engine import EngineOptions

    target = resolve_target(bootstrap, properties)
    named = find_registry_options(registry, bootstrap, properties, None) if registry or target.registry else {}

    def find() -> Mapping[str, str]:
        admin = connecting.admin(bootstrap, properties)
        return find_registry_options(registry, bootstrap, properties, admin.cluster_id)

    client = {**for_columnar(target.settings), "bootstrap.servers": target.bootstrap}
    return EngineOptions(client=client, registry=named, find_registry=find, **more)


def _declared(schemas: list[str] | None, read: list[str] | None) -> dict[str, dict[str, str]]:
    """How the values of topics are read."""
    found: dict[str, dict[str, str]] = {}
    for text in schemas or ():
        topic, equals, schema = text.partition("=")
        if not equals or not topic.strip() or not schema.strip():
            raise bad_input(f"--schema {text}: write TOPIC=SCHEMA, such as 'orders=id BIGINT, total DOUBLE'")
        found.setdefault(topic.strip(), {})["schema"] = schema.strip()
    for text in read or ():
        where, equals, value = text.partition("=")
        topic, colon, name = where.partition(":")
        if not equals or not colon or not topic.strip() or not name.strip():
            raise bad_input(f"--read {text}: write TOPIC:NAME=VALUE, such as orders:format=avro")
        found.setdefault(topic.strip(), {})[name.strip()] = value.strip()
    return found


def _directories(files: list[Path] | None) -> list[Path]:
    for one in files or ():
        if not one.is_dir():
            raise bad_input(f"--files {one}: there is no such directory")
    return list(files or ())


def _begin(text: str) -> "Callable[[Cluster, list[TopicPartition]], dict[TopicPartition, int]]":
    """Where topics are read from."""
    position = parse_position(text, "--from", time.time_ns() // 1_000_000)

    def begin(cluster: "Cluster", partitions: "list[TopicPartition]") -> "dict[TopicPartition, int]":
        from headrace.client.core.offsets import EARLIEST, LATEST

        first = _plain(cluster.offsets(dict.fromkeys(partitions, EARLIEST)))
        if position.kind is PositionKind.BEGINNING:
            return first
        last = _plain(cluster.offsets(dict.fromkeys(partitions, LATEST)))
        asked = _asked(cluster, partitions, position, last)
        return {where: max(first[where], min(asked[where], last[where])) for where in partitions}

    return begin


def _asked(
    cluster: "Cluster", partitions: "list[TopicPartition]", position: Position, last: "dict[TopicPartition, int]"
) -> "dict[TopicPartition, int]":
    if position.kind is PositionKind.END:
        return last
    if position.kind is PositionKind.TIME:
        found = cluster.offsets(dict.fromkeys(partitions, position.value))
        return {where: last[where] if offset is None else offset for where, offset in found.items()}
    if position.kind is PositionKind.OFFSET:
        return dict.fromkeys(partitions, position.value)
    return {where: last[where] - position.value for where in partitions}


def _plain(offsets: "Mapping[TopicPartition, int | None]") -> "dict[TopicPartition, int]":
    return {where: offset or 0 for where, offset in offsets.items()}
