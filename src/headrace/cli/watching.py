"""`--watch`: the answer of a command again and again, in place on a terminal."""

import contextlib
import io
import shutil
import sys
import time
from collections.abc import Callable
from typing import Annotated, Final

import typer

from headrace.client.errors import ClientError

from .console import note

Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")]
Interval = Annotated[float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="How often, with --watch.")]
DEFAULT_INTERVAL: Final = 2.0
_HOME: Final = "\x1b[H"
_CLEAR_LINE: Final = "\x1b[K"
_CLEAR_BELOW: Final = "\x1b[J"
_CLEAR: Final = "\x1b[2J"


class _Screen(io.StringIO):
    """What is printed, for a terminal, before it is shown."""

    def isatty(self) -> bool:
        return True


def watching(show: Callable[[], None], watch: bool, interval: float, *, json: bool = False) -> None:
    """Call `show` once, or until Ctrl-C; errors end it only at first, later they may pass."""
    if not watch:
        show()
        return
    is_terminal = sys.stdout.isatty() and not json
    show_once = _redraw if is_terminal else _append
    if is_terminal:
        sys.stdout.write(_CLEAR)
    is_first = True
    while True:
        try:
            show_once(show)
        except ClientError as error:
            if is_first:
                raise
            note(f"headrace: {error.message}")
        is_first = False
        time.sleep(interval)


def _append(show: Callable[[], None]) -> None:
    show()
    sys.stdout.flush()


def _redraw(show: Callable[[], None]) -> None:
    """All of it from the top, as much as there is room for: so nothing flickers, and nothing scrolls away."""
    screen = _Screen()
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
        show()
    lines = [time.strftime("%H:%M:%S"), *screen.getvalue().splitlines()]
    room = shutil.get_terminal_size().lines - 1
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… {len(lines) - room + 1} more lines"]
    shown = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
    sys.stdout.write(f"{_HOME}{shown}{_CLEAR_BELOW}")
    sys.stdout.flush()
