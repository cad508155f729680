"""The tables of `headrace top`: columns, order, filter and details, the same on the screen, as text and in JSON."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from headrace.health import HealthProblem
from headrace.ops.rates import BrokerRow, Dashboard, GroupRow, RateModel, TopicRow

Row = BrokerRow | TopicRow | GroupRow

_BYTE_UNITS: Final = ("B", "K", "M", "G", "T", "P")
_UNITS: Final = ("", "k", "M", "G", "T", "P")
NAME: Final = "name"
RATE: Final = "rate"
LAG: Final = "lag"
_MOST_DETAILS: Final = 500


class TableKind(StrEnum):
    """What a table is of."""

    BROKERS = "brokers"
    TOPICS = "topics"
    GROUPS = "groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column: what it is called, what it sorts by, what it shows."""

    key: str
    title: str
    value: Callable[[Any], Any]
    shown: Callable[[Any], str] = str
    is_text: bool = False
    """Text stands to the left and is sorted from A; numbers to the right, the largest first."""
    width: int | None = 4
    """Letters on the screen, so that it does not jump from look to look; None: as many as there are."""
    is_optional: bool = False
    """Left out where no row has a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a table is sorted by."""

    key: str
    is_reversed: bool = False
    """The other way round than the column is sorted by itself."""


def compact(value: float | None, base: int = 1000) -> str:
    """A number in at most five letters: 0, 7.5, 999, 1.2k, 35M; `-` for what is not known."""
    if value is None:
        return "-"
    sign, size = ("-" if value < 0 else ""), abs(float(value))
    units = _BYTE_UNITS if base == 1024 else _UNITS
    unit = 0
    while size >= 999.5 and unit < len(units) - 1:
        size /= base
        unit += 1
    suffix = "" if unit == 0 else units[unit]
    is_whole = size >= 9.95 or size == int(size)
    return f"{sign}{size:.0f}{suffix}" if is_whole else f"{sign}{size:.1f}{suffix}"


def _bytes(value: float | None) -> str:
    return compact(value, 1024)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}ms" if value >= 9.95 else f"{value:.1f}ms"


def _change(value: float | None) -> str:
    return "-" if value is None else f"+{compact(value)}" if value > 0 else compact(value)


def _text(value: str | None) -> str:
    return value or ""


def _count(value: int) -> str:
    return str(value) if value else "-"


def _problem(problem: Callable[[Any], str]) -> TableColumn:
    """Sorted by it, rows that have one come first."""
    return TableColumn(
        key="problem",
        title="PROBLEM",
        value=lambda row: problem(row) or None,
        shown=_text,
        is_text=True,
        width=None,
    )


COLUMNS: Final[dict[TableKind, tuple[TableColumn, ...]]] = {
    TableKind.BROKERS: (
        TableColumn(key=NAME, title="BROKER", value=lambda r: r.id, is_text=True, width=6),
        TableColumn(key="leaders", title="LEAD", value=lambda r: r.leaders),
        TableColumn(key="replicas", title="REPL", value=lambda r: r.replicas),
        TableColumn(key="in_sync", title="ISR", value=lambda r: r.in_sync),
        TableColumn(key=RATE, title="IN/s", value=lambda r: r.bytes_in, shown=_bytes),
        TableColumn(key="bytes_out", title="OUT/s", value=lambda r: r.bytes_out, shown=_bytes),
        TableColumn(key="messages_in", title="MSG/s", value=lambda r: r.messages_in, shown=compact),
        TableColumn(
            key="messages_out", title="MOUT/s", value=lambda r: r.messages_out, shown=compact, is_optional=True
        ),
        TableColumn(key="connections", title="CONN", value=lambda r: r.connections, shown=compact),
        TableColumn(key="disk_free", title="FREE", value=lambda r: r.disk_free, shown=_bytes),
        TableColumn(key="loop_delay", title="DELAY", value=lambda r: r.loop_delay_ms, shown=_milliseconds),
        TableColumn(
            key="problem",
            title="PROBLEM",
            value=lambda r: short_problem(r) or None,
            shown=_text,
            is_text=True,
            width=None,
        ),
    ),
    TableKind.TOPICS: (
        TableColumn(key=NAME, title="TOPIC", value=lambda r: r.name, is_text=True, width=24),
        TableColumn(key=RATE, title="MSG/s", value=lambda r: r.messages_in, shown=compact),
        TableColumn(key="bytes_in", title="IN/s", value=lambda r: r.bytes_in, shown=_bytes),
        TableColumn(key="bytes", title="SIZE", value=lambda r: r.bytes, shown=_bytes),
        TableColumn(key="partitions", title="PARTS", value=lambda r: r.partitions),
        TableColumn(key="replication_factor", title="RF", value=lambda r: r.replication_factor),
        TableColumn(key="under_replicated", title="URP", value=lambda r: r.under_replicated, shown=_count),
        TableColumn(
            key="problem", title="PROBLEM", value=lambda r: r.problem or None, shown=_text, is_text=True, width=None
        ),
    ),
    TableKind.GROUPS: (
        TableColumn(key=NAME, title="GROUP", value=lambda r: r.name, is_text=True, width=24),
        TableColumn(key="state", title="STATE", value=lambda r: r.state, is_text=True, width=12),
        TableColumn(key="members", title="MEMBERS", value=lambda r: r.members),
        TableColumn(key=LAG, title="LAG", value=lambda r: r.lag, shown=compact),
        TableColumn(key=RATE, title="LAG/s", value=lambda r: r.lag_change, shown=_change, width=6),
        TableColumn(
            key="problem", title="PROBLEM", value=lambda r: r.problem or None, shown=_text, is_text=True, width=None
        ),
    ),
}
FIRST_ORDER: Final = {
    TableKind.BROKERS: Order(key=NAME),
    TableKind.TOPICS: Order(key=RATE),
    TableKind.GROUPS: Order(key=LAG),
}


def short_problem(broker: BrokerRow) -> str:
    """A broker's worst problem in two words."""
    if broker.is_reached and broker.problems:
        return broker.problems[0].title
    return broker.problem.partition(":")[0]


def rows_of(dashboard: Dashboard, section: TableKind) -> Sequence[Row]:
    return getattr(dashboard, section.value)  # type: ignore[no-any-return]


def name_of(row: Row) -> str:
    """What a row is known by."""
    return str(row.id) if isinstance(row, BrokerRow) else row.name


def column(section: TableKind, key: str) -> TableColumn | None:
    return next((c for c in COLUMNS[section] if c.key == key), None)


def columns_of(section: TableKind, rows: Sequence[Row]) -> list[TableColumn]:
    """The columns to show."""
    return [c for c in COLUMNS[section] if not c.is_optional or any(c.value(row) is not None for row in rows)]


def order_for(key: str) -> dict[TableKind, Order]:
    """All tables sorted by a column, as far as they have it; the others as at first."""
    return {
        section: Order(key=key) if column(section, key) is not None else FIRST_ORDER[section] for section in TableKind
    }


def sort_keys() -> list[str]:
    """What tables can be sorted by."""
    return sorted({c.key for columns in COLUMNS.values() for c in columns})


def arranged(rows: Iterable[Row], section: TableKind, order: Order, text: str = "") -> list[Row]:
    """The rows whose name has the text in it, in order; those without a value last."""
    by = column(section, order.key) or COLUMNS[section][0]
    matching = sorted((row for row in rows if matches(row, text)), key=_sortable_name)
    known = [row for row in matching if by.value(row) is not None]
    unknown = [row for row in matching if by.value(row) is None]
    return sorted(known, key=by.value, reverse=by.is_text == order.is_reversed) + unknown


def _sortable_name(row: Row) -> tuple[int, str]:
    return (row.id, "") if isinstance(row, BrokerRow) else (0, row.name)


def matches(row: Row, text: str) -> bool:
    """Whether a topic or group has the text in its name; brokers always stay to be seen."""
    return isinstance(row, BrokerRow) or text.lower() in row.name.lower()


def as_values(dashboard: Dashboard) -> dict[str, Any]:
    """For programs: every row and number."""
    values = asdict(dashboard)
    for row, broker in zip(values["brokers"], dashboard.brokers, strict=True):
        row["problems"] = [problem.to_json() for problem in broker.problems]
    del values["at"]
    return values


def details(row: Row, model: RateModel) -> list[str]:
    """Everything there is to say of a row, in lines."""
    if isinstance(row, BrokerRow):
        return list(_broker_details(row))
    return list(_topic_details(row, model) if isinstance(row, TopicRow) else _group_details(row, model))


def _broker_details(row: BrokerRow) -> Iterator[str]:
    yield f"broker {row.id}{', the controller' if row.is_controller else ''}"
    yield f"address      {f'{row.host}:{row.port}' if row.host else 'not known'}"
    yield f"rack         {row.rack or '-'}"
    if row.version:
        yield f"version      {row.version}, up for {_duration(row.uptime_seconds or 0)}"
    yield f"partitions   leads {row.leaders}, holds {row.replicas}, {row.in_sync} in sync"
    yield f"in           {_bytes(row.bytes_in)}/s, {compact(row.messages_in)} messages/s"
    yield f"out          {_bytes(row.bytes_out)}/s, {compact(row.messages_out)} messages/s"
    yield f"requests     {compact(row.requests)}/s on {compact(row.connections)} connections"
    yield f"disk         {_bytes(row.disk_free)} of {_bytes(row.disk_total)} free"
    yield f"loop delay   {_milliseconds(row.loop_delay_ms)}"
    yield ""
    if row.problem and not (row.is_reached and row.problems):
        yield f"{row.severity}: {row.problem}"
    for problem in row.problems:
        yield from _problem_lines(problem)
    if not row.problem:
        yield "no problems"


def _problem_lines(problem: HealthProblem) -> Iterator[str]:
    yield f"{problem.severity}: {problem.title} ({problem.subject}): {problem.message}"
    yield f"  -> {problem.advice}"


def _topic_details(row: TopicRow, model: RateModel) -> Iterator[str]:
    yield f"topic {row.name}: {row.partitions} partitions, replication factor {row.replication_factor}"
    yield f"{compact(row.messages_in)} messages/s in, {_bytes(row.bytes)} in one copy"
    if row.problem:
        yield f"{row.severity}: {row.problem}"
    yield ""
    yield f"{'PARTITION':>9} {'LEADER':>6} {'REPLICAS':<12} {'ISR':<12} {'END':>12} {'MSG/s':>6} {'SIZE':>6}"
    partitions = model.partitions_of(row.name)
    for p in partitions[:_MOST_DETAILS]:
        leader = "none" if p.leader is None else p.leader
        end = "-" if p.end is None else p.end
        yield (
            f"{p.partition:>9} {leader:>6} {_ids(p.replicas):<12} {_ids(p.isr):<12} {end:>12} "
            f"{compact(p.messages_in):>6} {_bytes(p.bytes):>6}{f'  {p.problem}' if p.problem else ''}"
        )
    if len(partitions) > _MOST_DETAILS:
        yield f"... and {len(partitions) - _MOST_DETAILS} more"


def _group_details(row: GroupRow, model: RateModel) -> Iterator[str]:
    yield f"group {row.name}: {row.state}, {row.type} protocol, {row.members} members, coordinator {row.coordinator}"
    yield f"lag {compact(row.lag)}, changing by {_change(row.lag_change)} a second"
    if row.uncommitted:
        yield f"{row.uncommitted} partitions that are read have no committed offset; their lag counts from the start"
    if row.problem:
        yield f"{row.severity}: {row.problem}"
    yield ""
    yield f"{'TOPIC':<30} {'PARTITION':>9} {'COMMITTED':>12} {'END':>12} {'LAG':>10}"
    found = model.progress_of(row.name)
    for p in found[:_MOST_DETAILS]:
        committed, end, lag = ("-" if value is None else value for value in (p.committed, p.end, p.lag))
        yield f"{p.topic:<30} {p.partition:>9} {committed:>12} {end:>12} {lag:>10}"
    if len(found) > _MOST_DETAILS:
        yield f"... and {len(found) - _MOST_DETAILS} more"


def _ids(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
