"""How every command speaks: results to stdout, a friendly line per error to stderr, exit codes with a meaning."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final

import typer
from typer.core import TyperGroup

from headrace.client.errors import AUTHENTICATION_FAILED, REGISTRY_UNREACHABLE, ClientError, ClusterUnreachable

_START: Final = "Start one with `headrace up`, or name its address with --bootstrap or HEADRACE_BOOTSTRAP."
_CREDENTIALS: Final = "Check sasl.username and sasl.password, in the client file or profile, or given with -X."


class ExitCode(IntEnum):
    """What a script can tell from the code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class Failure(Exception):
    """Ends a command: one line that tells what happened, which value did it, and what to do."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


def bad_input(message: str) -> Failure:
    """A failure of what the user typed."""
    return Failure(message, ExitCode.USAGE)


class FriendlyGroup(TyperGroup):
    """The root of all commands: the one place where errors become a line and a code."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _friendly():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _friendly():
            return super().invoke(ctx)


@contextmanager
def _friendly() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        _forget_stdout()
        raise typer.Exit(ExitCode.OK) from None
    except Exception as error:
        if _is_typers_own(error) and not _is_usage(error):
            raise
        raise typer.Exit(report(error)) from None


def report(error: Exception) -> ExitCode:
    """Say what went wrong in one line; the exit code for it."""
    if os.environ.get("HEADRACE_DEBUG"):
        import traceback

        typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    message, code = explain(error)
    typer.echo(f"headrace: {' '.join(message.split())}", err=True)
    return code


def explain(error: Exception) -> tuple[str, ExitCode]:
    """An error in words, and the exit code for it."""
    if isinstance(error, Failure):
        return error.message, error.code
    if _is_usage(error):
        return _usage(error), ExitCode.USAGE
    if isinstance(error, ClusterUnreachable):
        advice = f" {_START}" if error.message.startswith("no broker answers") else ""
        return f"{error.message}.{advice}", ExitCode.UNREACHABLE
    if isinstance(error, ClientError) and error.code == AUTHENTICATION_FAILED:
        return f"{error.message}. {_CREDENTIALS}", ExitCode.FAILED
    if isinstance(error, ClientError) and error.code == "UNKNOWN_TOPIC_OR_PART" and "?" not in error.message:
        return f"{error.message}; `headrace topic list` shows those that do", ExitCode.FAILED
    if isinstance(error, ClientError):
        return error.message, ExitCode.UNREACHABLE if error.code == REGISTRY_UNREACHABLE else ExitCode.FAILED
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", ExitCode.FAILED
    return (
        f"unexpected {type(error).__name__}: {error}. This is a bug; HEADRACE_DEBUG=1 shows where it happened.",
        ExitCode.FAILED,
    )


def _is_typers_own(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("typer", "click")


def _is_usage(error: Exception) -> bool:
    """Whether the command line itself was wrong; asking for help by giving no arguments is not."""
    return (
        _is_typers_own(error)
        and getattr(error, "exit_code", None) == ExitCode.USAGE
        and hasattr(error, "format_message")
        and type(error).__name__ != "NoArgsIsHelpError"
    )


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "headrace")
    message = error.format_message().rstrip(".")
    return f"{message}{'' if message.endswith('?') else '.'} See `{command} --help`."


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush finds no closed pipe."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the process


def say(message: str) -> None:
    """A line of result."""
    typer.echo(message)


def note(message: str) -> None:
    """A line beside the result, to stderr."""
    typer.echo(message, err=True)


def say_json(value: Any) -> None:
    """One JSON document on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))


class Marked(str):
    """Text of a table that stands out on a terminal."""

    __slots__ = ("style",)
    style: str


def bad(value: object) -> Marked:
    """What is wrong, in red."""
    return _marked(value, "bold red")


def doubtful(value: object) -> Marked:
    """What deserves a look, in yellow."""
    return _marked(value, "yellow")


def _marked(value: object, style: str) -> Marked:
    found = Marked(value)
    found.style = style
    return found


def coloured(text: Marked) -> str:
    """The same for a line; colours are left out where nobody sees them."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return str(text)
    return typer.style(str(text), fg="red" if "red" in text.style else "yellow", bold="bold" in text.style)


def say_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table that fits a terminal, and plain aligned columns where there is none."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=not sys.stdout.isatty())
    for row in rows:
        table.add_row(*(Text(str(cell), style=getattr(cell, "style", "")) for cell in row))
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)


def is_terminal() -> bool:
    """Whether somebody looks at the results themselves."""
    return sys.stdout.isatty()


def stderr_is_terminal() -> bool:
    return sys.stderr.isatty()


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(["Examples:", *(line.replace("[", "\\[") for line in lines)])
