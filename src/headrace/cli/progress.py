"""A progress bar on stderr for bulk work, and nothing at all where stderr is not a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .console import stderr_is_terminal

Advance = Callable[[int], None]


def _nothing(_amount: int) -> None:
    return None


@contextmanager
def progress(what: str, total: int | None, *, of_bytes: bool = False, shown: bool = True) -> Iterator[Advance]:
    """A bar up to `total` (one that only counts if None); the caller advances it."""
    if not shown or not stderr_is_terminal():
        yield _nothing
        return
    with _bar(of_bytes) as bar:
        task = bar.add_task(what, total=total)
        yield lambda amount: bar.advance(task, amount)


def _bar(of_bytes: bool) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amount = (DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *amount,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=5,
    )
