"""`headrace pipeline backfill`: a pipeline over a span of its sources."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ..console import ExitCode, bad_input, examples, note, say, say_json, say_table
from ..options import DEFAULT_BOOTSTRAP, ClientProperties, Json, bootstrap_list, pairs
from ..positions import client_bound
from .commands import LOCAL, Bootstrap, Conf, Remote, Signals, Verbose, load_declaration, require_spark, spark_place
from .target import opened_cluster
from .view import view_for

if TYPE_CHECKING:
    from headrace.spark.pipeline.backfill import Asked, Plan
    from headrace.spark.pipeline.model import Declaration
    from headrace.spark.pipeline.session import SparkTarget
    from headrace.spark.service.model import SparkSettings

_CODE: Final = Path(".headrace") / "deployed"
_ROW: Final = ("SOURCE", "TOPIC", "PARTITION", "FROM", "TO", "OFFSETS")
_OUTLET: Final = ("WRITES", "KIND", "TO", "MISSING", "ROWS THAT ARE THERE")


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace pipeline backfill pipeline.yaml --from 2026-01-01 --to 2026-02-01 --dry-run",
            "headrace pipeline backfill demo --from earliest --to 5000 --target counts=words-again",
            "headrace pipeline backfill pipeline.yaml --from -2d --from customers=earliest --sink revenue --json",
        )
        + "\n\nExit codes: 0 done or stopped, 1 failed, 2 wrong usage or a mistake in the file, 3 no broker answers."
    )(backfill)


def backfill(
    pipeline: Annotated[
        str, typer.Argument(metavar="FILE|NAME", help="The pipeline: its file, or a deployed pipeline's name.")
    ],
    start: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="[SOURCE=]POSITION",
            help="Begin there: earliest, an offset, a time; of one source, or of all that are not named.",
        ),
    ],
    stop: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="[SOURCE=]POSITION", help="End before it.", show_default="latest"),
    ] = None,
    sinks: Annotated[
        list[str] | None,
        typer.Option("--sink", metavar="SINK", help="Write this one; may be repeated.", show_default="all"),
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="SINK=TOPIC|PATH",
            help="Write there instead: another topic, directory of files, or place of tables.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be read and written; start nothing.")
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="Tells this backfill from others.", show_default="by what is asked for"
        ),
    ] = "",
    again: Annotated[
        bool, typer.Option("--again", help="Begin anew, also if it is done: what is added is added once more.")
    ] = False,
    bootstrap: Bootstrap = None,
    properties: ClientProperties = None,
    master: Annotated[
        str | None,
        typer.Option("--master", help="The Spark to start with; a cluster's address.", show_default="local[*]"),
    ] = None,
    remote: Remote = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Where this backfill's progress is kept.",
            show_default=".headrace/PIPELINE-backfill-NAME",
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option("--grace", min=0, metavar="SECONDS", help="How long a stop waits for current batches.")
    ] = 30.0,
    conf: Conf = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Run a pipeline over a span of its sources, into its sinks or other targets, beside the one that runs.

    The running pipeline's checkpoint and groups stay as they are. A backfill is known by what is asked for: one that
    was stopped or killed goes on with the same offsets, and one that is done has nothing left to do.

    Archives get the offsets that they do not have. To topics rows are added, beside those that are there.
    """
    require_spark()
    from headrace.spark.pipeline.backfill import (
        BadBackfill,
        chosen,
        kept_plan,
        known_plan,
        planned,
        require_own_tables,
    )
    from headrace.spark.pipeline.paths import paths_of

    declaration, brokers, spark, code = _opened(pipeline, bootstrap, properties, master, remote, pairs(conf, "--conf"))
    asked = _asked(start, stop, sinks, targets, name)
    try:
        declaration = chosen(declaration, asked)
        if code is not None:
            require_own_tables(declaration, asked, code)
        paths = paths_of(declaration, checkpoint)
        plan = None if again else known_plan(paths)
        if plan is None:
            plan = planned(declaration, asked, brokers)
        _show(declaration, plan, dry_run=dry_run, json=json)
        if dry_run or plan.is_done:
            return
        if again:
            _forget(paths.local, paths.checkpoints)
        plan = kept_plan(paths, plan)
    except BadBackfill as error:
        raise bad_input(str(error)) from error
    _run(declaration, plan, brokers, spark, checkpoint, grace, verbose=verbose, json=json)


def _opened(
    pipeline: str,
    bootstrap: str | None,
    properties: list[str] | None,
    master: str | None,
    remote: str | None,
    conf: dict[str, str],
) -> "tuple[Declaration, str, SparkTarget, Path | None]":
    """The pipeline, its brokers, where Spark is, and where the files of a deployed one are."""
    chosen = None if master is None and remote is None else spark_place(master or LOCAL, remote)
    from headrace.spark.pipeline.session import SparkTarget

    file, settings, code = Path(pipeline), None, None
    if not (file.is_file() or file.suffix in (".yaml", ".yml", ".py")):
        settings, file, code = _deployed(pipeline, bootstrap or DEFAULT_BOOTSTRAP, properties)
    declaration = load_declaration(file)
    target = SparkTarget() if chosen is None else SparkTarget(master=chosen[0], remote=chosen[1])
    brokers = bootstrap or declaration.bootstrap or DEFAULT_BOOTSTRAP
    if settings is not None:
        conf = {**settings.conf, **conf}
        declaration = replace(declaration, name=pipeline, checkpoint=settings.checkpoint)
        brokers = settings.bootstrap or declaration.bootstrap or bootstrap or DEFAULT_BOOTSTRAP
        if chosen is None:
            target = SparkTarget(master=settings.master, remote=settings.remote)
    declaration = replace(declaration, spark={**declaration.spark, **conf})
    return declaration, bootstrap_list(brokers), target, code


def _deployed(name: str, bootstrap: str, properties: list[str] | None) -> "tuple[SparkSettings, Path, Path]":
    """How a deployed pipeline is run, and its file, put into a directory of this machine."""
    from headrace.spark.service.bundle import BadBundle, place
    from headrace.spark.service.client import Deployments

    with opened_cluster(bootstrap, properties) as cluster:
        found = Deployments(cluster).get(name)
    code = _CODE.resolve() / name / "code"
    try:
        place(found.files(), code)
    except BadBundle as error:
        raise bad_input(f"pipeline '{name}': {error}") from error
    return found.settings, code / found.file, code


def _asked(
    start: list[str], stop: list[str] | None, sinks: list[str] | None, targets: list[str] | None, name: str
) -> "Asked":
    from headrace.spark.pipeline.backfill import NAME, Asked

    if name and not NAME.fullmatch(name):
        raise bad_input(f"--name '{name}' may have letters, digits, '.', '_' and '-' only")
    stops = {"": "latest", **_by_source(stop or [], "--to")}
    starts = _by_source(start, "--from")
    return Asked(
        start={source: client_bound(text, "--from") for source, text in starts.items()},
        stop={source: client_bound(text, "--to") for source, text in stops.items()},
        words=[f"{source}={text}" for given in (starts, stops) for source, text in sorted(given.items())],
        sinks=tuple(sinks or ()),
        targets=pairs(targets, "--target"),
        name=name,
    )


def _by_source(texts: list[str], option: str) -> dict[str, str]:
    """Positions by the source that they are of; of no name for the others."""
    found: dict[str, str] = {}
    for text in texts:
        source, equals, position = text.rpartition("=")
        if source in found:
            raise bad_input(f"{option} is given twice{f' for source {source!r}' if equals else ''}")
        found[source] = position
    return found


def _show(declaration: "Declaration", plan: "Plan", *, dry_run: bool, json: bool) -> None:
    """What is read and written, before anything is."""
    from headrace.spark.pipeline.backfill import outlet_notes

    notes = list(outlet_notes(declaration, plan)) if dry_run else []
    offsets = sum(span.offsets for span in plan.spans.values())
    if json:
        rows = [
            {"source": source, "topic": where.topic, "partition": where.partition, "from": start, "to": stop}
            for source, span in plan.spans.items()
            for where, (start, stop) in span.ranges.items()
        ]
        told: dict[str, Any] = {"backfill": declaration.name, "offsets": offsets, "done": plan.is_done, "spans": rows}
        if dry_run:
            told["sinks"] = [one.as_json() for one in notes]
        say_json({"event": "plan", **told})
    elif dry_run:
        say_table(
            _ROW,
            [
                (source, where.topic, where.partition, start, stop, f"{stop - start:,}")
                for source, span in plan.spans.items()
                for where, (start, stop) in span.ranges.items()
            ],
        )
        say_table(
            _OUTLET,
            [
                (
                    one.name,
                    one.kind,
                    one.target or "-",
                    "-" if one.missing is None else f"{one.missing:,}",
                    one.duplicates,
                )
                for one in notes
            ],
        )
    else:
        note(f"backfill {declaration.name}: {offsets:,} offsets")
    for source, span in plan.spans.items():
        for where in span.held_back:
            note(
                f"headrace: warning: source '{source}': {where.topic}-{where.partition} ends at offset"
                f" {span.ranges[where][1]} for now, where a transaction is open; what comes of it is not read"
            )
    if plan.is_done:
        note(f"backfill {declaration.name} is done; --again writes it once more")


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def _forget(local: Path, checkpoints: str) -> None:
    """Take away the progress of an earlier run of the same backfill, which is all in one directory."""
    import shutil

    from headrace.spark.pipeline.backfill import known_plan
    from headrace.spark.pipeline.paths import PipelinePaths, is_remote

    if is_remote(checkpoints):
        raise bad_input(f"--again cannot take away {checkpoints}; give the backfill another --name instead")
    if known_plan(PipelinePaths(checkpoints, local)) is not None:
        shutil.rmtree(local)


def _run(
    declaration: "Declaration",
    plan: "Plan",
    brokers: str,
    spark: "SparkTarget",
    checkpoint: str | None,
    grace: float,
    *,
    verbose: bool,
    json: bool,
) -> None:
    from headrace.spark.pipeline.backfill import note_done
    from headrace.spark.pipeline.backfilling import run_backfill
    from headrace.spark.pipeline.document import InvalidPipeline
    from headrace.spark.pipeline.failures import PipelineFailed
    from headrace.spark.pipeline.paths import paths_of
    from headrace.spark.pipeline.run import RunOptions

    stop = threading.Event()
    options = RunOptions(
        bootstrap=brokers,
        spark=spark,
        checkpoint=checkpoint,
        once=True,
        grace=grace,
        stop=stop,
        take_signals=Signals(stop).take,
    )
    with view_for(json) as view:
        try:
            found = run_backfill(declaration, plan, options, view)
            if not stop.is_set():
                note_done(paths_of(declaration, checkpoint), plan)
            view.ended(found)
        except (InvalidPipeline, PipelineFailed) as error:
            view.failed(str(error))
            if verbose and error.__cause__ is not None:
                note(str(error.__cause__))
            raise typer.Exit(ExitCode.FAILED if isinstance(error, PipelineFailed) else ExitCode.USAGE) from None
    if stop.is_set():
        note(f"backfill {declaration.name} was stopped; the same command goes on with it")
    elif not json:
        say(f"backfill {declaration.name}: done")
