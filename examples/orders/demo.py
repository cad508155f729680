"""The whole example in one go: a broker, the generator and the pipeline, watched live, then checked and cleaned up.

`make demo` runs it; `make demo ARGS="--seconds 30 --rate 20"` for a shorter one.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any, Final

from examples.orders.generator import Shop, until
from examples.orders.results import checks, results, show
from headrace.cli.pipeline.view import PipelineView, view_for
from headrace.client.errors import ClientError
from headrace.spark.pipeline.progress import SinkProgress

HERE: Final = Path(__file__).parent
REVENUE: Final = "revenue=minute TIMESTAMP, country STRING, orders BIGINT, cents BIGINT"
"""The fields of a topic that may have no record yet, of which they could be told."""
TOPICS: Final = ("orders", "payments", "revenue", "frauds")
SILENT_SECONDS: Final = 600.0
"""How long the pipeline may read nothing before the demo gives it up: on a busy machine a batch takes minutes."""
AWAY_SECONDS: Final = 120.0
"""For how long the pipeline may say that it cannot go on, such as without a broker."""
Process = subprocess.Popen[str]


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the orders example for a while and checks what came out.")
    parser.add_argument("--seconds", type=float, default=40.0, help="how long orders come in (default 40)")
    parser.add_argument("--rate", type=float, default=40.0, help="orders in a second (default 40)")
    parser.add_argument("--speed", type=float, default=10.0, help="how fast the shop's clock runs (default 10)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    opened = time.time() // 60 * 60
    shop = Shop(seed=given.seed, rate=given.rate / given.speed, opened=opened)
    messages = list(until(shop.messages(), given.seconds * given.speed))
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-demo-")))
        bootstrap = stack.enter_context(broker(directory / "data"))
        say(f"broker at {bootstrap}; {len(messages):,} messages will come in within {given.seconds:g} s")
        command("topic", "create", *TOPICS, "--partitions", "2", "--bootstrap", bootstrap)
        options = [f"--{name}={getattr(given, name)}" for name in ("seconds", "rate", "speed", "seed")]
        pipeline = stack.enter_context(pipeline_process(bootstrap, directory))
        watermark = run(pipeline, [*options, f"--opened={opened}", f"--bootstrap={bootstrap}"], len(messages))
        try:
            found = results(bootstrap, directory / "archive")
        except ClientError as error:
            raise SystemExit(f"demo: the results cannot be read: {error.message}") from error
        outcome = checks(found, messages, watermark)
        show(found, outcome)
        say("\nThe topics:")
        ask("topic", "list", "--bootstrap", bootstrap)
        for title, query in questions(directory / "archive").items():
            say(f"\n{title}\n{textwrap.indent(query, '    ')}")
            ask("sql", query, "--bootstrap", bootstrap, "--files", str(directory / "archive"), "--schema", REVENUE)
        return 0 if all(good for good, _ in outcome) else 1


def questions(archive: Path) -> dict[str, str]:
    """What to ask in SQL when all is done: a topic, and a topic together with the table that the pipeline made."""
    return {
        "SQL over the topic `revenue`:": (
            "SELECT country, sum(orders) AS orders, sum(cents) / 100 AS revenue\n"
            "FROM revenue GROUP BY country ORDER BY revenue DESC"
        ),
        "SQL over the topic `orders` and the table `archive` together, what was sent and what was paid:": (
            "SELECT sent.country, count(DISTINCT sent.order_id) AS sent, count(DISTINCT paid.order_id) AS paid\n"
            f"FROM orders AS sent LEFT JOIN read_parquet('{archive}/*/*.parquet') AS paid USING (order_id)\n"
            "GROUP BY sent.country ORDER BY sent DESC"
        ),
    }


def ask(*arguments: str) -> None:
    """A command whose answer is shown; what fails here has been told, and takes nothing from the demo."""
    subprocess.run([sys.executable, "-m", "headrace.cli", *arguments], check=False)


def say(words: str) -> None:
    print(words, flush=True)


def command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "headrace.cli", *arguments], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def process(*arguments: str, **more: Any) -> Iterator[Process]:
    """A Python process that is gone when the block ends."""
    started = subprocess.Popen([sys.executable, *arguments], text=True, start_new_session=True, **more)
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@contextmanager
def broker(data: Path) -> Iterator[str]:
    """A broker on a free port; its address."""
    options = ("--listen", "127.0.0.1:0", "--data", str(data), "--log-level", "warning")
    with process("-m", "headrace.cli", "broker", *options, stdout=subprocess.PIPE) as started:
        ready = output_of(started).readline()
        if not ready.startswith("headrace ready kafka="):
            raise SystemExit(f"demo: the broker did not start: {ready}")
        yield ready.strip().removeprefix("headrace ready kafka=")


@contextmanager
def pipeline_process(bootstrap: str, directory: Path) -> Iterator[Process]:
    arguments = ["-m", "headrace.cli", "pipeline", "run", str(HERE / "pipeline.yaml"), "--json"]
    arguments += ["--bootstrap", bootstrap, "--checkpoint", str(directory / "checkpoint")]
    environment = {**os.environ, "ARCHIVE": str(directory / "archive")}
    with process(*arguments, stdout=subprocess.PIPE, env=environment) as started:
        yield started


def output_of(started: Process) -> IO[str]:
    assert started.stdout is not None
    return started.stdout


def run(pipeline: Process, generator_options: list[str], messages: int) -> str | None:
    """Show the pipeline's progress while the generator sends, and until the pipeline has read everything.

    The watermark of the sums, as far as it came.
    """
    sinks: dict[str, SinkProgress] = {}
    arrivals = Arrivals(messages)
    with ExitStack() as stack:
        view = stack.enter_context(view_for(json=False))
        sender: Process | None = None
        for event in events(pipeline):
            _show(event, sinks, view)
            if event.get("event") == "started":
                sender = stack.enter_context(process(str(HERE / "generator.py"), *generator_options))
            if sender is not None and sender.poll() is not None and arrivals.are_over(sinks.values(), time.monotonic()):
                pipeline.send_signal(signal.SIGINT)
    if pipeline.wait() != 0:
        raise SystemExit(f"demo: the pipeline ended with code {pipeline.returncode}")
    return sinks["revenue"].watermark if "revenue" in sinks else None


class Arrivals:
    """Whether the pipeline has read all messages, or reads no more of them."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self._read = -1
        self._moved = 0.0
        self._well = 0.0
        self._told = False

    def are_over(self, sinks: Collection[SinkProgress], now: float) -> bool:
        """True once, when it is time to stop the pipeline."""
        read = min((sink.rows_in for sink in sinks), default=0)
        if read > self._read:
            self._read, self._moved = read, now
        if all(sink.problem is None for sink in sinks):
            self._well = now
        is_given_up = now - self._moved > SILENT_SECONDS or now - max(self._moved, self._well) > AWAY_SECONDS
        is_over = read >= self._messages or is_given_up
        if not is_over or self._told:
            return False
        self._told = True
        return True


def events(pipeline: Process) -> Iterator[dict[str, Any]]:
    """What the pipeline says, and once a second an event without a name, until it ends."""
    lines: Queue[str] = Queue()

    def read() -> None:
        for line in output_of(pipeline):
            lines.put(line)
        lines.put("")

    Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=1)
        except Empty:
            yield {}
            continue
        if not line:
            return
        yield json.loads(line)


def _show(event: dict[str, Any], sinks: dict[str, SinkProgress], view: PipelineView) -> None:
    """Show what an event tells; where the sinks stand when there is a pause, so that all are as of one moment."""
    if not event and sinks:
        view.progress(list(sinks.values()))
    match event:
        case {"event": "phase", "phase": words}:
            view.phase(words)
        case {"event": "progress", "time": _, **sink}:
            sinks[sink["sink"]] = SinkProgress(**sink)
        case {"event": "ended", "sinks": ended}:
            sinks |= {sink["sink"]: SinkProgress(**sink) for sink in ended}
            view.ended(list(sinks.values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
