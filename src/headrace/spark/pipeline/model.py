"""A declared pipeline as values: tables (sources and steps) that feed sinks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.lake.archiving import ArchiveOptions

from ..archive.rows import LakeRows
from ..connectors.base import SinkConnector, SourceConnector
from .document import DocumentPosition
from .expectations import Expectation

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """Rows whose time in `column` is more than `delay` before the latest seen may be dropped."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A stream of topics; `options` are those of `format("headrace")`.

    `metadata` are the record's own columns beside its value; None is all of them where the value has no fields, and
    none where it has.
    """

    name: str
    position: DocumentPosition
    options: Mapping[str, str]
    watermark: Watermark | None = None
    metadata: tuple[str, ...] | None = None
    dead_letter_topic: str = ""
    """Where records go that cannot be decoded; empty where they stay, in a column `bad`."""
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sql:
    """A step written as a query."""

    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A step written as a function; `inputs` are the parameters that get tables, `arguments` get plain values."""

    function: Function
    inputs: tuple[str, ...]
    arguments: Mapping[str, object]
    wants_spark: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedup:
    """A step that lets the first row of equal `keys` through; the watermark bounds how long keys are remembered."""

    table: str
    keys: tuple[str, ...]
    watermark: Watermark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """A source that is a connector's, under the name that it has in the file."""

    kind: str
    connector: SourceConnector


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A table made of other tables, its `inputs`; of none where a connector or a function brings rows in."""

    name: str
    position: DocumentPosition
    work: Sql | Call | Dedup | Connected
    inputs: tuple[str, ...]
    watermark: Watermark | None = None
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When a batch starts: every `interval`, or as soon as the last one is done; or for what is there, then stop."""

    interval: str | None = None
    available_now: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Whether a query that failed starts again: after `delay` seconds, doubled with each failure up to `max_delay`.

    `on` is `unreachable` (what passes by itself: the cluster was away, the machine too busy) or `any` failure.
    `attempts` bounds the starts between two batches; None is no bound.
    """

    on: str = "unreachable"
    delay: float = 1.0
    max_delay: float = 60.0
    attempts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTopic:
    """Rows to a topic. `columns` are the expressions that make the record's columns, none of which: as they are."""

    columns: Mapping[str, str]
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToFiles:
    """Rows to Parquet files."""

    path: str
    partition_by: tuple[str, ...]
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToArchive:
    """Records of a source to the tables of a lake, one for each topic; `values` are the options by which values are
    decoded to columns.
    """

    options: ArchiveOptions
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTable:
    """Rows that rules set aside to a table of a lake."""

    rows: LakeRows


@dataclass(frozen=True, slots=True, kw_only=True)
class ToFunction:
    """Each batch to `function(rows, batch_id)`."""

    function: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class ToConsole:
    """The first `rows` of each batch printed, for trying things out."""

    rows: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ToConnector:
    """Each batch to a connector."""

    kind: str
    connector: SinkConnector


Output = ToTopic | ToFiles | ToArchive | ToFunction | ToConsole | ToConnector


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """Where the rows of `table` go."""

    name: str
    position: DocumentPosition
    table: str
    output: Output
    mode: str = "append"
    trigger: Trigger | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A whole pipeline. `tables` stand in an order in which each one comes after those it reads."""

    name: str
    file: Path
    tables: tuple[Source | Step, ...]
    sinks: tuple[Sink, ...]
    bootstrap: str | None = None
    checkpoint: str | None = None
    trigger: Trigger = field(default_factory=Trigger)
    restart: Restart | None = None
    """None is what the run has by default."""
    spark: Mapping[str, str] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """Where relative paths of the file start."""
        return self.file.parent

    @property
    def sources(self) -> list[Source]:
        return [table for table in self.tables if isinstance(table, Source)]

    @property
    def source_names(self) -> list[str]:
        """The tables that bring rows in, but for functions."""
        return [one.name for one in self.tables if isinstance(one, Source) or isinstance(one.work, Connected)]

    def needed_by(self, table: str) -> list[Source | Step]:
        """The tables that `table` is made of, and itself, in their order."""
        names = {table.lower()}
        chain: list[Source | Step] = []
        for one in reversed(self.tables):
            if one.name.lower() in names:
                chain.append(one)
                if isinstance(one, Step):
                    names.update(name.lower() for name in one.inputs)
        return chain[::-1]
