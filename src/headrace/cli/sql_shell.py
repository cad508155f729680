"""The prompt of `headrace sql`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .console import note, report, say, say_table

if TYPE_CHECKING:
    from headrace.sql.engine import Engine

_PROMPT: Final = "headrace> "
_MORE: Final = "      ... "
_HELP: Final = r"""End a query with a semicolon.
\d          topics
\d TOPIC    its columns, and where they are from
\q          leave"""
_MOST_REMEMBERED: Final = 1000


class Shell:
    """Asks for queries until there are no more."""

    def __init__(self, engine: "Engine", answer: Callable[[str], None]) -> None:
        self._engine = engine
        self._answer = answer

    def run(self) -> None:
        """Read lines from the terminal until it ends."""
        history = _History()
        note(r"\? for help, \q to leave")
        lines: list[str] = []
        while True:
            try:
                line = input(_MORE if lines else _PROMPT)
            except EOFError:
                break
            except KeyboardInterrupt:
                note("")
                lines = []
                continue
            if not lines and line.strip() in (r"\q", "exit", "quit"):
                break
            lines = self.take([*lines, line])
        history.save()

    def take(self, lines: list[str]) -> list[str]:
        """Do what the lines ask for, once they are complete; the lines that go on."""
        text = "\n".join(lines).strip()
        if text.startswith("\\"):
            self._guarded(lambda: self._command(text))
            return []
        if text and not text.endswith(";"):
            return lines
        if text.strip("; \n"):
            self._guarded(lambda: self._answer(text))
        return []

    def _guarded(self, act: Callable[[], None]) -> None:
        """Errors and Ctrl-C end what is done, not the prompt."""
        try:
            act()
        except KeyboardInterrupt:
            note("interrupted")
        except Exception as error:
            report(error)

    def _command(self, text: str) -> None:
        name, _, topic = text.partition(" ")
        if name == r"\d" and topic.strip():
            self._describe(topic.strip().rstrip(";"))
        elif name == r"\d":
            for one in self._engine.cluster.topics():
                say(one)
        else:
            say(_HELP)

    def _describe(self, topic: str) -> None:
        table = self._engine.topic_table(topic)
        say_table(("column", "type"), [(one.name, one.type.simple_string()) for one in table.decoder.columns])
        note(f"{topic}: {self._engine.definition(topic).origin}")


class _History:
    """What was typed before, in a file."""

    def __init__(self) -> None:
        base = os.environ.get("XDG_STATE_HOME")
        self._path = (Path(base) if base else Path.home() / ".local" / "state") / "headrace" / "sql_history"
        try:
            import readline
        except ImportError:
            self._readline = None
            return
        self._readline = readline
        try:
            readline.read_history_file(self._path)
        except OSError:
            pass

    def save(self) -> None:
        """Keep it for the next time."""
        if self._readline is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._readline.set_history_length(_MOST_REMEMBERED)
            self._path.touch(mode=0o600)
            self._readline.write_history_file(self._path)
        except OSError:
            pass
