"""`headrace pipeline service`: runs the pipelines that are deployed."""

import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headrace.net.address import Address, is_loopback

from ..console import bad_input, examples, note, say, say_json
from ..listening import friendly_bind, stop_with_stdin, survive_hangup
from ..options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, address
from .target import client_settings

DEFAULT_METRICS = "127.0.0.1:0"


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace pipeline service --data /var/lib/headrace-pipelines",
            "headrace pipeline service --checkpoints s3a://bucket/checkpoints --metrics 127.0.0.1:9408",
        )
    )(service)
    app.command("run-deployed", hidden=True)(run_deployed)


def service(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="For code, checkpoints and Spark's logs of pipelines.")
    ] = Path("pipelines"),
    checkpoints: Annotated[
        str | None,
        typer.Option(
            "--checkpoints",
            metavar="URL",
            help="Where all services reach checkpoints, such as s3a://bucket/dir; so any of them can take over.",
            show_default="in --data",
        ),
    ] = None,
    most: Annotated[int, typer.Option("--max-pipelines", min=0, help="How many to run at a time; 0: all.")] = 0,
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="HOST:PORT", help="Where to serve /metrics; port 0 takes a free one.")
    ] = DEFAULT_METRICS,
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Serve /metrics beyond this machine; it asks nobody who they are.")
    ] = False,
    properties: ClientProperties = None,
    json: Json = False,
    with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Run the pipelines that are deployed, in the foreground, and start again those that fail.

    Several services share the work: each pipeline has one runner, and when a service or its machine dies another one
    takes over, provided that it reaches the checkpoint (--data or --checkpoints that all of them share).

    A pipeline is a program: whoever may deploy has this command run code as its own user, with its environment.
    """
    survive_hangup()
    listen = address(metrics, "--metrics")
    if not is_loopback(listen.host) and not allow_anonymous:
        raise bad_input(
            f"--metrics {metrics}: anybody who reaches this machine could read the names and rates of pipelines. "
            "Listen on 127.0.0.1, or say --allow-anonymous"
        )
    if with_stdin:
        stop_with_stdin()
    from headrace.client.probe import require_listener
    from headrace.spark.service.metrics import served
    from headrace.spark.service.service import PipelineService, ServiceOptions

    client = client_settings(bootstrap, properties)
    require_listener(client["bootstrap.servers"])
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    running = PipelineService(
        ServiceOptions(client=client, data=data.resolve(), checkpoints=checkpoints, most=most),
        lambda words: note(f"headrace: {words}"),
    )
    running.prepare()
    with (
        friendly_bind(Address(listen.host, listen.port), "--metrics"),
        served(listen.host, listen.port, running.page) as bound,
    ):
        running.metrics_address = f"http://{bound}/metrics"
        told = {"pipelines": running.id[:8], "metrics": running.metrics_address}
        if json:
            say_json({"ready": True, **told})
        else:
            say(f"headrace ready {' '.join(f'{name}={value}' for name, value in told.items())}")
        running.run(stop)


def run_deployed() -> None:
    """Run the pipeline that standard input names; what `headrace pipeline service` starts."""
    line = sys.stdin.buffer.readline()
    if not line.strip():
        raise bad_input("this is what `headrace pipeline service` starts; to run a pipeline: `headrace pipeline run`")
    stop_with_stdin()
    from headrace.client.errors import ClientError
    from headrace.spark.pipeline.document import InvalidPipeline
    from headrace.spark.pipeline.failures import PipelineFailed, RunsElsewhere
    from headrace.spark.pipeline.loading import load
    from headrace.spark.pipeline.run import NamedLease, RunOptions, run
    from headrace.spark.pipeline.session import SparkTarget
    from headrace.spark.service.runner import decode_request
    from headrace.spark.service.supervision import ExitCode

    from .commands import Signals
    from .view import JsonView

    asked, view, stop = decode_request(line), JsonView(), threading.Event()
    try:
        declaration = load(Path(asked.file))
        declaration = replace(declaration, name=asked.name, spark={**declaration.spark, **asked.conf})
        options = RunOptions(
            bootstrap=asked.bootstrap or declaration.bootstrap or asked.client["bootstrap.servers"],
            spark=SparkTarget(master=asked.master, remote=asked.remote),
            checkpoint=asked.checkpoint,
            lease=NamedLease(name=asked.lease, runner_id=asked.runner_id, client=asked.client, dead=tuple(asked.dead)),
            stop=stop,
            take_signals=Signals(stop).take,
        )
        view.ended(run(declaration, options, view))
    except RunsElsewhere as error:
        view.phase(str(error))
        _leave(ExitCode.ELSEWHERE)
    except (InvalidPipeline, FileNotFoundError) as error:
        view.failed(str(error))
        _leave(ExitCode.MISTAKE)
    except (PipelineFailed, ClientError) as error:
        view.failed(str(error))
        _leave(ExitCode.FAILED)
    except Exception as error:
        view.failed(f"unexpected {type(error).__name__}: {error}")
        _leave(ExitCode.FAILED)


def _leave(code: int) -> None:
    """End at once: threads of a library, or of the pipeline's own code, may not hold up what comes next."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
