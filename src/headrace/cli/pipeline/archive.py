"""`headrace pipeline archive`: topics as tables."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ..console import bad_input, examples, note, say, say_json
from ..options import DEFAULT_BOOTSTRAP, Json, bootstrap_list, pairs
from ..positions import client_bound
from .commands import Bootstrap, Conf, Master, Remote, Signals, Verbose, all_problems, app, run_declaration, spark_place
from .lake import Catalog, Registry, Schema, Storage, Topics, ValueOptions, Values, value_options

if TYPE_CHECKING:
    from headrace.client.columnar.cluster import Cluster
    from headrace.lake.opening import Lake
    from headrace.spark.pipeline.model import Declaration, ToArchive

_EVERY: Final = "1 minute"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Archive:
    """What is to be archived, where to, and how."""

    topics: Sequence[str]
    path: str
    sink: Mapping[str, Any]
    source: Mapping[str, str]
    bootstrap: str
    start: str | None
    until: str | None
    every: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """How it is to be run."""

    master: str
    remote: str | None
    checkpoint: str | None
    once: bool
    grace: float
    conf: Mapping[str, str]
    yaml: bool
    verbose: bool
    json: bool


@app.command(
    epilog=examples(
        "headrace pipeline archive orders --to lake",
        "headrace pipeline archive orders payments --to lake --format delta --values avro --registry http://127.0.0.1:8080",
        "headrace pipeline archive customers --to lake --format iceberg --upsert --every '10 seconds'",
        "headrace pipeline archive orders --to lake --from 2026-01-01 --until 2026-02-01",
    )
    + "\n\nExit codes: 0 stopped or done, 1 failed, 2 wrong usage, 3 no broker answers."
)
def archive(
    topics: Topics,
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="Where the tables are: PATH/TOPIC each.")],
    table_format: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="Of the tables: parquet, delta, iceberg.")
    ] = "parquet",
    values: Values = "raw",
    schema: Schema = None,
    registry: Registry = None,
    value_option: ValueOptions = None,
    partition: Annotated[
        str, typer.Option("--partition", metavar="TIME", help="Of records' times, UTC: none, day, hour.")
    ] = "day",
    upsert: Annotated[
        bool, typer.Option("--upsert", help="One row for each key: replaced by newer records, deleted by empty ones.")
    ] = False,
    every: Annotated[str, typer.Option("--every", metavar="INTERVAL", help="How often there is a commit.")] = _EVERY,
    once: Annotated[bool, typer.Option("--once", help="Archive what is there now, then end.")] = False,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="POSITION", help="Begin there: earliest, latest, an offset, a time."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="POSITION", help="Add just what is before, as far as it is missing, and end."),
    ] = None,
    keep_bytes: Annotated[
        bool, typer.Option("--keep-bytes/--drop-bytes", help="Keep values as they were beside their fields.")
    ] = True,
    on_bad: Annotated[
        str, typer.Option("--on-bad", metavar="WHAT", help="With records that cannot be decoded: table, fail.")
    ] = "table",
    compact_every: Annotated[
        int, typer.Option("--compact-every", min=0, metavar="N", help="Put small files together after N commits.")
    ] = 50,
    file_size: Annotated[str, typer.Option("--file-size", metavar="SIZE", help="How large files get, about.")] = "128m",
    catalog: Catalog = None,
    storage: Storage = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the source, such as maxBytesPerTrigger=1g."),
    ] = None,
    bootstrap: Bootstrap = None,
    master: Master = "local[*]",
    remote: Remote = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="DIR", help="Where progress is kept.", show_default=".headrace in PATH"),
    ] = None,
    grace: Annotated[
        float, typer.Option("--grace", min=0, metavar="SECONDS", help="How long a stop waits for current batches.")
    ] = 30.0,
    conf: Conf = None,
    yaml: Annotated[bool, typer.Option("--yaml", help="Print the pipeline that this is, and do not run it.")] = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Keep topics as tables, for as long as you let it: each record once, whatever is killed and when.

    A topic's table is PATH/TOPIC, and goes on where it ended. Records that cannot be decoded are in PATH/_bad/TOPIC.
    """
    master, remote = spark_place(master, remote)
    if until is not None and once:
        raise bad_input("--until ends by itself; leave out --once")
    sink = _sink(
        format=table_format,
        partition=partition,
        upsert=str(upsert).lower(),
        values=value_options(values, schema, registry, value_option),
        keepBytes=str(keep_bytes).lower(),
        onBad=on_bad,
        compactEvery=str(compact_every),
        fileSize=file_size,
        catalog=pairs(catalog, "--catalog"),
        storage=pairs(storage, "--storage"),
    )
    _run_archive(
        _Archive(
            topics=topics,
            path=to,
            sink=sink,
            source=pairs(option, "--option"),
            bootstrap=bootstrap_list(bootstrap or DEFAULT_BOOTSTRAP),
            start=start,
            until=until,
            every=None if once or until is not None else every,
        ),
        _Run(
            master=master,
            remote=remote,
            checkpoint=checkpoint,
            once=once,
            grace=grace,
            conf=pairs(conf, "--conf"),
            yaml=yaml,
            verbose=verbose,
            json=json,
        ),
    )


def _sink(**given: Any) -> dict[str, Any]:
    """The keys of the sink, without those that say nothing."""
    return {name: value for name, value in given.items() if value not in ({}, "", None)}


def _run_archive(asked: _Archive, how: _Run) -> None:
    from headrace.client.columnar.cluster import Cluster
    from headrace.client.probe import require_listener
    from headrace.spark.pipeline.building import BOOTSTRAP
    from headrace.spark.pipeline.vocabulary import client_of

    declaration = _declared(asked, {})
    archived = declaration.sinks[0].output
    if how.yaml and asked.start is None:
        _print_yaml(asked, {})
        return
    if how.remote is not None:
        # Tables and brokers are the server's: what tables have already is found out there, with each batch.
        _run_declared(replace(declaration, spark={**declaration.spark, **how.conf}), asked, how)
        return
    require_listener(asked.bootstrap)
    with Cluster(
        client_of({BOOTSTRAP: asked.bootstrap, "subscribe": ",".join(asked.topics), **asked.source})
    ) as cluster:
        if asked.until is not None:
            _backfill(asked, how, declaration, cluster)
            return
        starting = _starting(asked, cluster, archived.options.lake)
    if how.yaml:
        _print_yaml(asked, starting)
        return
    declaration = _declared(asked, starting)
    _run_declared(replace(declaration, spark={**declaration.spark, **how.conf}), asked, how)


def _declared(asked: _Archive, starting: Mapping[str, str]) -> "Any":
    from headrace.spark.archive.declaring import archive_document, declared
    from headrace.spark.pipeline.document import InvalidPipeline

    document = archive_document(asked.topics, asked.path, {**_earliest(asked), **starting}, asked.sink, asked.every)
    try:
        return declared(document, asked.path)
    except InvalidPipeline as error:
        raise all_problems(error.problems) from error


def _earliest(asked: _Archive) -> dict[str, str]:
    return {"startingOffsets": "earliest", **asked.source}


def _print_yaml(asked: _Archive, starting: Mapping[str, str]) -> None:
    import yaml

    from headrace.spark.archive.declaring import archive_document

    document = archive_document(asked.topics, asked.path, {**_earliest(asked), **starting}, asked.sink, asked.every)
    say(yaml.safe_dump(document, sort_keys=False).rstrip())


def _run_declared(declaration: "Declaration", asked: _Archive, how: _Run) -> None:
    from headrace.spark.pipeline.run import RunOptions
    from headrace.spark.pipeline.session import SparkTarget

    stop = threading.Event()
    options = RunOptions(
        bootstrap=asked.bootstrap,
        spark=SparkTarget(master=how.master, remote=how.remote),
        checkpoint=how.checkpoint,
        once=how.once,
        grace=how.grace,
        stop=stop,
        take_signals=Signals(stop).take,
    )
    run_declaration(declaration, options, how.verbose, how.json)


def _starting(asked: _Archive, cluster: "Cluster", lake: "Lake") -> dict[str, str]:
    from headrace.spark.archive.declaring import starting_offsets

    given = None if asked.start is None else client_bound(asked.start, "--from")
    found = starting_offsets(lake, asked.topics, cluster, given)
    return {} if found is None else {"startingOffsets": found}


def _backfill(asked: _Archive, how: _Run, declaration: "Declaration", cluster: "Cluster") -> None:
    from headrace.client.columnar.api import resolved
    from headrace.client.columnar.model import TopicPartition
    from headrace.spark.archive.backfill import backfill
    from headrace.spark.pipeline.building import BOOTSTRAP
    from headrace.spark.pipeline.session import SparkTarget, open_session

    partitions = [
        TopicPartition(topic, number)
        for topic, count in cluster.partitions(asked.topics).items()
        for number in range(count)
    ]
    assert asked.until is not None
    low, high = resolved(cluster, partitions, "earliest", "start"), resolved(cluster, partitions, "latest", "end")
    begin = low if asked.start is None else resolved(cluster, partitions, client_bound(asked.start, "--from"), "--from")
    stop = resolved(cluster, partitions, client_bound(asked.until, "--until"), "--until")
    ranges = {where: (max(low[where], begin[where]), min(high[where], stop[where])) for where in partitions}
    ids = {name: image.id.hex() for name, image in cluster.describe(asked.topics).items() if image.id is not None}
    output: ToArchive = declaration.sinks[0].output  # type: ignore[assignment]
    given = {name: text for name, text in asked.source.items() if "starting" not in name.lower()}
    source = {BOOTSTRAP: asked.bootstrap, "kafka.isolation.level": "read_committed", **given}
    target = SparkTarget(master=how.master)
    note(f"starting Spark ({target})")
    log = _log_file(declaration)
    rows = bad = 0
    with open_session(target, declaration.name, {**declaration.spark, **how.conf}, log) as spark:
        for done in backfill(spark, output.options, output.values, source, ranges, ids):
            rows, bad = rows + done.rows, bad + done.bad
            if not how.json:
                say(f"{done.topic}: {done.rows:,} records added, {done.bad:,} bad")
    if how.json:
        say_json({"rows": rows, "bad_records": bad})
    elif not rows and not bad:
        say("nothing is missing: the tables have these offsets")


def _log_file(declaration: "Declaration") -> Any:
    from headrace.spark.pipeline.paths import paths_of

    paths = paths_of(declaration, None)
    paths.local.mkdir(parents=True, exist_ok=True)
    return paths.log
