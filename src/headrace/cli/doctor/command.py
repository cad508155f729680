"""`headrace doctor`: is this machine fit to run a broker, and is that cluster well?"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.client.errors import ClientError

from .. import connecting
from ..client_options import names_a_cluster
from ..console import ExitCode, bad_input, examples, say, say_json
from ..options import DEFAULT_BOOTSTRAP, ClientProperties, Json

if TYPE_CHECKING:
    from headrace.ops.inspection import Inspection, InspectionScope

    from .cluster import Thresholds
    from .machine import Finding

_COLORS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}
WARNING, CRITICAL = 1, 2
"""Exit codes of a cluster's checks; those of monitoring plugins."""
_NAMES: Final = (
    "brokers",
    "listeners",
    "partitions",
    "store",
    "gateways",
    "disk",
    "clock",
    "limits",
    "versions",
    "settings",
    "groups",
    "transactions",
)


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace doctor --data /var/lib/headrace",
            "headrace doctor --store zookeeper://zk1:2181,zk2:2181,zk3:2181",
            "headrace doctor --bootstrap 10.0.0.1:9092 --gateway http://10.0.0.1:8080",
            "headrace doctor --cluster --json",
            "headrace doctor --cluster --check disk --check partitions",
            "headrace doctor --cluster --skip settings --max-lag 1000000",
        )
        + "\n\nExit codes: of a cluster 0 well, 1 warnings, 2 critical (or wrong usage), 3 no broker answers; of this "
        "machine 0 fit, 1 a check failed."
    )(doctor)


def doctor(
    data: Annotated[Path, typer.Option("--data", help="The data directory to look at.")] = Path("data"),
    kafka_port: Annotated[int, typer.Option(min=1, max=65535, help="The port the broker is to have.")] = 9092,
    http_port: Annotated[int, typer.Option(min=1, max=65535, help="The port the gateway is to have.")] = 8080,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="zookeeper://H:P,H:P",
            help="The ZooKeeper servers to look at.",
            show_default="of a cluster, those of its brokers",
        ),
    ] = None,
    cluster: Annotated[
        bool | None,
        typer.Option(
            "--cluster/--machine",
            help="Check a cluster, or this machine.",
            show_default="a cluster where -b, -F, --profile or HEADRACE_BOOTSTRAP names one",
        ),
    ] = None,
    gateway: Annotated[
        list[str] | None, typer.Option("--gateway", metavar="URL", help="A gateway to ask, too; may be repeated.")
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="NAME", help=f"Only this of a cluster's checks: {', '.join(_NAMES)}."),
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="NAME", help="Not this check; may be repeated.")
    ] = None,
    max_lag: Annotated[
        int, typer.Option("--max-lag", min=1, help="Records that a group may be behind; a tenth if that grows.")
    ] = 100_000,
    max_transaction_age: Annotated[
        float, typer.Option("--max-transaction-age", min=0, metavar="SECONDS", help="How long one may be open.")
    ] = 900.0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, max=60, help="Seconds that a server may take for an answer.")
    ] = 1.5,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap",
            "-b",
            envvar="HEADRACE_BOOTSTRAP",
            metavar="HOST:PORT",
            help="Brokers of the cluster to check, by commas.",
        ),
    ] = None,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Check a cluster, or this machine, and say what to do about what is wrong.

    Of a cluster: what each broker says of itself, partitions, ZooKeeper, gateways, disks, clocks beside this machine's,
    limits, versions, settings that endanger records, groups that are behind, transactions that hang. Comes to an end
    within seconds, whatever is down, with an exit code for monitoring.

    Of this machine: limits, memory, disk, clock, ports, libraries, the data directory, and ZooKeeper if asked.

    Changes nothing.
    """
    if cluster is False or (cluster is None and bootstrap is None and not names_a_cluster()):
        _refuse_for_machine(gateway, check, skip)
        _check_machine(data, kafka_port, http_port, store, json)
        return
    from .cluster import Thresholds
    from .gateways import checked_url

    chosen = _chosen(check, skip)
    urls = [checked_url(url) for url in gateway or ()]
    thresholds = Thresholds(lag=max_lag, transaction_seconds=max_transaction_age)
    _check_cluster(bootstrap or DEFAULT_BOOTSTRAP, properties, chosen, urls, store, thresholds, timeout, json)


def _refuse_for_machine(*of_clusters: list[str] | None) -> None:
    if any(of_clusters):
        raise bad_input("--gateway, --check and --skip are for a cluster; name one with --bootstrap, or give --cluster")


def _chosen(check: list[str] | None, skip: list[str] | None) -> list[str]:
    for option, names in (("--check", check), ("--skip", skip)):
        for name in names or ():
            if name not in _NAMES:
                raise bad_input(f"{option} '{name}' is no check; there are {', '.join(_NAMES)}")
    chosen = [name for name in _NAMES if (not check or name in check) and name not in (skip or ())]
    if not chosen:
        raise bad_input("--check and --skip leave nothing to check")
    return chosen


def _check_machine(data: Path, kafka_port: int, http_port: int, store: str | None, json: bool) -> None:
    from .data_directory import check_directory, check_port
    from .machine import Status, check_disk, check_machine
    from .zookeeper import check_store

    def findings() -> "Iterator[Finding]":
        yield from check_machine()
        yield from check_disk(data)
        yield from check_directory(data)
        yield check_port("broker", kafka_port)
        yield check_port("gateway", http_port)
        if store is not None:
            yield from check_store(store)

    found = _shown(findings(), json)
    failed = any(finding.status is Status.FAIL for finding in found)
    if json:
        say_json({"ok": not failed, "checks": [asdict(finding) for finding in found]})
    if failed:
        raise typer.Exit(ExitCode.FAILED)


def _shown(findings: "Iterable[Finding]", json: bool) -> "list[Finding]":
    """All of them, shown as they come unless they are for a program."""
    shown = []
    for finding in findings:
        shown.append(finding)
        if not json:
            status = typer.style(f"{finding.status:<5}", fg=_COLORS[finding.status])
            say(f"{status} {finding.check:<16} {finding.found}")
            if finding.advice:
                say(f"{'':<22} -> {finding.advice}")
    return shown


def _check_cluster(
    bootstrap: str,
    properties: list[str] | None,
    chosen: list[str],
    gateways: list[str],
    store: str | None,
    thresholds: "Thresholds",
    seconds: float,
    json: bool,
) -> None:
    from headrace.client.waiting import in_background
    from headrace.ops.inspection import InspectionScope

    from .gateways import check_gateways
    from .machine import Status

    if store is not None:
        from .zookeeper import parse_servers

        parse_servers(store)
    scope = InspectionScope(
        settings=bool({"settings", "partitions", "store"}.intersection(chosen)),
        groups="groups" in chosen,
        transactions="transactions" in chosen,
        older_than_ms=round(thresholds.transaction_seconds * 1000),
    )
    asked = in_background(lambda: list(check_gateways(gateways if "gateways" in chosen else [], 2 * seconds)))
    inspection = _inspected(bootstrap, properties, scope, seconds)

    def findings() -> "Iterator[Finding]":
        from .cluster import CHECKS

        for name in chosen:
            if name == "store":
                yield from _store_findings(inspection, store, seconds)
            elif name == "gateways":
                yield from asked.result()
            elif inspection.last.view is not None or name == "brokers":
                yield from CHECKS[name](inspection, thresholds)

    findings_shown = _shown(findings(), json)
    failures = sum(finding.status is Status.FAIL for finding in findings_shown)
    warnings = sum(finding.status is Status.WARN for finding in findings_shown)
    is_reached = inspection.last.is_reached
    code = ExitCode.UNREACHABLE if not is_reached else CRITICAL if failures else WARNING if warnings else ExitCode.OK
    if json:
        view = inspection.last.view
        values = {
            "ok": code == ExitCode.OK,
            "status": {0: "ok", WARNING: "warning", CRITICAL: "critical"}.get(int(code), "unreachable"),
            "exit_code": int(code),
            "cluster_id": None if view is None else view.cluster_id,
            "checks": [asdict(finding) for finding in findings_shown],
        }
        say_json(values)
    else:
        say(_summary(int(code), failures, warnings, inspection))
    if code:
        raise typer.Exit(int(code))


def _inspected(bootstrap: str, properties: list[str] | None, scope: "InspectionScope", seconds: float) -> "Inspection":
    """What was read; a cluster that lets nobody in is one of which nothing is known."""
    from headrace.ops.inspection import Inspection, inspect
    from headrace.ops.samples import ClusterSample

    try:
        observer = connecting.observer(bootstrap, properties, seconds)
    except ClientError as error:
        raise bad_input(error.message) from error
    with observer:
        try:
            return inspect(observer, scope)
        except ClientError as error:
            nothing = ClusterSample(at=0.0, reason=error.message)
            return Inspection(first=nothing, last=nothing)


def _store_findings(inspection: "Inspection", store: str | None, seconds: float) -> "Iterator[Finding]":
    """The ZooKeeper servers; by what brokers say where this machine is not to reach them."""
    from .cluster import store_of, store_problems
    from .machine import ok, warn
    from .zookeeper import ask_servers, assess_store, parse_servers

    reported = list(store_problems(inspection))
    yield from reported
    url = store or store_of(inspection)
    if url is None:
        if inspection.last.view is None:
            yield warn("store", "not known", "name the ZooKeeper servers with --store")
        elif not reported:
            yield ok("store", "brokers name no ZooKeeper servers")
        return
    states = ask_servers(parse_servers(url), seconds)
    if store is None and not reported and all(state.reason for state in states):
        text = f"this machine does not reach {', '.join(str(state.address) for state in states)}; the brokers do"
        yield warn("store", text, "run this where the brokers run, name other addresses with --store, or --skip store")
        return
    for finding in assess_store(states):
        yield replace(finding, check="store")


def _summary(code: int, failures: int, warnings: int, inspection: "Inspection") -> str:
    if code == ExitCode.UNREACHABLE:
        return typer.style("unreachable: no broker answers", fg="red")
    counts = f"{failures} critical, {warnings} warnings"
    view = inspection.last.view
    about = "" if view is None else f" (cluster {view.cluster_id}, {len(view.brokers)} brokers)"
    status = "critical" if failures else "warning" if warnings else "ok"
    return typer.style(f"{status}: {counts}{about}", fg="red" if failures else "yellow" if warnings else "green")
