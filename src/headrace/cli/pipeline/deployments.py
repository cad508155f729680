"""`headrace pipeline deploy|list|status|logs|stop|restart|delete`: pipelines kept in the cluster."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ..console import Marked, bad, bad_input, doubtful, examples, note, say, say_json, say_table
from ..options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, pairs, time_ms
from ..watching import DEFAULT_INTERVAL, Interval, Watch, watching
from .commands import spark_place
from .target import opened_cluster

if TYPE_CHECKING:
    from headrace.spark.service.client import Deployments, View

Name = Annotated[str, typer.Argument(metavar="NAME", help="A deployed pipeline.")]
_COLUMNS: Final = ("PIPELINE", "STATE", "HOST", "SINCE", "RESTARTS", "ROWS IN", "ROWS OUT", "BAD", "LAG", "PROBLEM")
_BAD: Final = ("backoff", "crash-loop", "failed", "silent", "unreadable")
_UNPRINTABLE: Final = re.compile(r"[^\x20-\x7e\x80-\U0010ffff\t]|[\x7f-\x9f]")


def register(app: typer.Typer) -> None:
    for command, lines in _EXAMPLES.items():
        app.command(command.__name__.removesuffix("_"), epilog=examples(*lines))(command)


def deploy(
    path: Annotated[Path, typer.Argument(metavar="FILE|DIR", help="The pipeline: its file, or its directory.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What it is called.", show_default="the file's name:")
    ] = None,
    master: Annotated[str, typer.Option("--master", help="The Spark to run it on.")] = "local[*]",
    remote: Annotated[
        str | None, typer.Option("--remote", metavar="sc://HOST:PORT", help="A Spark Connect server instead.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="URL", help="Where its progress is kept.", show_default="by the service"),
    ] = None,
    brokers: Annotated[
        str | None,
        typer.Option(
            "--pipeline-bootstrap",
            metavar="HOST:PORT",
            help="The brokers that it reads and writes.",
            show_default="the file's, or the service's",
        ),
    ] = None,
    unchecked: Annotated[bool, typer.Option("--no-check", help="Do not look whether it is a sound pipeline.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Keep a pipeline in the cluster, where a service runs it from now on, in place of one of the same name.

    Of a directory all files are kept but hidden ones; of a file those beside it that are code or schemas. Values of
    ${NAME} are not: they come from the environment of the service.
    """
    master, remote = spark_place(master, remote)
    from headrace.spark.service.bundle import BadBundle, collected
    from headrace.spark.service.model import SparkSettings

    if checkpoint is not None and not _is_absolute(checkpoint):
        raise bad_input(f"--checkpoint {checkpoint}: give a URL or an absolute path; it is where the service runs")
    settings = SparkSettings(
        master=master, remote=remote, conf=pairs(conf, "--conf"), checkpoint=checkpoint, bootstrap=brokers
    )
    try:
        file, files = collected(path)
        home = path if path.is_dir() else path.parent
        chosen = name or _declared_name(home / file)
        if not unchecked:
            _check(home / file)
        with opened_cluster(bootstrap, properties) as cluster:
            from headrace.spark.service.client import Deployments

            deployments = Deployments(cluster)
            made = deployments.deploy(chosen, file, files, settings)
            services = deployments.services()
    except BadBundle as error:
        raise bad_input(str(error)) from error
    if json:
        told = {"pipeline": made.name, "revision": made.revision, "files": sorted(files), "services": len(services)}
        say_json({"deployed": True, **told})
        return
    say(f"{made.name}: deployed, {_files_told(files)}")
    if not services:
        note("headrace: no service runs; it starts with the first `headrace pipeline service` (or `up --pipelines`)")


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or "://" in path


def _files_told(files: dict[str, bytes]) -> str:
    names = sorted(files)
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"{shown} ({sum(map(len, files.values())):,} bytes)"


def _declared_name(file: Path) -> str:
    """The name that the file gives, found without running its code where it is YAML."""
    if file.suffix == ".py":
        from .commands import load_declaration

        return load_declaration(file).name
    import yaml

    with suppress(yaml.YAMLError, UnicodeDecodeError):
        text = yaml.safe_load(file.read_text("utf-8"))
        if isinstance(text, dict) and isinstance(text.get("name"), str) and "$" not in text["name"]:
            return str(text["name"])
    raise bad_input(f"{file}: no `name:` is to be found in it; give one with --name")


def _check(file: Path) -> None:
    """Every mistake, as `check` tells it; what cannot be seen from here is told."""
    from headrace.spark.pipeline.yaml_file import lacking_variables

    from .commands import load_declaration

    lacking = lacking_variables(file) if file.suffix != ".py" else []
    if lacking:
        note(
            f"headrace: not checked, as {', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not set here; the "
            "service must have it in its environment"
        )
        return
    declaration = load_declaration(file)
    if declaration.checkpoint is not None:
        note(
            "headrace: `checkpoint:` of the file does not count here: the service keeps it, or where --checkpoint says"
        )


def list_(
    watch: Watch = False,
    interval: Interval = DEFAULT_INTERVAL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Deployed pipelines and how they are."""
    with opened_cluster(bootstrap, properties) as cluster:
        from headrace.spark.service.client import Deployments

        deployments = Deployments(cluster)

        def show() -> None:
            views = deployments.views()
            if json:
                for view in views:
                    say_json(_document(view))
            elif views:
                say_table(_COLUMNS, map(_row, views))
            else:
                note("no pipeline is deployed; `headrace pipeline deploy FILE` does that")

        watching(show, watch, interval, json=json)


def status(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One pipeline; all without a name.")] = None,
    watch: Watch = False,
    interval: Interval = DEFAULT_INTERVAL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """How a deployed pipeline is: its runner, its sinks, its last failure; without a name, all of them and services."""
    with opened_cluster(bootstrap, properties) as cluster:
        from headrace.spark.service.client import Deployments

        deployments = Deployments(cluster)

        def show() -> None:
            if name is not None:
                deployments.get(name)
            views = [one for one in deployments.views() if name in (None, one.name)]
            if json:
                for view in views:
                    say_json(_document(view))
                return
            for view in views:
                _say_view(view)
            if name is None:
                _say_services(deployments)

        watching(show, watch, interval, json=json)


def logs(
    name: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="From when on: -10m, an ISO time, milliseconds since 1970.")
    ] = "-1h",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """What a deployed pipeline has printed, wherever it runs; the latest 64 MiB of all of them, for a week."""
    start = time_ms(since, "--since", int(time.time() * 1000))
    with opened_cluster(bootstrap, properties) as cluster:
        from headrace.spark.service.client import Deployments

        deployments = Deployments(cluster)
        shown = 0
        for line in deployments.logs(name, start, follow):
            shown += 1
            if json:
                say_json(asdict(line))
            else:
                say(f"{_moment(line.time_ms)} {_UNPRINTABLE.sub('?', line.text)}")
        if not shown:
            deployments.get(name)
            note(f"nothing was logged since {_moment(start)}; --since -7d looks further back")


def stop(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Stop a deployed pipeline when its current batches are done; `restart` starts it where it stopped."""
    _change(name, "stopped", bootstrap, properties, json)


def restart(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Start a deployed pipeline anew, from where it is; also one that was stopped, is done, or has failed."""
    _change(name, "running", bootstrap, properties, json)


def _change(name: str, wanted: str, bootstrap: str, properties: list[str] | None, json: bool) -> None:
    with opened_cluster(bootstrap, properties) as cluster:
        from headrace.spark.service.client import Deployments

        made = Deployments(cluster).want(name, wanted)
    if json:
        say_json({"pipeline": name, "wanted": wanted, "revision": made.revision})
    else:
        say(f"{name}: to be {wanted}; `headrace pipeline status {name}` tells when it is")


def delete(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Stop a deployed pipeline and forget it. Its checkpoint, its topics and its files stay.

    One that is deployed under the same name later goes on from the checkpoint, where a service still has it.
    """
    with opened_cluster(bootstrap, properties) as cluster:
        from headrace.spark.service.client import Deployments

        Deployments(cluster).delete(name)
    if json:
        say_json({"pipeline": name, "deleted": True})
    else:
        say(f"{name}: deleted")


def _document(view: "View") -> dict[str, Any]:
    deployment, status = view.deployment, view.status
    return {
        "pipeline": view.name,
        "state": view.told,
        "problem": view.problem,
        "wanted": None if deployment is None else deployment.wanted,
        "revision": None if deployment is None else deployment.revision,
        "deployed_by": None if deployment is None else deployment.by,
        "deployed_ms": None if deployment is None else deployment.time_ms,
        "settings": None if deployment is None else asdict(deployment.settings),
        "status": None if status is None else asdict(status),
    }


def _row(view: "View") -> tuple[object, ...]:
    status = view.status
    if status is None:
        return (view.name, _coloured(view.told), "-", "-", 0, "-", "-", "-", "-", _short(view.problem))
    return (
        view.name,
        _coloured(view.told),
        status.host,
        _moment(status.started_ms) if status.started_ms else "-",
        status.restarts,
        _sum(status.sinks, "rows_in"),
        _sum(status.sinks, "rows_out"),
        _sum(status.sinks, "bad_records"),
        _sum(status.sinks, "lag"),
        "" if view.told == "running" else _short(view.problem),
    )


def _coloured(state: str) -> str | Marked:
    return bad(state) if state in _BAD else doubtful(state) if state == "waiting" else state


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:97]}..."


def _sum(sinks: Any, field: str) -> str:
    known = [sink[field] for sink in sinks if isinstance(sink.get(field), (int, float))]
    return f"{sum(known):,}" if known else "-"


def _say_view(view: "View") -> None:
    status, deployment = view.status, view.deployment
    say(f"{view.name}: {view.told}")
    if deployment is not None:
        settings = deployment.settings
        say(f"  deployed   {_moment(deployment.time_ms)} by {deployment.by}, on {settings.remote or settings.master}")
    if status is not None and status.started_ms:
        say(f"  runner     on {status.host}, since {_moment(status.started_ms)}, started again {status.restarts} times")
        say(f"  checkpoint {status.home}")
    if status is not None and status.failures:
        again = f", next start {_moment(status.next_start_ms)}" if status.next_start_ms else ""
        say(f"  failures   {status.failures} in a row{again}")
    if view.problem:
        label = "last error" if view.told == "running" else "problem   "
        say(f"  {label} {_UNPRINTABLE.sub('?', ' '.join(view.problem.split()))}")
    for sink in status.sinks if status is not None else ():
        say(f"  {_sink_line(dict(sink))}")


def _sink_line(sink: dict[str, Any]) -> str:
    from headrace.spark.pipeline.progress import SinkProgress

    from .view import line

    known = SinkProgress.__dataclass_fields__
    try:
        progress = SinkProgress(**{name: value for name, value in sink.items() if name in known})
        return line(progress)
    except (TypeError, ValueError):
        return str(sink.get("sink"))


def _say_services(deployments: "Deployments") -> None:
    services = deployments.services()
    if not services:
        note("no service runs; start one with `headrace pipeline service`")
    for one in sorted(services, key=lambda service: service.since_ms):
        say(
            f"service on {one.host} (process {one.process}): {one.pipelines} pipelines, since {_moment(one.since_ms)}, "
            f"metrics at {one.metrics}"
        )


def _moment(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "-"


_EXAMPLES: Final[dict[Callable[..., None], tuple[str, ...]]] = {
    deploy: (
        "headrace pipeline deploy demo/pipeline.yaml",
        "headrace pipeline deploy demo --name words --master spark://host:7077 --conf spark.executor.memory=2g",
    ),
    list_: ("headrace pipeline list", "headrace pipeline list --watch"),
    status: ("headrace pipeline status words", "headrace pipeline status --json"),
    logs: ("headrace pipeline logs words --follow", "headrace pipeline logs words --since -1d"),
    stop: ("headrace pipeline stop words",),
    restart: ("headrace pipeline restart words",),
    delete: ("headrace pipeline delete words",),
}
