"""`headrace top`: a cluster live in a terminal, or once as text or JSON."""

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.client.errors import ClusterUnreachable

from .. import connecting
from ..console import ExitCode, bad_input, examples, note, say, say_json
from ..options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties

if TYPE_CHECKING:
    from headrace.ops.observer import Observer
    from headrace.ops.rates import Dashboard

    from .tables import Order, TableKind

_COLORS: Final = {"ok": "green", "warning": "yellow", "critical": "red"}
_ONCE_SECONDS: Final = 1.0
"""Between the two looks that rates are made of, with --once, unless --interval is less."""


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace top",
            "headrace top --sort lag --interval 5",
            "headrace top --filter orders",
            "headrace top --once --limit 20",
            "headrace top --json",
        )
    )(top)


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-n", min=0.2, max=3600, help="Seconds from one look to the next.")
    ] = 2.0,
    sort: Annotated[
        str, typer.Option("--sort", metavar="COLUMN", help="Sort by rate, lag, name, problem, bytes, ...")
    ] = "",
    filter_: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Only topics and groups with this in their names.")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Print one screen as text, and leave.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Rows of each table with --once.")] = 10,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything once, in JSON, for programs.")] = False,
) -> None:
    """Show a cluster live: brokers, topics and groups, with rates and lag; what is wrong is red.

    Keys: / filters by name, r l n sort by rate, lag and name, s by the next column (a click on a column does the same),
    Enter shows details, Tab changes the table, z enlarges it, p pauses, q quits.

    Rates come from offsets and sizes of logs, as any Kafka cluster tells them, and from the health reports of our
    brokers. Goes on while brokers are down, and says why they do not answer.
    """
    from .tables import FIRST_ORDER, order_for, sort_keys

    if sort and sort not in sort_keys():
        raise bad_input(f"--sort '{sort}' is no column; use one of {', '.join(sort_keys())}")
    orders = order_for(sort) if sort else dict(FIRST_ORDER)
    with connecting.observer(bootstrap, properties) as observer:
        if once or json:
            _once(observer, min(interval, _ONCE_SECONDS), orders, filter_, limit, json)
            return
        from .app import TopApp

        app = TopApp(observer.observe, interval=interval, orders=orders, filter_text=filter_)
        app.run()
    if app.failure is not None:
        raise app.failure
    if app.return_code:
        raise typer.Exit(app.return_code)


def _once(
    observer: "Observer", pause: float, orders: "dict[TableKind, Order]", text: str, limit: int, json: bool
) -> None:
    from headrace.ops.rates import RateModel

    from .tables import as_values

    model = RateModel()
    first = observer.observe(whole=True)
    if first.view is None:
        raise ClusterUnreachable(first.reason, "_TRANSPORT")
    model.add(first)
    time.sleep(pause)
    last = observer.observe(whole=True)
    dashboard = model.add(last)
    if json:
        say_json(as_values(dashboard))
    else:
        _print(dashboard, orders, text, limit)
    if not last.is_reached:
        note(f"headrace: {last.reason}")
        raise typer.Exit(ExitCode.UNREACHABLE)


def _print(dashboard: "Dashboard", orders: "dict[TableKind, Order]", text: str, limit: int) -> None:
    from .tables import TableKind, arranged, columns_of, rows_of

    say(f"cluster {dashboard.cluster_id or '-'}   {summary(dashboard)}")
    say(typer.style(f"{dashboard.severity}: {dashboard.headline}", fg=_COLORS[dashboard.severity]))
    for section in TableKind:
        rows = arranged(rows_of(dashboard, section), section, orders[section], text)
        say("")
        columns = columns_of(section, rows)
        cells = [[c.shown(c.value(row)) for c in columns] for row in rows[:limit]]
        widths = [max(len(c.title), *(len(line[i]) for line in cells), 0) for i, c in enumerate(columns)]
        for line in ([c.title for c in columns], *cells):
            justified = (
                cell.ljust(width) if c.is_text else cell.rjust(width)
                for cell, width, c in zip(line, widths, columns, strict=True)
            )
            say("  ".join(justified).rstrip())
        if len(rows) > limit:
            say(f"... and {len(rows) - limit} more {section}")


def summary(dashboard: "Dashboard") -> str:
    """How many there are of what."""
    controller = "none" if dashboard.controller is None else dashboard.controller
    return (
        f"controller {controller}   {len(dashboard.brokers)} brokers   {len(dashboard.topics)} topics   "
        f"{dashboard.partitions} partitions   {len(dashboard.groups)} groups"
    )
