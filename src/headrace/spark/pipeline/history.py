"""Which queries a checkpoint was made by. A query keeps its position and its state under its own name, so when sinks
are joined to other queries than before, theirs can be taken over by none of them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .failures import PipelineFailed
from .places import Places, is_remote
from .queries import SinkGraph

_FILE: Final = "queries.json"
Queries = dict[str, list[str]]
"""The sinks of each query."""


def require_same_queries(places: Places, graphs: Sequence[SinkGraph], *, is_ours: bool) -> None:
    """Return if each query goes on from its own checkpoint or starts from none, and note the queries there are now.

    PipelineFailed if a sink was part of another query before. `is_ours` tells that directories of this machine are
    those that Spark uses.
    """
    noted = _noted(places)
    before = noted.get(places.checkpoints, {})
    if is_ours and not is_remote(places.checkpoints):
        before = _in_directory(Path(places.checkpoints), before)
    for graph in graphs:
        stale = stale_queries(graph, before)
        if stale:
            raise PipelineFailed(_changed(graph, stale, places))
    now = {graph.name: [sink.name for sink in graph.sinks] for graph in graphs}
    noted[places.checkpoints] = {**before, **now}
    places.local.mkdir(parents=True, exist_ok=True)
    (places.local / _FILE).write_text(json.dumps(noted, indent=1))


def stale_queries(graph: SinkGraph, before: Mapping[str, Sequence[str]]) -> list[str]:
    """The names of earlier queries that wrote sinks of this one, which has no position of its own yet."""
    if graph.name in before:
        return []
    names = {sink.name for sink in graph.sinks}
    return sorted(query for query, sinks in before.items() if not names.isdisjoint(sinks))


def _noted(places: Places) -> dict[str, Queries]:
    try:
        found: dict[str, Queries] = json.loads((places.local / _FILE).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def _in_directory(checkpoints: Path, noted: Queries) -> Queries:
    """The queries that have a checkpoint: where sinks are not noted, they are those in its name."""
    found = sorted(path.parent.name for path in checkpoints.glob("*/metadata"))
    return {name: noted.get(name, name.split("+")) for name in found}


def _changed(graph: SinkGraph, stale: Sequence[str], places: Places) -> str:
    directories = ", ".join(places.checkpoint_of(name) for name in stale)
    return (
        f"{graph.place}: {graph.title}: the checkpoint is of {'other queries' if len(stale) > 1 else 'another query'} "
        f"({directories}). Sinks that share a table are one query, with one position and one state, which cannot be "
        "put together from others: start with another --checkpoint, or remove those directories; then the pipeline "
        "reads from startingOffsets and writes again what it has written. A sink that is to go on where it is stays "
        "in a pipeline of its own"
    )
