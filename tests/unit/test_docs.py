"""The documents: pages that are generated are as the code is now, links lead somewhere, commands exist."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from headrace.cli.main import app
from headrace.cli.reference import render_reference
from headrace.config import render_docs
from headrace.coordinator.__main__ import render as render_states
from headrace.metrics.docs import render_docs as render_metrics
from tests.support.tasks import Command, File, read_tasks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize(
    ("page", "render"),
    [
        ("docs/configuration.md", render_docs),
        ("docs/metrics.md", render_metrics),
        ("docs/states.md", render_states),
        ("docs/cli.md", render_reference),
    ],
)
def test_a_generated_page_is_what_the_code_says(page: str, render: Callable[[], str]) -> None:
    assert (ROOT / page).read_text() == render(), f"{page} is out of date: run `make docs`"


def test_every_link_between_documents_leads_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text())]
    lost = [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()]
    assert not lost


class Shown(NamedTuple):
    """A command of ours in a document."""

    page: str
    line: str


def _shown() -> Iterator[Shown]:
    for page in PAGES:
        for block in re.findall(r"^```console[^\n]*\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"\s(?:\||&&)\s", line.removeprefix("$ ")) if line.startswith("$ ") else ():
                    if part.strip().startswith("headrace "):
                        yield Shown(page.name, part.partition(" # ")[0].strip())
        for cell in re.findall(r"\| `(headrace [^`]+)` \|", page.read_text()):
            yield Shown(page.name, cell.replace("\\|", "|"))


def _unknown(line: str, command: Any) -> str:
    """What of a command line there is not: a command, or an option; empty where all is there."""
    words = shlex.split(line, comments=True)[1:]
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            break
        name = words.pop(0)
        if name not in command.commands and name.isupper():
            return ""  # COMMAND stands for any
        if name not in command.commands:
            return name
        command = command.commands[name]
    options = {"-h", "--help"}.union(*({*param.opts, *param.secondary_opts} for param in command.params))
    used = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    return next((option for option in used if option not in options), "")


def test_every_command_that_is_shown_exists() -> None:
    shown = list(_shown())
    assert len(shown) > 50
    command = typer.main.get_command(app)  # once: it takes a tenth of a second
    assert [f"{one.page}: {unknown} in `{one.line}`" for one in shown if (unknown := _unknown(one.line, command))] == []


def test_a_newcomer_finds_fifteen_tasks_each_with_a_command_and_programs_that_compile() -> None:
    """`tests/processes/test_newcomer.py` does them all."""
    tasks = read_tasks()
    assert len(tasks) >= 15
    assert len({task.name for task in tasks}) == len(tasks)
    for task in tasks:
        assert any(isinstance(step, Command) for step in task.steps), task.name
        for step in task.steps:
            if isinstance(step, File):
                compile(step.text, step.name, "exec")
