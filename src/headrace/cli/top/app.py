"""The screen of `headrace top`: three tables that are renewed with each look at the cluster.

A thread looks; the screen only shows what it brings, so that keys work while brokers do not answer.
"""

import asyncio
import time
from collections.abc import Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from headrace.client.errors import ClientError
from headrace.client.waiting import in_background
from headrace.health import Severity
from headrace.ops.rates import Dashboard, RateModel
from headrace.ops.samples import ClusterSample

from .command import summary
from .tables import (
    COLUMNS,
    NAME,
    Order,
    Row,
    TableColumn,
    TableKind,
    arranged,
    column,
    columns_of,
    details,
    name_of,
    rows_of,
)

STYLES: Final = {Severity.OK: "", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}
_HEAD_STYLES: Final = {Severity.OK: "green", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}
MOST_ROWS: Final = 200
"""Of one table; a filter shows others."""
_UP, _DOWN = "▲", "▼"


class Details(ModalScreen[None]):
    """Everything about one row; renewed with each look."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q", "dismiss", "Close"),
    ]
    CSS = """
    Details > VerticalScroll { width: 100%; height: 1fr; background: $surface; padding: 0 1; }
    Details Static { width: auto; }
    """

    def __init__(self, section: TableKind, name: str) -> None:
        super().__init__()
        self.section = section
        self.name_shown = name
        self._lines = Static("", id="lines", markup=False)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self._lines
        yield Footer()

    def show(self, lines: list[str]) -> None:
        """Show other lines."""
        self._lines.update("\n".join(lines))


class TopApp(App[None]):
    """Shows what `observe`, which blocks, brings every `interval` seconds."""

    TITLE = "headrace top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("p,space", "pause", "Pause", key_display="p"),
        Binding("r", "sort('rate')", "Rate"),
        Binding("l", "sort('lag')", "Lag"),
        Binding("n", "sort('name')", "Name"),
        Binding("s", "next_column", "Sort"),
        Binding("S,shift+s", "reverse", "Reverse", show=False),
        Binding("z", "zoom", "Zoom"),
        Binding("tab", "focus_next", "Table", show=False),
        Binding("d", "details", "Details"),
        Binding("escape", "leave_filter", "Clear", show=False),
    ]
    CSS = """
    Screen { layout: vertical; }
    .line { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #brokers { height: auto; max-height: 40%; }
    #topics, #groups { height: 1fr; }
    DataTable { scrollbar-size-vertical: 1; scrollbar-size-horizontal: 0; background: $background; }
    DataTable:focus > .datatable--cursor { background: $accent; }
    DataTable > .datatable--cursor { background: $background; }
    #about { color: $text-muted; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    .hidden { display: none; }
    """

    def __init__(
        self,
        observe: Callable[[], ClusterSample],
        *,
        interval: float,
        orders: dict[TableKind, Order],
        filter_text: str = "",
    ) -> None:
        super().__init__()
        self.failure: ClientError | None = None
        """Why it ended, if not by its user."""
        self.dashboard: Dashboard | None = None
        """What is shown."""
        self.model = RateModel()
        self.looks = 0
        """How often it has looked at the cluster."""
        self.orders = dict(orders)
        self._observe = observe
        self._interval = interval
        self._filter = filter_text
        self._is_paused = False
        self._zoomed: TableKind | None = None
        self._head = Static(id="head", classes="line", markup=False)
        self._health = Static(id="health", classes="line", markup=False)
        self._about = Static(id="about", classes="line", markup=False)
        self._filter_box = Input(id="filter", placeholder="part of a name; Enter keeps it, Esc clears it")
        self._shown: dict[TableKind, list[Row]] = {section: [] for section in TableKind}
        self._tables: dict[TableKind, DataTable[Text]] = {
            section: DataTable(id=section.value, cursor_type="row", cell_padding=0) for section in TableKind
        }

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._health
        yield from self._tables.values()
        yield self._about
        yield self._filter_box
        yield Footer()

    def on_mount(self) -> None:
        self._tables[TableKind.TOPICS].focus()
        self._show_head("asking the cluster ...", Severity.OK)
        self.run_worker(self._watch(), exclusive=True)

    async def _watch(self) -> None:
        while True:
            began = time.monotonic()
            try:
                sample = await asyncio.wrap_future(in_background(self._observe))
            except ClientError as error:
                self.failure = error
                self.exit()
                return
            dashboard = self.model.add(sample)
            self.looks += 1
            if not self._is_paused:
                self.dashboard = dashboard
                self._show()
            await asyncio.sleep(max(self._interval - (time.monotonic() - began), 0.05))

    # Showing

    def _show(self) -> None:
        dashboard = self.dashboard
        if dashboard is None:
            return
        self._show_head(f"{dashboard.severity}: {dashboard.headline}", dashboard.severity)
        for section, table in self._tables.items():
            self._fill(section, table, dashboard)
        self._show_about()
        screen = self.screen
        if isinstance(screen, Details):
            self._show_details(screen)

    def _show_head(self, health: str, severity: Severity) -> None:
        dashboard = self.dashboard
        first = Text(f"{time.strftime('%H:%M:%S')}  ", "bold")
        if dashboard is not None:
            first.append(f"{dashboard.cluster_id or '-'}  {summary(dashboard)}".replace("   ", "  "))
        second = Text()
        if self._is_paused:
            second.append("PAUSED  ", "bold reverse")
        if self._filter:
            second.append(f"[{self._filter}]  ", "bold cyan")
        second.append(health, _HEAD_STYLES[severity])
        self._head.update(first)
        self._health.update(second)

    def _fill(self, section: TableKind, table: "DataTable[Text]", dashboard: Dashboard) -> None:
        all_rows = rows_of(dashboard, section)
        order = self.orders[section]
        rows = arranged(all_rows, section, order, self._filter)[:MOST_ROWS]
        chosen, row_before, scroll = self._chosen(section), table.cursor_row, table.scroll_offset
        self._shown[section] = rows
        table.clear(columns=True)
        columns = columns_of(section, all_rows)
        for each in columns:
            mark = (_UP if each.is_text != order.is_reversed else _DOWN) if each.key == order.key else ""
            title = _cell(each, f"{each.title}{mark}")
            table.add_column(title, key=each.key, width=each.width and max(each.width + 1, title.cell_len))
        for row in rows:
            style = STYLES[row.severity]
            table.add_row(*(_cell(each, each.shown(each.value(row)), style) for each in columns), key=name_of(row))
        names = [name_of(row) for row in rows]
        at = names.index(chosen) if chosen in names else min(row_before, len(rows) - 1)
        table.move_cursor(row=max(at, 0), animate=False, scroll=False)
        table.scroll_to(scroll.x, scroll.y, animate=False)

    def _chosen(self, section: TableKind) -> str | None:
        rows, at = self._shown[section], self._tables[section].cursor_row
        return name_of(rows[at]) if 0 <= at < len(rows) else None

    def _chosen_row(self) -> tuple[TableKind, Row] | None:
        section = self._focused_section()
        rows, at = self._shown[section], self._tables[section].cursor_row
        return (section, rows[at]) if 0 <= at < len(rows) else None

    def _focused_section(self) -> TableKind:
        return next((s for s, table in self._tables.items() if table.has_focus), self._zoomed or TableKind.TOPICS)

    def _show_about(self) -> None:
        """The problem of the row that the cursor is on, whole."""
        chosen = self._chosen_row()
        text = Text()
        if chosen is not None:
            _, row = chosen
            text.append(f"{name_of(row)}: {row.problem or 'no problems'}", STYLES[row.severity])
        self._about.update(text)

    def on_data_table_row_highlighted(self) -> None:
        self._show_about()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """A click on the head of a column: sort by it, the other way round with the second one."""
        section = TableKind(str(event.data_table.id))
        self._sort_by(section, str(event.column_key.value))

    def on_data_table_row_selected(self) -> None:
        self.action_details()

    # Keys

    def action_sort(self, key: str) -> None:
        """Sort the tables that have such a column by it."""
        for section in TableKind:
            if column(section, key) is not None:
                self.orders[section] = Order(key=key)
        self._show()

    def action_next_column(self) -> None:
        """Sort the table that has the focus by its next column."""
        section = self._focused_section()
        keys = [c.key for c in COLUMNS[section]]
        after = keys[(keys.index(self.orders[section].key) + 1) % len(keys)]
        self.orders[section] = Order(key=after)
        self._show()

    def action_reverse(self) -> None:
        section = self._focused_section()
        self._sort_by(section, self.orders[section].key)

    def _sort_by(self, section: TableKind, key: str) -> None:
        order = self.orders[section]
        self.orders[section] = Order(key=key, is_reversed=order.key == key and not order.is_reversed)
        self._show()

    def action_pause(self) -> None:
        """Let the screen stay as it is; the cluster is read on, so that rates are right afterwards."""
        self._is_paused = not self._is_paused
        self._show()

    def action_filter(self) -> None:
        box = self._filter_box
        box.value = self._filter
        box.display = True
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value.strip()
        self._show()

    def on_input_submitted(self) -> None:
        self._close_filter()

    def action_leave_filter(self) -> None:
        self._filter = ""
        self._close_filter()

    def _close_filter(self) -> None:
        box = self._filter_box
        if box.display:
            box.display = False
            self._tables[self._zoomed or TableKind.TOPICS].focus()
        self._show()

    def action_zoom(self) -> None:
        """One table alone, or all three."""
        self._zoomed = None if self._zoomed else self._focused_section()
        for section, table in self._tables.items():
            table.set_class(self._zoomed not in (None, section), "hidden")
            table.styles.max_height = None if self._zoomed or section is not TableKind.BROKERS else "40%"

    def action_details(self) -> None:
        """Everything about the row that the cursor is on."""
        chosen = self._chosen_row()
        if chosen is not None and not isinstance(self.screen, Details):
            section, row = chosen
            screen = Details(section, name_of(row))
            self.push_screen(screen)
            self._show_details(screen)

    def _show_details(self, screen: Details) -> None:
        assert self.dashboard is not None
        rows = [row for row in rows_of(self.dashboard, screen.section) if name_of(row) == screen.name_shown]
        screen.show(details(rows[0], self.model) if rows else [f"{screen.name_shown} is gone"])


def _cell(column: TableColumn, text: str, style: str = "") -> Text:
    """Numbers to the right, text to the left; one space before it, but for what a row is known by."""
    space = "" if column.key == NAME else " "
    return Text(
        f"{space}{text}", style, justify="left" if column.is_text else "right", no_wrap=True, overflow="ellipsis"
    )
