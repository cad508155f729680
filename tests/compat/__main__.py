"""`python -m tests.compat`: run the clients, print the table, write `docs/compatibility.md`."""

import argparse
import logging
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rich.console import Console

from .broker import WITH_ACLS, BrokerError, OwnBroker
from .groups.runner import GroupSuite
from .groups.scenarios import GROUP_SCENARIOS
from .logins.suite import CLIENTS as LOGIN_CLIENTS
from .logins.suite import LoginResult, run_logins
from .provision import CLIENTS
from .registries.suite import RegistryResult, run_registries
from .report import (
    markdown,
    show,
    show_logins,
    show_registries,
    show_tools,
    with_logins,
    with_registries,
    with_tools,
)
from .runner import TITLES, Status, Suite
from .tools import ToolResult, run_tools

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "compatibility.md"
_PLAIN_WIDTH = 180
_CACHE = Path(sys.prefix) / "compat"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description="Run real clients against a broker.")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="use this broker instead of starting one")
    parser.add_argument(
        "--client", action="append", choices=list({**CLIENTS, **LOGIN_CLIENTS}), help="only this client (repeatable)"
    )
    parser.add_argument("--keep", action="store_true", help="leave topics, broker data and logs for a look")
    parser.add_argument("--list", action="store_true", help="name the clients and the scenarios, and stop")
    parser.add_argument("--groups", nargs="*", metavar="NAME", help="only group scenarios: these, or all of them")
    parser.add_argument("--tools", action="store_true", help="only the tools for operators: Kafka's own, kafkactl")
    parser.add_argument("--logins", action="store_true", help="only logins: TLS, every mechanism, what is refused")
    parser.add_argument("--registries", action="store_true", help="only clients of the schema registry")
    parser.add_argument("--page", type=Path, help="write the page here, whatever broker and clients were used")
    return parser.parse_args()


def main() -> int:
    """Exit code 0 when nothing failed, 1 when a scenario did, 2 when there was no broker to try."""
    arguments = _arguments()
    console = Console() if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH)
    if arguments.list:
        console.print("clients:", ", ".join(CLIENTS))
        console.print("scenarios:", *TITLES, sep="\n  ")
        console.print("group scenarios:", *(f"{one.slug}: {one.title}" for one in GROUP_SCENARIOS), sep="\n  ")
        return 0
    # Clients report reconnects and deprecations of their own; a scenario that suffers from them says so.
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    work = Path(tempfile.mkdtemp(prefix="headrace-compat-"))
    try:
        return _run(arguments, work, console)
    except BrokerError as error:
        console.print(str(error), style="bold red", markup=False)
        return 2
    finally:
        if arguments.keep:
            console.print(f"kept: {work}", markup=False)
        else:
            shutil.rmtree(work, ignore_errors=True)


def _run_tools(arguments: argparse.Namespace, work: Path, console: Console) -> list[ToolResult]:
    say = partial(console.print, markup=False, highlight=False)
    with ExitStack() as cleanup:
        bootstrap = arguments.bootstrap or cleanup.enter_context(OwnBroker(work / "tools", WITH_ACLS)).address
        results = run_tools(bootstrap, _CACHE, work, say)
    show_tools(results, console)
    return results


def _run_logins(arguments: argparse.Namespace, work: Path, console: Console) -> list[LoginResult]:
    say = partial(console.print, markup=False, highlight=False)
    results = run_logins(work, _CACHE, say, arguments.client or ())
    show_logins(results, console)
    return results


def _run_logins_alone(arguments: argparse.Namespace, work: Path, console: Console) -> int:
    logins = _run_logins(arguments, work, console)
    page = arguments.page or _PAGE
    if not arguments.client and not any(result.unavailable for result in logins):
        page.write_text(with_logins(page.read_text(), logins))
        console.print(f"written: {page}", markup=False)
    return 1 if _has_failed(logins) else 0


def _run_registries(arguments: argparse.Namespace, work: Path, console: Console) -> list[RegistryResult]:
    say = partial(console.print, markup=False, highlight=False)
    with ExitStack() as cleanup:
        bootstrap = arguments.bootstrap or cleanup.enter_context(OwnBroker(work / "registries")).address
        results = run_registries(bootstrap, work, _CACHE, say)
    show_registries(results, console)
    return results


def _run_registries_alone(arguments: argparse.Namespace, work: Path, console: Console) -> int:
    results = _run_registries(arguments, work, console)
    page = arguments.page or _PAGE
    if not any(result.unavailable for result in results):
        page.write_text(with_registries(page.read_text(), results))
        console.print(f"written: {page}", markup=False)
    return 1 if _has_failed(results) else 0


def _has_failed(results: Sequence[ToolResult | LoginResult | RegistryResult]) -> bool:
    return any(outcome.status is Status.FAILED for result in results for outcome in result.outcomes.values())


def _run(arguments: argparse.Namespace, work: Path, console: Console) -> int:
    if arguments.logins:
        return _run_logins_alone(arguments, work, console)
    if arguments.registries:
        return _run_registries_alone(arguments, work, console)
    if arguments.tools:
        tools = _run_tools(arguments, work, console)
        page = arguments.page or _PAGE
        if not any(result.unavailable for result in tools):
            page.write_text(with_tools(page.read_text(), tools))
            console.print(f"written: {page}", markup=False)
        return 1 if _has_failed(tools) else 0
    chosen = {name: prepare for name, prepare in CLIENTS.items() if name in (arguments.client or CLIENTS)}
    say = partial(console.print, markup=False, highlight=False)
    with ExitStack() as cleanup:
        bootstrap = arguments.bootstrap or cleanup.enter_context(OwnBroker(work)).address
        suite = Suite(bootstrap, _CACHE, work, say)
        run = suite.run(chosen, keep=arguments.keep, ask=arguments.groups is None)
    GroupSuite(arguments.bootstrap, work, say, arguments.keep).run(run.results, arguments.groups or ())
    show(run, console)
    whole = len(chosen) == len(CLIENTS) and arguments.groups is None
    tools = _run_tools(arguments, work, console) if whole else []
    logins = _run_logins(arguments, work, console) if whole and arguments.bootstrap is None else []
    registries = _run_registries(arguments, work, console) if whole else []
    complete = arguments.bootstrap is None and whole and not run.incomplete
    page = arguments.page or (_PAGE if complete else None)
    if page is None:
        console.print("the page is not written: that takes a broker of our own and every client")
    else:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(with_registries(with_logins(with_tools(markdown(run), tools), logins), registries))
        console.print(f"written: {page}", markup=False)
    return 1 if run.failed or _has_failed([*tools, *logins, *registries]) else 0


if __name__ == "__main__":
    sys.exit(main())
