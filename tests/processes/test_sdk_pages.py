"""The SDK's pages: their programs are the examples, and do on a broker what the pages say. And workers as processes."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headrace.client import Consumer, Producer
from headrace.testing import Broker
from tests.support.process import ClusterProcesses, free_port, wait_for
from tests.support.tasks import ROOT, Task, Terminals, read_tasks

pytestmark = pytest.mark.slow

EXAMPLES = {
    "docs/handlers.md": ROOT / "examples" / "handlers",
    "docs/sdk.md": ROOT / "examples" / "queues",
    "docs/delays.md": ROOT / "examples" / "delays",
}
TASKS = read_tasks(*EXAMPLES)
PATTERNS = [task for task in TASKS if task.page != "docs/sdk.md" or task.name == "sdk-leases"]
SHORT_LOCKS = {"group.share.record.lock.duration.ms": 2000, "group.share.min.record.lock.duration.ms": 2000}
"""So that work of five seconds takes longer than a lock holds."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SHORT_LOCKS) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), 3) as running:
        yield running


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples are already: a task may need the file of one that another process of tests does."""
    together = tmp_path_factory.mktemp("pages") / "examples"
    for examples in EXAMPLES.values():
        shutil.copytree(examples, together, dirs_exist_ok=True)
    return together


def environment(bootstrap: str) -> dict[str, str]:
    commands = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": commands, "HEADRACE_BOOTSTRAP": bootstrap}


def here(text: str, port: int) -> str:
    """Another port, and nothing installed: it is all here."""
    return re.sub(r"\b8000\b", str(port), text.replace("pip install fastapi", "true"))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_of_the_page_is_done_as_it_stands(task: Task, broker: Broker, directory: Path) -> None:
    Terminals(directory, environment(broker.bootstrap), partial(here, port=free_port())).do(task)


@pytest.mark.long
@pytest.mark.parametrize("task", PATTERNS, ids=lambda task: task.name)
def test_each_pattern_works_on_a_cluster_of_three_and_a_lease_is_renewed_for_minutes(
    task: Task, cluster: ClusterProcesses, directory: Path
) -> None:
    port = free_port()
    Terminals(
        directory,
        environment(cluster.bootstrap),
        lambda text: here(text, port).replace('"seconds":5', '"seconds":150'),
    ).do(task)


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_examples_are_programs_of_their_page(page: str) -> None:
    shown = dict(re.findall(r"^```python file=(\S+)\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE))
    for path in EXAMPLES[page].glob("*.py"):
        assert shown[path.name] == path.read_text()
    if page == "docs/handlers.md":
        assert set(shown) == {path.name for path in EXAMPLES[page].glob("*.py")}


COUNTING = """
import os
from headrace.client.handlers import App

app = App(settings={"session.timeout.ms": 6000})


@app.subscribe("numbers", group="counting", publish="seen", concurrency=4)
async def count(number: int) -> dict[str, int]:
    return {"number": number, "pid": os.getpid()}
"""


def worker(broker: Broker, directory: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "headrace.cli", "worker", "run", "counting:app", *options]
    return subprocess.Popen(
        command, cwd=directory, env=environment(broker.bootstrap), stdout=subprocess.PIPE, text=True
    )


@pytest.mark.long
def test_workers_share_the_partitions_one_that_is_killed_is_started_again_and_no_message_is_missed(
    broker: Broker, tmp_path: Path
) -> None:
    broker.create_topic("numbers", partitions=4)
    broker.create_topic("seen")
    (tmp_path / "counting.py").write_text(COUNTING)
    seen: dict[int, set[int]] = {}
    victim = None
    process = worker(broker, tmp_path, "--processes", "2")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "headrace ready workers=2\n"
        with (
            Producer(broker.bootstrap) as producer,
            Consumer("seen", group=None, value=dict[str, int], bootstrap=broker.bootstrap) as consumer,
        ):
            for number in range(3000):
                producer.send("numbers", number, key=str(number % 50))
                if number % 3 == 0:
                    time.sleep(0.001)
                for message in consumer.receive_many(100, 0):
                    seen.setdefault(message.value["number"], set()).add(message.value["pid"])
                if number >= 1500 and seen and victim is None:
                    victim = next(iter(next(iter(seen.values()))))
                    os.kill(victim, signal.SIGKILL)
            deadline = time.monotonic() + 60
            while len(seen) < 3000 and time.monotonic() < deadline:
                for message in consumer.receive_many(100, 0.5):
                    seen.setdefault(message.value["number"], set()).add(message.value["pid"])
        assert victim is not None
        assert set(seen) == set(range(3000))
        assert len(set[int]().union(*seen.values())) >= 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_a_worker_in_development_starts_anew_when_its_code_changes(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("words")
    broker.create_topic("shouted")
    code = COUNTING.replace("numbers", "words").replace("seen", "shouted").replace("number: int", "number: str")
    file = tmp_path / "counting.py"
    file.write_text(code.replace('{"number": number, "pid": os.getpid()}', "{number: 1}"))
    process = worker(broker, tmp_path, "--reload")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "headrace ready workers=1\n"
        file.write_text(code.replace('{"number": number, "pid": os.getpid()}', "{number: 2}"))
        with (
            Producer(broker.bootstrap) as producer,
            Consumer("shouted", group=None, bootstrap=broker.bootstrap) as consumer,
        ):

            def is_new() -> bool:
                producer.send("words", "a")
                return any(message.data == b'{"a":2}' for message in consumer.receive_many(100, 0.2))

            wait_for("what the new code writes", is_new)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


HANGING = """
import time
from headrace.cli import worker
from headrace.cli.main import main
from headrace.client.handlers import App

app = App()


@app.subscribe("hanging", group="hanging")
async def hang(_: bytes) -> None:
    print("began", flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    worker._GRACE_SECONDS = worker._LOST_SECONDS = 0.3
    main()
"""


def test_a_handler_that_holds_the_event_loop_keeps_no_worker_from_ending(broker: Broker, tmp_path: Path) -> None:
    broker.create_topic("hanging")
    with Producer(broker.bootstrap) as producer:
        producer.send("hanging", b"")
    (tmp_path / "hanging.py").write_text(HANGING)
    command = [sys.executable, "hanging.py", "worker", "run", "hanging:app"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(broker.bootstrap), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline() not in ("began\n", ""):
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1


def test_what_cannot_be_run_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    command = [sys.executable, "-m", "headrace.cli", "worker", "run", "broken:app"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "headrace: broken cannot be loaded: ZeroDivisionError: division by zero\n"
