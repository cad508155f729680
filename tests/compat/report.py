"""The run as a table on the terminal and as `docs/compatibility.md`."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from .model import Advertised
from .runner import TITLES, ClientResult, Outcome, Run, Status
from .wire import api_name

_COLOURS = {Status.PASSED: "green", Status.FAILED: "bold red", Status.NOT_OFFERED: "dim", Status.PENDING: "yellow"}
_MOST_TITLES = 3
_INTRODUCTION = """\
# Compatibility

Written by `make compat`, which runs the clients below against a running broker. Do not edit: run it again.

Every client makes topics of 12 partitions, writes in every compression with acks 0, 1, all and idempotently, and
reads everything back: keys, values, headers, timestamps and order must be equal, and the batches on the broker
must carry the compression that was asked for. In the last row all clients write to one topic and each reads all
of it.
"""


def show(run: Run, console: Console) -> None:
    """Print the table of scenarios and clients, and the reason of everything that is not a plain pass."""
    table = Table(title="compatibility")
    table.add_column("scenario")
    for result in run.results:
        table.add_column(result.name, justify="center", no_wrap=True)
    for title in TITLES:
        table.add_row(title, *(_coloured(result.outcomes.get(title)) for result in run.results))
    console.print(table)
    for result in run.results:
        if result.unavailable:
            console.print(f"{result.name}: not run: {result.unavailable}", style="yellow", markup=False)
        for outcome, titles in _noted(result):
            console.print(f"{result.name}: {outcome.note} ({titles})", style=_COLOURS[outcome.status], markup=False)


def _coloured(outcome: Outcome | None) -> str:
    return "-" if outcome is None else f"[{_COLOURS[outcome.status]}]{outcome.status.value}[/]"


def markdown(run: Run) -> str:
    """The page: clients, the table, the reasons, and API versions; equal runs give equal pages."""
    sections = [
        _INTRODUCTION,
        "## Clients\n\n" + _clients(run.results),
        "## Scenarios\n\n" + _matrix(run.results) + _legend(run.results),
        "## API versions\n\n"
        "What the broker advertises, and the versions each client chose in this run.\n\n"
        + _versions(run.advertised, run.results),
        "## Running it again\n\n"
        "`make compat` sets up the clients in `.venv/compat` (kcat through the system's package manager), starts a\n"
        "broker on loopback, and rewrites this page. `make compat ARGS='--client kcat'` runs one client,\n"
        "`ARGS='--bootstrap HOST:PORT'` uses a broker that is already running; both leave this page alone.\n",
    ]
    return "\n".join(sections)


def _rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def _clients(results: Sequence[ClientResult]) -> str:
    body = [
        [result.name, result.version or f"not run: {result.unavailable}", result.default_hash] for result in results
    ]
    return _rows(["client", "version", "default hash of a key"], body)


def _matrix(results: Sequence[ClientResult]) -> str:
    def cell(result: ClientResult, title: str) -> str:
        outcome = result.outcomes.get(title)
        return outcome.status.value if outcome else "-"

    body = [[title, *(cell(result, title) for result in results)] for title in TITLES]
    return _rows(["scenario", *(result.name for result in results)], body)


def _legend(results: Sequence[ClientResult]) -> str:
    reasons = list(_reasons(results))
    legend = "\nn/a: the client has no such function; later: it waits for a part of the broker.\n"
    return legend + ("\n" + "".join(reasons) if reasons else "")


def _reasons(results: Sequence[ClientResult]) -> Iterator[str]:
    for result in results:
        for outcome, titles in _noted(result):
            yield f"- {result.name}, {outcome.status.value}: {outcome.note} ({titles})\n"


def _noted(result: ClientResult) -> Iterator[tuple[Outcome, str]]:
    """Each reason once, with the scenarios it holds for."""
    reasons: dict[str, list[str]] = {}
    for title, outcome in result.outcomes.items():
        if outcome.note:
            reasons.setdefault(outcome.note, []).append(title)
    for titles in reasons.values():
        few = len(titles) <= _MOST_TITLES
        yield result.outcomes[titles[0]], "; ".join(titles) if few else f"{len(titles)} scenarios"


def _versions(advertised: Advertised, results: Sequence[ClientResult]) -> str:
    keys = sorted(set(advertised) | {key for result in results for key, _ in result.seen})
    body = []
    for key in keys:
        low, high = advertised.get(key, (None, None))
        span = "-" if low is None else f"{low}-{high}"
        used = [", ".join(str(v) for k, v in sorted(result.seen) if k == key) for result in results]
        body.append([f"{key} {api_name(key)}", span, *used])
    return _rows(["API", "broker", *(result.name for result in results)], body)
