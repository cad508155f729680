"""A pipeline over a span of its sources, beside the running one: the same queries with an end, and progress of their
own.

A backfill is known by what was asked for. Its offsets are looked up once and written down, so that one which was
stopped goes on with the same ones, however far topics have come since, and one that is done is done.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from headrace.client.columnar.api import Bound, resolved
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import EARLIEST, LATEST, TopicPartition
from headrace.client.probe import require_listener
from headrace.config.names import nearest
from headrace.lake.places import is_object_store
from headrace.lake.state import Interval

from ..source.logs import assigned
from ..source.offsets import from_spark, to_spark
from .building import BOOTSTRAP, source_settings
from .failures import PipelineFailed
from .model import Declaration, Sink, Source, ToArchive, ToConnector, ToConsole, ToFiles, ToFunction, ToTopic
from .paths import PipelinePaths, declared_path, is_remote
from .vocabulary import client_of, parsed_source

Ranges = Mapping[TopicPartition, Interval]
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_PLAN: Final = "backfill.json"
_EVERY_SOURCE: Final = ""
_REPLACED: Final = (
    "subscribe",
    "subscribepattern",
    "startingoffsets",
    "startingtimestamp",
    "startingoffsetsbytimestamp",
    "startingoffsetsbytimestampstrategy",
    "group",
    "kafka.group.id",
    "assign",
)
"""Options of a source that its span, and a group of the backfill's own, take the place of."""

ADDED: Final = "rows are added to those that are there; run again, this backfill adds none"
ONCE: Final = "offsets that the table has are left out"
BY_CONNECTOR: Final = "as the connector writes a batch that it has not seen"
HANDED: Final = "the function gets batches whose numbers begin at 0"
SHOWN: Final = "rows are printed"


class BadBackfill(PipelineFailed):
    """The backfill cannot be, as it was asked for; the message says what to ask for instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for. `start` and `stop` are positions by source, `""` for those that are not named; `words` are
    the same as they were written, which tell one backfill from another.
    """

    start: Mapping[str, Bound]
    stop: Mapping[str, Bound]
    words: Sequence[str] = ()
    sinks: Sequence[str] = ()
    targets: Mapping[str, str] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpan:
    """What is read of a source. `held_back` has partitions whose last records are of transactions that are open."""

    ranges: Ranges
    held_back: tuple[TopicPartition, ...] = ()

    @property
    def offsets(self) -> int:
        return sum(stop - start for start, stop in self.ranges.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A backfill's offsets, by source, as they are kept with its progress."""

    spans: Mapping[str, SourceSpan]
    is_done: bool = False

    def encode(self) -> str:
        spans = {name: to_spark({where: stop for where, (_, stop) in one.ranges.items()}) for name, one in self._items}
        starts = {
            name: to_spark({where: start for where, (start, _) in one.ranges.items()}) for name, one in self._items
        }
        return json.dumps({"start": starts, "stop": spans, "done": self.is_done}, indent=1)

    @property
    def _items(self) -> list[tuple[str, SourceSpan]]:
        return sorted(self.spans.items())


def decode_plan(text: str) -> Plan:
    """What `encode` made."""
    found = json.loads(text)
    spans = {}
    for source, starts in found["start"].items():
        start, stop = from_spark(starts), from_spark(found["stop"][source])
        spans[source] = SourceSpan(ranges={where: (start[where], stop[where]) for where in start})
    return Plan(spans=spans, is_done=found["done"])


def backfill_name(pipeline: str, asked: Asked) -> str:
    """What the backfill is called; the same for the same wishes."""
    if asked.name:
        return f"{pipeline}-backfill-{asked.name}"
    known = json.dumps([list(asked.words), sorted(asked.sinks), sorted(asked.targets.items())])
    return f"{pipeline}-backfill-{sha256(known.encode()).hexdigest()[:10]}"


def chosen(declaration: Declaration, asked: Asked) -> Declaration:
    """The pipeline with the sinks that were asked for, and the tables that these need, under the backfill's name.

    BadBackfill where that would harm what the pipeline has written, or cannot be.
    """
    names = [sink.name for sink in declaration.sinks]
    for name in (*asked.sinks, *asked.targets):
        if name not in names:
            raise BadBackfill(f"there is no sink '{name}'{nearest(name, names)}; there are {', '.join(names)}")
    sinks = tuple(
        _aimed(sink, declaration, asked) for sink in declaration.sinks if not asked.sinks or sink.name in asked.sinks
    )
    kept = _part(declaration, sinks)
    sources = [source.name for source in kept.sources]
    for name in (*asked.start, *asked.stop):
        if name and name not in sources:
            raise BadBackfill(f"no sink of this backfill reads a source '{name}'{nearest(name, sources)}")
    for name in kept.source_names:
        if name not in sources:
            raise BadBackfill(
                f"source '{name}' is a connector's, which has no offsets to begin and to end at; choose sinks "
                "that do not need it with --sink"
            )
    name = backfill_name(declaration.name, asked)
    checkpoint = None if declaration.checkpoint is None else f"{declaration.checkpoint.rstrip('/')}-{name}"
    return replace(kept, name=name, checkpoint=checkpoint)


def _aimed(sink: Sink, declaration: Declaration, asked: Asked) -> Sink:
    """A sink with its target."""
    target, output = asked.targets.get(sink.name), sink.output
    if isinstance(output, ToFiles) and (target is None or _same_place(target, output.path, declaration)):
        raise BadBackfill(
            f"sink '{sink.name}' writes files that belong to the running query, which counts their batches: give "
            f"another directory with --target {sink.name}=DIR, or choose other sinks with --sink"
        )
    if isinstance(output, ToFunction) and sink.name not in asked.sinks:
        raise BadBackfill(
            f"sink '{sink.name}' is a function, which would get batches whose numbers begin at 0 again: if it does not "
            f"go by numbers, say --sink {sink.name}; or choose other sinks"
        )
    if target is None:
        return sink
    match output:
        case ToTopic():
            return replace(sink, output=replace(output, options={**output.options, "topic": target}))
        case ToFiles():
            return replace(sink, output=replace(output, path=_absolute(target)))
        case ToArchive():
            lake = replace(output.options.lake, path=_absolute(target))
            return replace(sink, output=replace(output, options=replace(output.options, lake=lake)))
        case _:
            raise BadBackfill(
                f"sink '{sink.name}' is {_kind(sink)}, which has no other target; --target is for topics, files and "
                "archives"
            )


def _same_place(target: str, path: str, declaration: Declaration) -> bool:
    return _absolute(target) == (declared_path(declaration, path) or path)


def _absolute(path: str) -> str:
    return path if is_remote(path) or is_object_store(path) or path.startswith("file:") else str(Path(path).resolve())


def _kind(sink: Sink) -> str:
    match sink.output:
        case ToTopic():
            return "a topic"
        case ToFiles():
            return "files"
        case ToArchive():
            return "an archive"
        case ToFunction():
            return "a function"
        case ToConsole():
            return "the console"
        case ToConnector() as output:
            return f"the connector {output.kind}"


def planned(declaration: Declaration, asked: Asked, bootstrap: str) -> Plan:
    """The offsets that are asked for, as far as the topics have them."""
    spans = {
        source.name: _span(source, bootstrap, _of(source, asked.start), _of(source, asked.stop))
        for source in declaration.sources
    }
    return Plan(spans=spans)


def _of(source: Source, bounds: Mapping[str, Bound]) -> Bound:
    found = bounds.get(source.name, bounds.get(_EVERY_SOURCE))
    if found is None:
        raise BadBackfill(
            f"--from says nothing of source '{source.name}'; write --from {source.name}=POSITION as well, or a "
            "position without a name for all others"
        )
    return found


def _span(source: Source, bootstrap: str, start: Bound, stop: Bound) -> SourceSpan:
    options = parsed_source(source_settings(source, bootstrap, ""))
    require_listener(options.client["bootstrap.servers"])
    isolation = "read_committed" if options.read_committed else "read_uncommitted"
    with Cluster({**options.client, "isolation.level": isolation}) as cluster:
        partitions = sorted(assigned(cluster, options))
        if not partitions:
            raise BadBackfill(f"source '{source.name}' has no topics")
        low = _known(cluster, partitions, EARLIEST)
        high = _known(cluster, partitions, LATEST, read_committed=options.read_committed)
        whole = _known(cluster, partitions, LATEST)
        begin = resolved(cluster, partitions, start, "--from")
        end = resolved(cluster, partitions, stop, "--to")
    ranges = {}
    for where in partitions:
        first = min(max(begin[where], low[where]), high[where])
        ranges[where] = (first, max(first, min(end[where], high[where])))
    held = tuple(where for where in partitions if high[where] < min(end[where], whole[where]))
    return SourceSpan(ranges=ranges, held_back=held)


def _known(
    cluster: Cluster, partitions: Sequence[TopicPartition], which: int, *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    found = cluster.offsets(dict.fromkeys(partitions, which), read_committed=read_committed)
    return {where: offset or 0 for where, offset in found.items()}


def kept_plan(paths: PipelinePaths, plan: Plan) -> Plan:
    """The offsets that this backfill has had since it began; the given ones if it begins now."""
    file = paths.local / _PLAN
    paths.local.mkdir(parents=True, exist_ok=True)
    if not file.exists() and any(_PLAN not in one.name for one in paths.local.iterdir()):
        raise BadBackfill(f"{paths.local} has progress of something else; a backfill needs a --checkpoint of its own")
    written = paths.local / f".{_PLAN}.{os.getpid()}"
    written.write_text(plan.encode())
    try:
        with suppress(FileExistsError):
            os.link(written, file)  # Whoever is second takes the plan of the first.
    finally:
        written.unlink()
    return decode_plan(file.read_text())


def known_plan(paths: PipelinePaths) -> Plan | None:
    """The offsets of a backfill that has begun."""
    file = paths.local / _PLAN
    return decode_plan(file.read_text()) if file.exists() else None


def note_done(paths: PipelinePaths, plan: Plan) -> None:
    """Remember that a backfill is done."""
    written = paths.local / f".{_PLAN}.{os.getpid()}"
    written.write_text(replace(plan, is_done=True).encode())
    written.replace(paths.local / _PLAN)


def bounded(declaration: Declaration, plan: Plan) -> Declaration:
    """The pipeline whose sources begin and end where the plan says."""
    tables = tuple(
        _bounded(table, plan.spans[table.name].ranges) if isinstance(table, Source) else table
        for table in declaration.tables
    )
    return replace(declaration, tables=tables)


def _bounded(source: Source, ranges: Ranges) -> Source:
    options = {name: text for name, text in source.options.items() if name.lower() not in _REPLACED}
    numbers: dict[str, list[int]] = {}
    for where in sorted(ranges):
        numbers.setdefault(where.topic, []).append(where.partition)
    span = {
        "assign": json.dumps(numbers),
        "startingOffsets": json.dumps(to_spark({where: start for where, (start, _) in ranges.items()})),
        "stopAtOffsets": json.dumps(to_spark({where: stop for where, (_, stop) in ranges.items()})),
    }
    return replace(source, options={**options, **span})


def with_queries(declaration: Declaration) -> Declaration | None:
    """The part of a pipeline that runs as streaming queries: all but archives, which are added to in batches."""
    sinks = tuple(sink for sink in declaration.sinks if not isinstance(sink.output, ToArchive))
    return _part(declaration, sinks) if sinks else None


def archives(declaration: Declaration) -> list[tuple[Sink, ToArchive]]:
    """The sinks that are archives."""
    return [(sink, sink.output) for sink in declaration.sinks if isinstance(sink.output, ToArchive)]


def _part(declaration: Declaration, sinks: tuple[Sink, ...]) -> Declaration:
    """A pipeline with some of its sinks, and the tables that they need."""
    needed = {table.name for sink in sinks for table in declaration.needed_by(sink.table)}
    tables = tuple(table for table in declaration.tables if table.name in needed)
    return replace(declaration, sinks=sinks, tables=tables)


def archive_source(source: Source, bootstrap: str) -> dict[str, str]:
    """The options by which a batch reads what a source reads."""
    client = client_of({BOOTSTRAP: bootstrap, **source.options})
    named = {name.lower(): text for name, text in source.options.items()}
    kept = {"kafka.isolation.level": named.get("kafka.isolation.level", "read_committed")}
    if "failondataloss" in named:
        kept["failOnDataLoss"] = named["failondataloss"]
    return {**{f"kafka.{name}": text for name, text in client.items() if name != "isolation.level"}, **kept}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutletNote:
    """What a backfill does to a place it writes to. `missing` is how many offsets an archive does not have yet."""

    name: str
    kind: str
    target: str
    duplicates: str
    missing: int | None = None

    def as_json(self) -> dict[str, Any]:
        told = {"sink": self.name, "kind": self.kind, "target": self.target, "duplicates": self.duplicates}
        return told if self.missing is None else {**told, "missing": self.missing}


def outlet_notes(declaration: Declaration, plan: Plan) -> Iterator[OutletNote]:
    """All that is written, and what that means for rows that are there already."""
    for sink in declaration.sinks:
        yield _note(sink, plan)
    for table in declaration.tables:
        if isinstance(table, Source) and table.dead_letter_topic:
            yield OutletNote(
                name=f"dead letters of {table.name}", kind="topic", target=table.dead_letter_topic, duplicates=ADDED
            )
        for place, rule in {rule.aside: rule for rule in table.expect if rule.aside}.items():
            kind = "topic" if rule.table is None else "table"
            yield OutletNote(name=f"quarantine of {table.name}", kind=kind, target=place, duplicates=ADDED)


def _note(sink: Sink, plan: Plan) -> OutletNote:
    match sink.output:
        case ToTopic() as output:
            return OutletNote(name=sink.name, kind="topic", target=output.options["topic"], duplicates=ADDED)
        case ToFiles() as output:
            return OutletNote(name=sink.name, kind="parquet", target=output.path, duplicates=ADDED)
        case ToArchive() as output:
            from ..archive.backfill import missing_ranges

            left = missing_ranges(output.options, plan.spans[sink.table].ranges)
            missing = sum(stop - start for intervals in left.values() for start, stop in intervals)
            place = output.options.lake.path
            return OutletNote(name=sink.name, kind="archive", target=place, duplicates=ONCE, missing=missing)
        case ToFunction():
            return OutletNote(name=sink.name, kind="python", target="", duplicates=HANDED)
        case ToConsole():
            return OutletNote(name=sink.name, kind="console", target="", duplicates=SHOWN)
        case ToConnector() as output:
            return OutletNote(name=sink.name, kind="connector", target=output.kind, duplicates=BY_CONNECTOR)


def require_own_tables(declaration: Declaration, asked: Asked, directory: Path) -> None:
    """BadBackfill where a table has a relative path that meant another directory where the pipeline is deployed."""
    for sink, output in archives(declaration):
        if _is_below(output.options.lake.path, directory) and sink.name not in asked.targets:
            raise BadBackfill(
                f"sink '{sink.name}' has a path that is relative to where its service runs; say where the tables are "
                f"with --target {sink.name}=PATH"
            )
    for table in declaration.tables:
        for rule in table.expect:
            if rule.table is not None and _is_below(rule.table.lake.path, directory):
                raise BadBackfill(
                    f"rule '{rule.name}' of '{table.name}' has a table whose path is relative to where its service "
                    "runs; write the whole path, and deploy again"
                )


def _is_below(path: str, directory: Path) -> bool:
    return Path(path).is_relative_to(directory.resolve())
