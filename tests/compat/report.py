"""The run as a table on the terminal and as `docs/compatibility.md`."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from .groups.scenarios import GROUP_SCENARIOS
from .logins.suite import SCENARIOS as LOGIN_SCENARIOS
from .logins.suite import LoginResult
from .model import Advertised
from .registries.suite import SCENARIOS as REGISTRY_SCENARIOS
from .registries.suite import RegistryResult
from .runner import TITLES, ClientResult, Outcome, Run, Status
from .tools import ToolResult
from .wire import api_name

_COLOURS = {Status.PASSED: "green", Status.FAILED: "bold red", Status.NOT_OFFERED: "dim", Status.PENDING: "yellow"}
_MOST_TITLES = 3
GROUP_TITLES = tuple(scenario.title for scenario in GROUP_SCENARIOS)
_GROUPS = """\
## Groups

Three members of each client, each a process, share a topic of 12 partitions while records keep coming. Every member
logs what it is assigned, what it gives up and what it processes. In every scenario each record was processed at least
once, no partition had two owners at a time by the members' own logs, and none was without an owner for longer than a
session timeout and a rebalance take. The killed member does not leave: the broker misses it. Numbers in parentheses
count the partitions that members gave up: when one joined two others (4 move to it), and, of cooperative members, when
a fourth joined three (3 move to it) and when it left again (none need be given up). The new protocol is
`group.protocol=consumer`; the other rows use the classic one, with `cooperative-sticky` in the last column and an
eager assignor in the others.

"""
TOOLS_HEADING = "## Tools\n"
LOGINS_HEADING = "## Logins\n"
_LOGINS = (
    LOGINS_HEADING
    + """
Every client writes records and reads them back over TLS, by each way to log in; is kept out with what is wrong, expired
or was taken back; and goes on without an error while the broker's certificate is renewed.

"""
)
REGISTRIES_HEADING = "## Schema registry\n"
_REGISTRIES = (
    REGISTRIES_HEADING
    + """
Clients of Confluent's schema registry register schemas of every type with a gateway, write values with the ids they get
and read them back by these, follow references, are refused what is not compatible, and stay in a context that their URL
names. The same value with the same schema is the same bytes from all of them.

"""
)
_AFTER_LOGINS = TOOLS_HEADING
_AFTER_TOOLS = "## API versions\n"
_TOOLS = (
    TOOLS_HEADING
    + """
Tools for operators that other people made, each with a few commands as users type them: topics made, grown and
described; settings of topics, brokers (also those that have no effect here), groups and subscriptions to client metrics
set, shown and taken back; levels of loggers changed in the running broker; features, the quorum, API versions, log
directories, offsets, elections and groups; ACLs made, listed and removed.

"""
)
_INTRODUCTION = """\
# Compatibility

Written by `make compat`, which runs the clients below against a running broker. Do not edit: run it again.

Every client makes topics of 12 partitions, writes in every compression with acks 0, 1, all and idempotently, and
reads everything back: keys, values, headers, timestamps and order must be equal, and the batches on the broker
must carry the compression that was asked for. What they write in transactions is read by another client, and the
other way round. In the last row all clients write to one topic and each reads all
of it.
"""


Column = tuple[str, Mapping[str, Outcome]]


def show(run: Run, console: Console) -> None:
    """Print the tables of scenarios and clients, and the reason of everything that is not a plain pass."""
    _show_table(console, "compatibility", TITLES, _columns(run.results))
    _show_table(console, "groups", GROUP_TITLES, _group_columns(run.results))
    for result in run.results:
        if result.unavailable:
            console.print(f"{result.name}: not run: {result.unavailable}", style="yellow", markup=False)
    for name, outcomes in [*_columns(run.results), *_group_columns(run.results)]:
        for outcome, titles in _noted(outcomes):
            console.print(f"{name}: {outcome.note} ({titles})", style=_COLOURS[outcome.status], markup=False)


def _columns(results: Sequence[ClientResult]) -> list[Column]:
    return [(result.name, result.outcomes) for result in results]


def _group_columns(results: Sequence[ClientResult]) -> list[Column]:
    return [
        (result.name if protocol == "classic" else f"{result.name}, new protocol", outcomes)
        for result in results
        for protocol, outcomes in result.groups.items()
    ]


def _show_table(console: Console, name: str, titles: Sequence[str], columns: Sequence[Column]) -> None:
    table = Table(title=name)
    table.add_column("scenario")
    for heading, _ in columns:
        table.add_column(heading, justify="center")
    shown = [title for title in titles if any(title in outcomes for _, outcomes in columns)]
    for title in shown:
        cells = [(outcomes.get(title), _cell(outcomes, title)) for _, outcomes in columns]
        table.add_row(title, *(f"[{_COLOURS[one.status]}]{text}[/]" if one else text for one, text in cells))
    if shown:
        console.print(table)


def _cell(outcomes: Mapping[str, Outcome], title: str) -> str:
    outcome = outcomes.get(title)
    if outcome is None:
        return "-"
    return f"{outcome.status.value} ({outcome.count})" if outcome.count else outcome.status.value


def show_tools(results: Sequence[ToolResult], console: Console) -> None:
    """Print the table of tools, and why one failed or was not tried."""
    columns = [(result.name, result.outcomes) for result in results]
    _show_table(console, "tools", _tool_titles(results), columns)
    for result in results:
        if result.unavailable:
            console.print(f"tools of {result.name}: not run: {result.unavailable}", style="yellow", markup=False)


def with_tools(page: str, results: Sequence[ToolResult]) -> str:
    """The page with another section on tools."""
    following = REGISTRIES_HEADING if REGISTRIES_HEADING in page else _AFTER_TOOLS
    before, _, rest = page.partition(TOOLS_HEADING if TOOLS_HEADING in page else following)
    after = rest.partition(following)[2] if TOOLS_HEADING in page else rest
    return f"{before}{_tools_section(results)}\n{following}{after}"


def show_logins(results: Sequence[LoginResult], console: Console) -> None:
    """Print the table of logins, and why one failed or was not tried."""
    columns = [(result.name, result.outcomes) for result in results]
    _show_table(console, "logins", list(LOGIN_SCENARIOS), columns)
    for name, outcomes in columns:
        for outcome, titles in _noted(outcomes):
            console.print(f"{name}: {outcome.note} ({titles})", style=_COLOURS[outcome.status], markup=False)


def with_logins(page: str, results: Sequence[LoginResult]) -> str:
    """The page with another section on logins, before that on tools."""
    before, _, rest = page.partition(LOGINS_HEADING if LOGINS_HEADING in page else _AFTER_LOGINS)
    after = rest.partition(_AFTER_LOGINS)[2] if LOGINS_HEADING in page else rest
    columns = [(result.name, result.outcomes) for result in results]
    section = _LOGINS + _matrix(list(LOGIN_SCENARIOS), columns) + _legend(columns)
    return f"{before}{section}\n{_AFTER_LOGINS}{after}"


def show_registries(results: Sequence[RegistryResult], console: Console) -> None:
    """Print the table of clients of the schema registry, and why one failed or was not tried."""
    columns = [(result.name, result.outcomes) for result in results]
    _show_table(console, "schema registry", list(REGISTRY_SCENARIOS.values()), columns)
    for name, outcomes in columns:
        for outcome, titles in _noted(outcomes):
            console.print(f"{name}: {outcome.note} ({titles})", style=_COLOURS[outcome.status], markup=False)


def with_registries(page: str, results: Sequence[RegistryResult]) -> str:
    """The page with another section on clients of the schema registry, before that on API versions."""
    before, _, rest = page.partition(REGISTRIES_HEADING if REGISTRIES_HEADING in page else _AFTER_TOOLS)
    after = rest.partition(_AFTER_TOOLS)[2] if REGISTRIES_HEADING in page else rest
    columns = [(result.name, result.outcomes) for result in results]
    section = _REGISTRIES + _matrix(list(REGISTRY_SCENARIOS.values()), columns) + _legend(columns)
    return f"{before}{section}\n{_AFTER_TOOLS}{after}"


def _tool_titles(results: Sequence[ToolResult]) -> list[str]:
    return list(dict.fromkeys(title for result in results for title in result.outcomes))


def _tools_section(results: Sequence[ToolResult]) -> str:
    columns = [(result.name, result.outcomes) for result in results]
    absent = [f"- {result.name}: not run: {result.unavailable}\n" for result in results if result.unavailable]
    notes = [*_reasons(columns), *absent]
    return _TOOLS + _matrix(_tool_titles(results), columns) + ("\n" + "".join(notes) if notes else "")


def markdown(run: Run) -> str:
    """The page without tools: clients, the table, the reasons, and API versions; equal runs give equal pages."""
    sections = [
        _INTRODUCTION,
        "## Clients\n\n" + _clients(run.results),
        "## Scenarios\n\n" + _matrix(TITLES, _columns(run.results)) + _legend(_columns(run.results)),
        _GROUPS + _group_matrix(_group_columns(run.results)) + _legend(_group_columns(run.results)),
        "## API versions\n\n"
        "What the broker advertises, and the versions each client chose in this run.\n\n"
        + _versions(run.advertised, run.results),
        "## Running it again\n\n"
        "`make compat` sets up the clients in `.venv/compat` (kcat through the system's package manager), starts\n"
        "brokers on loopback, and rewrites this page. `make compat ARGS='--client kcat'` runs one client,\n"
        "`ARGS='--groups kill static'` these group scenarios alone (`--groups` all of them, `--list` names them),\n"
        "`ARGS=--tools` the tools alone, `ARGS=--logins` the logins alone, `ARGS=--registries` clients of the schema\n"
        "registry alone, of which it writes the section, and\n"
        "`ARGS='--bootstrap HOST:PORT'` uses a broker that is already running, which is not restarted then; all leave\n"
        "this page alone. With `--keep` the logs of the members stay.\n",
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


def _matrix(titles: Sequence[str], columns: Sequence[Column]) -> str:
    body = [[title, *(_cell(outcomes, title) for _, outcomes in columns)] for title in titles]
    return _rows(["scenario", *(name for name, _ in columns)], body)


def _group_matrix(columns: Sequence[Column]) -> str:
    body = [[name, *(_cell(outcomes, title) for title in GROUP_TITLES)] for name, outcomes in columns]
    return _rows(["client", *GROUP_TITLES], body)


def _legend(columns: Sequence[Column]) -> str:
    reasons = list(_reasons(columns))
    legend = "\nn/a: the client has no such function; later: it waits for a part of the broker.\n"
    return legend + ("\n" + "".join(reasons) if reasons else "")


def _reasons(columns: Sequence[Column]) -> Iterator[str]:
    for name, outcomes in columns:
        for outcome, titles in _noted(outcomes):
            yield f"- {name}, {outcome.status.value}: {outcome.note} ({titles})\n"


def _noted(outcomes: Mapping[str, Outcome]) -> Iterator[tuple[Outcome, str]]:
    """Each reason once, with the scenarios it holds for."""
    reasons: dict[str, list[str]] = {}
    for title, outcome in outcomes.items():
        if outcome.note:
            reasons.setdefault(outcome.note, []).append(title)
    for titles in reasons.values():
        few = len(titles) <= _MOST_TITLES
        yield outcomes[titles[0]], "; ".join(titles) if few else f"{len(titles)} scenarios"


def _versions(advertised: Advertised, results: Sequence[ClientResult]) -> str:
    keys = sorted(set(advertised) | {key for result in results for key, _ in result.seen})
    body = []
    for key in keys:
        low, high = advertised.get(key, (None, None))
        span = "-" if low is None else f"{low}-{high}"
        used = [", ".join(str(v) for k, v in sorted(result.seen) if k == key) for result in results]
        body.append([f"{key} {api_name(key)}", span, *used])
    return _rows(["API", "broker", *(result.name for result in results)], body)
