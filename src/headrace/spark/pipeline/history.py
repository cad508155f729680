"""Which queries a checkpoint was made by. A query keeps its position and its state under its own name, so when sinks
are joined to other queries than before, theirs can be taken over by none of them.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from .failures import PipelineFailed
from .paths import PipelinePaths
from .queries import SinkGraph

_FILE: Final = "queries.json"
Queries = dict[str, list[str]]
"""The sinks of each query."""


def require_same_queries(
    paths: PipelinePaths, graphs: Sequence[SinkGraph], directories: Collection[str] | None
) -> None:
    """Return if each query goes on from its own checkpoint or starts from none.

    PipelineFailed if a sink was part of another query before. `directories` are the names of the queries that have
    one; None where that cannot be seen from here, and what was noted counts.
    """
    noted = _noted(paths).get(paths.checkpoints, {})
    before = noted if directories is None else {name: noted.get(name, name.split("+")) for name in directories}
    for graph in graphs:
        stale = stale_queries(graph, before)
        if stale:
            raise PipelineFailed(_changed(graph, stale, paths))


def note_queries(paths: PipelinePaths, graphs: Sequence[SinkGraph]) -> None:
    """Remember which queries there are now, when they have started."""
    noted = _noted(paths)
    now = {graph.name: [sink.name for sink in graph.sinks] for graph in graphs}
    noted[paths.checkpoints] = {**noted.get(paths.checkpoints, {}), **now}
    paths.local.mkdir(parents=True, exist_ok=True)
    (paths.local / _FILE).write_text(json.dumps(noted, indent=1))


def stale_queries(graph: SinkGraph, before: Mapping[str, Sequence[str]]) -> list[str]:
    """The names of earlier queries that wrote sinks of this one, which has no position of its own yet."""
    if graph.name in before:
        return []
    names = {sink.name for sink in graph.sinks}
    return sorted(query for query, sinks in before.items() if not names.isdisjoint(sinks))


def _noted(paths: PipelinePaths) -> dict[str, Queries]:
    try:
        found: dict[str, Queries] = json.loads((paths.local / _FILE).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _changed(graph: SinkGraph, stale: Sequence[str], paths: PipelinePaths) -> str:
    directories = ", ".join(paths.checkpoint_of(name) for name in stale)
    others = "other queries" if len(stale) > 1 else "another query"
    return (
        f"{graph.position}: {graph.title}: the checkpoint is of {others} "
        f"({directories}). Sinks that share a table are one query, with one position and one state, which cannot be "
        "put together from others: start with another --checkpoint, or remove those directories; then the pipeline "
        "reads from startingOffsets and writes again what it has written. A sink that is to go on where it is stays "
        "in a pipeline of its own"
    )
