from collections.abc import Callable

import pytest
from typer.testing import CliRunner, Result

from headrace.cli.main import app

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, called in this process."""
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)
    runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"})

    def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return runner.invoke(app, list(arguments), input=stdin, prog_name="headrace")

    return invoke
