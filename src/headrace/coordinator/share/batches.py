"""Runs of offsets that share their delivery state and count: how one set of them is laid over another.

Runs are in the order of their offsets, none over another, and no two next to each other are alike. Where two are about
the same offset the higher delivery count counts, and of equal counts the higher state: whichever comes first, what is
kept in the end is the same, and no offset goes back.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter

from headrace.replication.share_state import StateBatch

Batches = tuple[StateBatch, ...]
_LAST = attrgetter("last_offset")


def combined(kept: Sequence[StateBatch], changes: Iterable[StateBatch], start_offset: int) -> Batches:
    """The runs that are kept, with the changes laid over them and without what is before the start offset."""
    runs = list(kept)
    for change in changes:
        _lay_over(runs, change)
    return tuple(_from(runs, start_offset))


def _lay_over(runs: list[StateBatch], change: StateBatch) -> None:
    """Only the runs that the change touches, or lies next to, are made anew."""
    first, last = change.first_offset, change.last_offset
    begin = end = bisect_left(runs, first - 1, key=_LAST)
    made: list[StateBatch] = []
    reached = first
    while end < len(runs) and runs[end].first_offset <= last + 1:
        run = runs[end]
        end += 1
        if run.first_offset > reached:
            _add(made, change._replace(first_offset=reached, last_offset=min(run.first_offset - 1, last)))
        for piece in _pieces(run, change):
            _add(made, piece)
        reached = max(reached, run.last_offset + 1)
    if reached <= last:
        _add(made, change._replace(first_offset=reached))
    runs[begin:end] = made


def _pieces(run: StateBatch, change: StateBatch) -> Iterable[StateBatch]:
    """A run with a change laid over it, in up to three pieces."""
    first, last = max(run.first_offset, change.first_offset), min(run.last_offset, change.last_offset)
    if first > last:
        yield run
        return
    if run.first_offset < first:
        yield run._replace(last_offset=first - 1)
    counts = max(run, change, key=lambda each: (each.delivery_count, each.delivery_state))
    yield counts._replace(first_offset=first, last_offset=last)
    if run.last_offset > last:
        yield run._replace(first_offset=last + 1)


def _add(runs: list[StateBatch], run: StateBatch) -> None:
    """Append a run; one that goes on like the last makes that one longer."""
    if runs and runs[-1].last_offset + 1 == run.first_offset and runs[-1][2:] == run[2:]:
        runs[-1] = runs[-1]._replace(last_offset=run.last_offset)
    else:
        runs.append(run)


def _from(runs: Sequence[StateBatch], start_offset: int) -> Iterable[StateBatch]:
    begin = bisect_left(runs, start_offset, key=_LAST)
    for run in runs[begin:]:
        yield run if run.first_offset >= start_offset else run._replace(first_offset=start_offset)
