"""`headrace pipeline`: run, check and begin declared pipelines on Spark."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ..console import ExitCode, Failure, bad_input, examples, note, say, say_json
from ..options import DEFAULT_BOOTSTRAP, Json, bootstrap_list, pairs

if TYPE_CHECKING:
    from headrace.spark.pipeline.model import Declaration
    from headrace.spark.pipeline.session import SparkTarget

LOCAL: Final = "local[*]"
_EXTRA: Final = 'pip install "headrace[spark]"'
_IN_EXTRA: Final = ("pyspark", "yaml", "pyarrow", "pandas")


class _Pipelines(TyperGroup):
    """Commands that need an extra, and name it where it is not installed."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _IN_EXTRA:
                raise
            raise Failure(f"pipelines need the package '{package}': {_EXTRA}") from error


app = typer.Typer(
    cls=_Pipelines,
    help="Run declared pipelines on Spark: topics in, SQL and Python between, topics and Parquet out.",
    epilog=examples(
        "headrace pipeline new demo", "headrace pipeline run demo/pipeline.yaml", "headrace pipeline deploy demo"
    ),
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline: a YAML or a Python file.")]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="HEADRACE_BOOTSTRAP",
        metavar="HOST:PORT",
        help="Brokers to start from, by commas; before the file's own.",
        show_default=DEFAULT_BOOTSTRAP,
    ),
]
Master = Annotated[
    str, typer.Option("--master", help="The Spark to start with; a cluster's address, or sc://HOST:PORT.")
]
Remote = Annotated[
    str | None, typer.Option("--remote", metavar="sc://HOST:PORT", help="A Spark Connect server instead.")
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="With a failure, show all that Spark said of it.")]


@app.command(
    epilog=examples(
        "headrace pipeline run pipeline.yaml",
        "headrace pipeline run pipeline.yaml --once --json",
        "headrace pipeline run pipeline.yaml --master spark://host:7077 --conf spark.executor.memory=2g",
        "headrace pipeline run pipeline.py --remote sc://host:15002",
    )
    + "\n\nExit codes: 0 stopped or done, 1 failed, 2 wrong usage or a mistake in the file, 3 no broker answers."
)
def run(
    file: File,
    bootstrap: Bootstrap = None,
    master: Master = LOCAL,
    remote: Remote = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Where progress is kept.",
            show_default=".headrace/NAME beside the file",
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Process what is there now, then end.")] = False,
    grace: Annotated[
        float, typer.Option("--grace", min=0, metavar="SECONDS", help="How long a stop waits for current batches.")
    ] = 30.0,
    conf: Conf = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Run a pipeline until Ctrl-C; it goes on where it stopped when it is run again.

    A first Ctrl-C (or SIGTERM) lets current batches finish, a second one ends at once. A sink that fails stops all.
    """
    require_spark()
    declaration, brokers, target = _settled(file, bootstrap, master, remote, conf)
    from headrace.spark.pipeline.run import RunOptions

    for warning in _warnings(declaration, is_connect=remote is not None):
        note(f"headrace: warning: {warning}")
    stop = threading.Event()
    options = RunOptions(
        bootstrap=brokers,
        spark=target,
        checkpoint=checkpoint,
        once=once,
        grace=grace,
        stop=stop,
        take_signals=Signals(stop).take,
    )
    run_declaration(declaration, options, verbose, json)


def require_spark() -> None:
    """ModuleNotFoundError where Spark is not installed, before anything else is found to be wrong."""
    import pyspark  # noqa: F401


def spark_place(master: str, remote: str | None) -> tuple[str, str | None]:
    """The master to start Spark with, and the server of Spark Connect if it is one; `sc://` is one either way."""
    if remote is not None and master != LOCAL:
        raise bad_input("--master and --remote exclude each other; keep one")
    return (LOCAL, master) if master.startswith("sc://") else (master, remote)


def _settled(
    file: Path, bootstrap: str | None, master: str, remote: str | None, conf: list[str] | None
) -> "tuple[Declaration, str, SparkTarget]":
    """What `run` and `check` make of their options: the pipeline, the brokers, and where Spark is."""
    master, remote = spark_place(master, remote)
    settings = pairs(conf, "--conf")
    declaration = load_declaration(file)
    from headrace.spark.pipeline.session import SparkTarget

    declaration = replace(declaration, spark={**declaration.spark, **settings})
    brokers = bootstrap_list(bootstrap or declaration.bootstrap or DEFAULT_BOOTSTRAP)
    return declaration, brokers, SparkTarget(master=master, remote=remote)


def _warnings(declaration: "Declaration", *, is_connect: bool) -> list[str]:
    from headrace.spark.pipeline.graph import unused
    from headrace.spark.pipeline.queries import disagreements, graphs_of

    found = unused(declaration) + disagreements(declaration, graphs_of(declaration, files_apart=is_connect))
    return [f"{place}: {message}" for place, message in sorted(found, key=lambda one: (one[0].file, one[0].line))]


def run_declaration(declaration: "Declaration", options: Any, verbose: bool, json: bool) -> None:
    """Run a pipeline, shown as it goes; exits as the command does."""
    from headrace.spark.pipeline.document import InvalidPipeline
    from headrace.spark.pipeline.failures import PipelineFailed
    from headrace.spark.pipeline.run import run as run_pipeline

    from .view import view_for

    with view_for(json) as view:
        try:
            view.ended(run_pipeline(declaration, options, view))
        except (InvalidPipeline, PipelineFailed) as error:
            view.failed(str(error))
            if verbose and error.__cause__ is not None:
                note(str(error.__cause__))
            raise typer.Exit(ExitCode.FAILED if isinstance(error, PipelineFailed) else ExitCode.USAGE) from None


class Signals:
    """What Ctrl-C and SIGTERM do to a run: the first asks it to stop, the second ends it."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._taken = 0

    def take(self) -> None:
        """To be called before Spark starts, and when it has started."""
        self._taken += 1
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._stop.is_set():
            os._exit(ExitCode.INTERRUPTED)
        self._stop.set()
        if self._taken == 1:
            note("stopping as soon as Spark has started; once more ends it at once")


def load_declaration(file: Path) -> "Declaration":
    """The pipeline of a file; a failure that tells every mistake."""
    from headrace.spark.pipeline.document import InvalidPipeline
    from headrace.spark.pipeline.loading import load

    try:
        return load(file)
    except InvalidPipeline as error:
        raise all_problems(error.problems) from error
    except IsADirectoryError:
        raise bad_input(f"{file} is a directory; give the file in it, for example {file / 'pipeline.yaml'}") from None
    except FileNotFoundError:
        raise bad_input(f"there is no file {file}; `headrace pipeline new DIR` writes one to start from") from None


@app.command(
    epilog=examples("headrace pipeline check pipeline.yaml", "headrace pipeline check pipeline.yaml --plan --json")
)
def check(
    file: File,
    plan: Annotated[
        bool, typer.Option("--plan", help="Also let Spark check names and types of columns (starts Spark).")
    ] = False,
    bootstrap: Bootstrap = None,
    master: Master = LOCAL,
    remote: Remote = None,
    conf: Conf = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Check a pipeline without running it: every mistake, with its line.

    With --plan, the options of `run` that Spark sees count here as well. Exits with 2 if there is a mistake.
    """
    require_spark()
    declaration, brokers, place = _settled(file, bootstrap, master, remote, conf)
    warnings = _warnings(declaration, is_connect=place.is_connect)
    for warning in warnings:
        note(f"headrace: warning: {warning}")
    schemas = _planned(declaration, brokers, place, verbose) if plan else None
    if json:
        say_json({"ok": True, **_summary(declaration), "warnings": warnings, "schemas": schemas})
        return
    for name, schema in (schemas or {}).items():
        say(f"{name}: {schema}")
    say(f"{file}: ok, {_counted(declaration)}")


def _planned(declaration: "Declaration", bootstrap: str, target: "SparkTarget", verbose: bool) -> dict[str, str]:
    from headrace.spark.pipeline.document import InvalidPipeline
    from headrace.spark.pipeline.failures import PipelineFailed
    from headrace.spark.pipeline.run import plan

    try:
        return plan(declaration, bootstrap, target, note)
    except InvalidPipeline as error:
        if verbose and error.__cause__ is not None:
            note(str(error.__cause__))
        raise all_problems(error.problems) from error
    except PipelineFailed as error:
        if verbose and error.__cause__ is not None:
            note(str(error.__cause__))
        raise Failure(str(error)) from error


def all_problems(problems: list[str]) -> Failure:
    """All mistakes but the last one said, and that one as what to raise."""
    for problem in problems[:-1]:
        note(f"headrace: {problem}")
    return bad_input(problems[-1])


def _summary(declaration: "Declaration") -> dict[str, object]:
    sources = set(declaration.source_names)
    return {
        "pipeline": declaration.name,
        "sources": sorted(sources),
        "steps": [table.name for table in declaration.tables if table.name not in sources],
        "sinks": [sink.name for sink in declaration.sinks],
    }


def _counted(declaration: "Declaration") -> str:
    parts = _summary(declaration)
    return ", ".join(
        f"{len(names)} {kind if len(names) != 1 else kind.removesuffix('s')}"
        for kind, names in parts.items()
        if isinstance(names, list)
    )


@app.command(epilog=examples("headrace pipeline new demo", "headrace pipeline new demo --json"))
def new(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory for it.")],
    json: Json = False,
) -> None:
    """Write a small pipeline to start from."""
    require_spark()
    from headrace.spark.pipeline.scaffold import write_example

    try:
        written = write_example(directory)
    except FileExistsError as error:
        raise bad_input(f"{error.filename} is there already; choose another directory") from error
    if json:
        say_json({"written": [str(file) for file in written]})
        return
    for file in written:
        say(f"wrote {file}")
    say(f"run it with: headrace pipeline run {written[0]}")
