"""Tasks of the documents: what a newcomer copies and pastes, marked by `<!-- task: NAME -->`.

A task is the code blocks from its mark to the next mark or heading. A block of Python with `file=NAME` is a file. Each
line of a console block that begins with "$ " is a command, and lines after it are what it prints: … stands for
anything, and where there are none, anything may come. Commands of a block of `console background` go on in another
terminal until the task is over.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = ("docs/quickstart.md", "docs/python-clients.md", "docs/recipes.md", "docs/testing.md")
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


def read_tasks() -> list[Task]:
    """All tasks, in their order."""
    return [task for page in PAGES for task in _tasks(page, (ROOT / page).read_text())]


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
