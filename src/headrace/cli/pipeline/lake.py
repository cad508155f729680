"""`headrace pipeline compact|reprocess|replay`: what is done with the tables that topics were archived to."""

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ..console import Failure, bad_input, examples, say, say_json
from ..options import DEFAULT_BOOTSTRAP, Json, bootstrap_list, pairs
from ..units import amount
from .commands import Bootstrap, app

if TYPE_CHECKING:
    from headrace.lake.opening import Lake

_EVERY: Final = "1 minute"

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics.")]
SomeTopics = Annotated[list[str] | None, typer.Argument(metavar="[TOPIC...]", help="The topics; all by default.")]
Path = Annotated[str, typer.Argument(metavar="PATH", help="The directory that topics were archived to.")]
Storage = Annotated[
    list[str] | None,
    typer.Option("--storage", metavar="NAME=VALUE", help="An option of the object store; may be repeated."),
]
Catalog = Annotated[
    list[str] | None,
    typer.Option("--catalog", metavar="NAME=VALUE", help="A property of Iceberg's catalog; may be repeated."),
]
Values = Annotated[
    str, typer.Option("--values", metavar="FORMAT", help="What values are: raw, string, json, avro, protobuf.")
]
Schema = Annotated[
    str | None, typer.Option("--schema", metavar="SCHEMA", help="The schema of values, or the path of a file with it.")
]
Registry = Annotated[
    str | None, typer.Option("--registry", metavar="URL", help="The schema registry that values were written with.")
]
ValueOptions = Annotated[
    list[str] | None,
    typer.Option("--value-option", metavar="NAME=VALUE", help="A further option of the format; may be repeated."),
]
Client = Annotated[
    list[str] | None,
    typer.Option("--property", "-X", metavar="NAME=VALUE", help="A setting of the client; may be repeated."),
]


def value_options(
    values: str, schema: str | None, registry: str | None, more: list[str] | None
) -> dict[str, str] | str:
    given = pairs(more, "--value-option")
    given |= {} if schema is None else {"schema": schema}
    given |= {} if registry is None else {"schema.registry.url": registry}
    if values == "raw":
        if given:
            raise bad_input(
                f"{', '.join(sorted(given))} says how values are decoded, and --values raw does not: name it"
            )
        return {}
    return {"format": values, **given}


def open_table(path: str, topic: str, storage: list[str] | None, catalog: list[str] | None) -> "Lake":
    """The lake with the table of a topic."""
    from headrace.lake.errors import LakeError
    from headrace.lake.reading import open_lake

    try:
        return open_lake(path, topic, pairs(storage, "--storage"), pairs(catalog, "--catalog"))
    except LakeError as error:
        raise bad_input(error.message) from error


@app.command(
    epilog=examples(
        "headrace pipeline compact lake",
        "headrace pipeline compact lake orders --file-size 256m --older-than 7d --json",
    )
)
def compact(
    path: Path,
    topics: SomeTopics = None,
    file_size: Annotated[str, typer.Option("--file-size", metavar="SIZE", help="How large files get, about.")] = "128m",
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="TIME", help="Remove files that no table has needed for so long."),
    ] = "1d",
    storage: Storage = None,
    catalog: Catalog = None,
    json: Json = False,
) -> None:
    """Put small files of tables together, and remove those that are not needed any more. Archives may go on meanwhile.

    Whoever still reads a version of a table as it was needs its files: --older-than is how long they have.
    """
    from headrace.lake.compacting import compact as compact_table
    from headrace.lake.opening import topics_in

    size, age = amount(file_size, "--file-size"), _age(older_than)
    found = []
    for topic in topics or topics_in(path, pairs(storage, "--storage")):
        lake = open_table(path, topic, storage, catalog)
        for table in (lake.table(topic), lake.bad_table(topic)):
            if table.snapshot() is None:
                continue
            done, removed = compact_table(table, file_bytes=size), table.sweep(time.time() - age)
            found.append({"table": table.name, "before": done.before, "after": done.after, "removed": removed})
            if not json:
                words = f"{done.before} files became {done.after}" if done.before else "no small files to put together"
                say(f"{table.name}: {words}, {removed} old ones removed")
    if json:
        say_json(found)
    elif not found:
        say(f"there are no tables in {path}")


def _age(text: str) -> float:
    from ..options import time_ms

    now = int(time.time() * 1000)
    try:
        return (now - time_ms(f"-{text}", "--older-than", now)) / 1000
    except Failure:
        raise bad_input(f"--older-than '{text}' is not a length of time; write 12h or 7d") from None


@app.command(
    epilog=examples(
        "headrace pipeline reprocess lake orders --values avro --registry http://127.0.0.1:8080",
        'headrace pipeline reprocess lake orders --values json --schema "id BIGINT, note STRING"',
    )
)
def reprocess(
    path: Path,
    topics: SomeTopics = None,
    values: Values = "raw",
    schema: Schema = None,
    registry: Registry = None,
    value_option: ValueOptions = None,
    storage: Storage = None,
    catalog: Catalog = None,
    json: Json = False,
) -> None:
    """Decode bad records of an archive again; those that can be decoded now go to the table of their topic.

    Options that say how values are decoded are those of `archive`.
    """
    from headrace.lake.opening import topics_in
    from headrace.lake.reprocessing import reprocess as reprocess_topic
    from headrace.lake.values import decoder_for_topic

    options = value_options(values, schema, registry, value_option)
    assert isinstance(options, dict)
    found = []
    for topic in topics or topics_in(path, pairs(storage, "--storage")):
        lake = open_table(path, topic, storage, catalog)
        done = reprocess_topic(lake, topic, decoder_for_topic(topic, options))
        found.append({"topic": topic, "good": done.good, "left": done.left, "error": done.error})
        if not json:
            why = f", the first because {done.error}" if done.left else ""
            say(f"{topic}: {done.good:,} records added, {done.left:,} are still bad{why}")
    if json:
        say_json(found)


@app.command(
    epilog=examples(
        "headrace pipeline replay lake orders --to orders-again",
        "headrace pipeline replay lake orders --to orders-again --from 1000 --until 2000 --json",
    )
)
def replay(
    path: Path,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic whose table is replayed.")],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Where the records go.")],
    start: Annotated[
        int | None, typer.Option("--from", min=0, metavar="OFFSET", help="Begin there in each partition.")
    ] = None,
    until: Annotated[
        int | None, typer.Option("--until", min=0, metavar="OFFSET", help="End before it in each partition.")
    ] = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Tells this replay from others of the table to the topic.")
    ] = "",
    storage: Storage = None,
    catalog: Catalog = None,
    bootstrap: Bootstrap = None,
    client: Client = None,
    json: Json = False,
) -> None:
    """Write the records of a table to a topic, as they were: keys, values, headers, times, partitions and their order.

    In transactions: stopped or killed it goes on where it was when it is run again, and nothing is there twice. Run
    later it writes what was archived since; with another --name it begins anew.
    """
    from headrace.client.columnar.cluster import Cluster
    from headrace.client.probe import require_listener
    from headrace.lake.replaying import replay as replay_table

    brokers = bootstrap_list(bootstrap or DEFAULT_BOOTSTRAP)
    lake = open_table(path, topic, storage, catalog)
    wanted = (start or 0, until if until is not None else 1 << 62)
    require_listener(brokers)
    records = 0
    with Cluster({"bootstrap.servers": brokers, **pairs(client, "--property")}) as cluster:
        for done in replay_table(lake, topic, cluster, to, wanted=lambda _partition: wanted, name=name):
            records += done.records
            if json:
                say_json({"event": "progress", "records": records, "partition": done.partition, "offset": done.offset})
    if json:
        say_json({"event": "ended", "records": records})
    else:
        say(f"{records:,} records of {lake.table(topic).name} written to {to}")
