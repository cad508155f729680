"""Tasks of the documents: what a newcomer copies and pastes, marked by `<!-- task: NAME -->`.

A task is the code blocks from its mark to the next mark or heading. A block of Python with `file=NAME` is a file. Each
line of a console block that begins with "$ " is a command, and lines after it are what it prints: … stands for
anything, and where there are none, anything may come. Commands of a block of `console background` go on in another
terminal until the task is over.
"""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .gateways import matches
from .process import wait_for

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (
    "docs/quickstart.md",
    "docs/python-clients.md",
    "docs/sdk.md",
    "docs/handlers.md",
    "docs/recipes.md",
    "docs/testing.md",
)
"""In the order in which a newcomer reads them."""

_MARK: Final = re.compile(r"^<!-- task: (.+?) -->\n", re.MULTILINE)
_BLOCK: Final = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class File:
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    line: str
    expected: str
    in_background: bool


Step = File | Command


@dataclass(frozen=True, slots=True)
class Task:
    page: str
    name: str
    steps: tuple[Step, ...]


def read_tasks(*pages: str) -> list[Task]:
    """All tasks of these pages, or of all pages, in their order."""
    return [task for page in pages or PAGES for task in _tasks(page, (ROOT / page).read_text())]


def _tasks(page: str, text: str) -> Iterator[Task]:
    marks = list(_MARK.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    for mark, end in zip(marks, ends, strict=True):
        section = re.split(r"^## ", text[mark.end() : end], maxsplit=1, flags=re.MULTILINE)[0]
        yield Task(page, mark[1], tuple(step for block in _BLOCK.findall(section) for step in _steps(*block)))


def _steps(language: str, info: str, text: str) -> Iterator[Step]:
    if language == "console":
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, expected = re.sub(r"\\\n\s*", "", part).partition("\n")
            yield Command(line, expected.strip("\n"), "background" in info)
    elif name := re.search(r"file=(\S+)", info):
        yield File(name[1], text)


COMMAND_SECONDS: Final = 600.0


class Terminals:
    """A directory with an environment, in which tasks are done as they stand; `here` puts in what differs here."""

    def __init__(self, directory: Path, environment: Mapping[str, str], here: Callable[[str], str] = str) -> None:
        self._directory = directory
        self._environment = environment
        self._here = here

    def do(self, task: Task, lasting: ExitStack | None = None) -> None:
        """Take the steps of a task; what it leaves in the background ends with it, or with `lasting`."""
        with ExitStack() as own:
            for step in task.steps:
                if isinstance(step, File):
                    (self._directory / step.name).write_text(self._here(step.text))
                elif step.in_background:
                    (lasting or own).enter_context(self._background(step))
                else:
                    self._run(step)

    def _run(self, command: Command) -> None:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", self._here(command.line)],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS,
        )
        told = f"{command.line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        assert done.returncode == 0, told
        assert not command.expected or matches(self._here(command.expected), done.stdout), told

    @contextmanager
    def _background(self, command: Command) -> Iterator[None]:
        log = self._directory / f"background-{len(list(self._directory.glob('background-*')))}"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {self._here(command.line)}"],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            wanted = self._here(command.expected)
            wait_for(f"{command.line}: {wanted}", lambda: process.poll() is not None or wanted in log.read_text())
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
