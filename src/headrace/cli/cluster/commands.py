"""`headrace cluster`: see how a cluster is, move partitions, empty brokers, level the load, elect leaders."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.client.errors import ClientError, UnknownTopic
from headrace.ops.health_reports import Unheard
from headrace.ops.moves import Replicas, drained, placed_on, rebalanced
from headrace.ops.overview import ClusterView
from headrace.protocol.topic_partition import TopicPartition

from .. import connecting
from ..console import ExitCode, Failure, bad_input, examples, note, say, say_json
from ..options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json
from ..watching import DEFAULT_INTERVAL, Interval, Watch, watching
from .elections import choices, elect_chosen, show_choices, values_of_choices
from .plans import amount, broker_list, brokers, read_plan, shown_bytes
from .reassignment import MoveOptions, carry_out, report_failures, values_of
from .tables import as_values, is_well, show

if TYPE_CHECKING:
    from headrace.ops.operations import Operations, Outcomes

app = typer.Typer(
    help="See how a cluster is, move partitions, empty brokers, level the load, elect leaders.",
    epilog=examples("headrace cluster describe", "headrace cluster rebalance --dry-run", "headrace cluster drain 3"),
    no_args_is_help=True,
)

_ROUNDS: Final = 5
"""Times that a broker is emptied anew of what was placed on it meanwhile."""
_CHECK: Final = "Exit with 1 unless every replica is in sync, and every broker answers and takes writes."
_NOT_NEEDED: Final = "ELECTION_NOT_NEEDED"

Throttle = Annotated[
    str | None,
    typer.Option("--throttle", metavar="BYTES", help="The most bytes a second to copy, for each broker: 10M, 5MiB."),
]
Wait = Annotated[bool, typer.Option("--wait", help="Return when everything has moved; shows how far it is.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would move, and change nothing.")]
PartitionNumbers = Annotated[
    list[int] | None, typer.Option("--partition", "-p", min=0, help="One partition of the topic; may be repeated.")
]
Topics = Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics, by name.")]


def _move_options(throttle: str | None, wait: bool, dry_run: bool, json: bool) -> MoveOptions:
    rate = None if throttle is None else amount(throttle, "--throttle")
    return MoveOptions(throttle=rate, wait=wait, dry_run=dry_run, json=json)


@app.command(
    epilog=examples(
        "headrace cluster describe",
        "headrace cluster describe --partitions",
        "headrace cluster describe --check --json",
        "headrace cluster describe --watch",
    )
)
def describe(
    partitions: Annotated[
        bool, typer.Option("--partitions", help="Every partition, not only those in trouble.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help=_CHECK)] = False,
    watch: Watch = False,
    interval: Interval = DEFAULT_INTERVAL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Show brokers and what each leads and holds, partitions in trouble, and moves under way."""
    if check and watch:
        raise bad_input("--check answers once; leave out --watch")
    with connecting.operations(bootstrap, properties) as operations:
        watching(lambda: _describe(operations, partitions, check, json), watch, interval, json=json)


def _describe(operations: "Operations", partitions: bool, check: bool, json: bool) -> None:
    view = operations.view()
    reports = operations.health(view)
    view = operations.with_versions(view, reports)
    heard = [broker for broker in view.racks if not isinstance(reports.get(broker), Unheard)]
    sizes = operations.sizes(heard)
    rate = operations.rate()
    if json:
        say_json(as_values(view, sizes, rate, reports))
    else:
        show(view, sizes, rate, reports, every_partition=partitions)
    if check and not is_well(view, reports):
        raise typer.Exit(ExitCode.FAILED)


@app.command(
    epilog=examples(
        "headrace cluster reassign orders --to 1,2,4 --wait",
        "headrace cluster reassign orders --partition 0 --to 4,1,2",
        "headrace cluster reassign orders --replication-factor 3",
        "headrace cluster reassign --file plan.json --throttle 10M --wait",
        "headrace cluster reassign --cancel",
    )
)
def reassign(
    topics: Topics = None,
    partition: PartitionNumbers = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="BROKERS", help="Who is to hold them, such as 1,2,3.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, help="How many replicas each is to have.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="A plan in the format of Kafka's own tool.")] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take moves back that are under way; all, or these.")
    ] = False,
    throttle: Throttle = None,
    wait: Wait = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Let other brokers hold partitions.

    With --partition, these have exactly the brokers of --to, the first as preferred leader. Else all partitions of the
    topics are spread over them, and replicas that are there already stay.
    """
    _refuse_mixtures(topics, partition, to, replication_factor, file, cancel)
    chosen = None if to is None else broker_list(to, "--to")
    written = None if file is None else read_plan(file)
    options = _move_options(throttle, wait, dry_run, json)
    with connecting.operations(bootstrap, properties) as operations:
        view = operations.view()
        asked = _requested_replicas(view, topics, partition, written)
        if cancel:
            _cancel(operations, view, asked, options)
            return
        plan = written if written is not None else _placed(view, asked, partition, chosen, replication_factor)
        _refuse_unknown_brokers(view, plan)
        carry_out(operations, view, {k: r for k, r in plan.items() if r != view.layout[k]}, options)


def _refuse_mixtures(
    topics: list[str] | None,
    partition: list[int] | None,
    to: str | None,
    replication_factor: int | None,
    file: Path | None,
    cancel: bool,
) -> None:
    if file is not None and (topics or partition or to or replication_factor):
        raise bad_input("--file says which partitions go where; leave topics, --partition and --to out")
    if partition and len(topics or ()) != 1:
        raise bad_input(
            "--partition needs one topic, such as `headrace cluster reassign orders --partition 0 --to 1,2`"
        )
    if cancel:
        if to or replication_factor:
            raise bad_input("--cancel takes moves back; leave --to and --replication-factor out")
    elif file is None and not topics:
        raise bad_input("which partitions? Name topics, or give a plan with --file")
    elif file is None and not to and not (replication_factor and not partition):
        raise bad_input("where to? Name brokers with --to, such as --to 1,2,3")


def _requested_replicas(
    view: ClusterView,
    topics: list[str] | None,
    partition: list[int] | None,
    written: dict[TopicPartition, Replicas] | None,
) -> dict[TopicPartition, Replicas]:
    """The partitions that are meant, as they are; all where none are named."""
    layout = view.layout
    if written is not None:
        chosen = list(written)
    elif partition:
        assert topics is not None
        chosen = [TopicPartition(topics[0], index) for index in dict.fromkeys(partition)]
    else:
        chosen = [key for key in layout if not topics or key[0] in topics]
    for topic in {*(topics or ()), *(topic for topic, _ in chosen)}:
        if all(topic != known for known, _ in layout):
            raise UnknownTopic(topic)
    for topic, index in chosen:
        if (topic, index) not in layout:
            raise ClientError(f"topic '{topic}' has no partition {index}", "UNKNOWN_TOPIC_OR_PART")
    return {key: layout[key] for key in chosen}


def _placed(
    view: ClusterView,
    current: dict[TopicPartition, Replicas],
    partition: list[int] | None,
    chosen: tuple[int, ...] | None,
    replication_factor: int | None,
) -> dict[TopicPartition, Replicas]:
    if partition:
        assert chosen is not None
        return dict.fromkeys(current, chosen)
    if chosen is not None:
        _refuse_unknown_brokers(view, {TopicPartition("", 0): chosen})
    return placed_on(current, view.racks, view.racks if chosen is None else chosen, replication_factor)


def _refuse_unknown_brokers(view: ClusterView, plan: dict[TopicPartition, Replicas]) -> None:
    unknown = sorted({broker for replicas in plan.values() for broker in replicas} - view.racks.keys())
    if unknown:
        raise Failure(f"broker {unknown[0]} is not alive; there are {brokers(sorted(view.racks))}")


def _cancel(
    operations: "Operations", view: ClusterView, replicas: dict[TopicPartition, Replicas], options: MoveOptions
) -> None:
    moving = [p for p in view.moving if p.key in replicas]
    if options.dry_run or not moving:
        outcomes: dict[TopicPartition, ClientError | None] = {p.key: None for p in moving}
    else:
        outcomes = operations.reassign(dict.fromkeys(p.key for p in moving))
    failed = {key: error for key, error in outcomes.items() if error is not None}
    if options.json:
        say_json({"state": "planned" if options.dry_run else "cancelled", "partitions": values_of(outcomes)})
    elif not moving:
        say("nothing moves")
    else:
        verb = "would be taken back" if options.dry_run else "taken back"
        say(f"{len(moving) - len(failed)} moves {verb}")
    report_failures(failed)


@app.command(
    epilog=examples(
        "headrace cluster drain 3 --dry-run",
        "headrace cluster drain 3 --wait --throttle 20M",
        "headrace cluster drain 3 4",
    )
)
def drain(
    broker: Annotated[list[int], typer.Argument(metavar="BROKER...", help="Brokers to empty, by number.")],
    throttle: Throttle = None,
    wait: Wait = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Move everything off brokers, so that they can be stopped and removed.

    The others hold and lead about the same each, racks are kept apart. A broker that is dead already is replaced.
    """
    leaving = set(broker)
    options = _move_options(throttle, wait, dry_run, json)
    with connecting.operations(bootstrap, properties) as operations:
        view = operations.view()
        unknown = sorted(leaving - {b.id for b in view.brokers})
        if unknown:
            raise Failure(f"there is no broker {unknown[0]}; there are {brokers(b.id for b in view.brokers)}")
        for _ in range(_ROUNDS):
            carry_out(operations, view, drained(view.layout, view.racks, leaving), options)
            if dry_run or not wait:
                return
            view = operations.view()
            if not any(view.held_by(one) for one in leaving):
                break
    if not json:
        say(f"broker {brokers(sorted(leaving))} holds nothing any more and can be stopped")


@app.command(
    epilog=examples("headrace cluster rebalance --dry-run", "headrace cluster rebalance --throttle 20M --wait")
)
def rebalance(
    throttle: Throttle = None,
    wait: Wait = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Level the load: replicas and leaders of each broker within 10 % of its share, with the fewest moves.

    A broker that was added gets its share. Replicas of a partition are spread over racks. What moves already, and what
    a broker holds that is not alive, stays as it is.
    """
    options = _move_options(throttle, wait, dry_run, json)
    with connecting.operations(bootstrap, properties) as operations:
        view = operations.view()
        frozen = {p.key for p in view.moving}
        carry_out(operations, view, rebalanced(view.layout, view.racks, frozen), options)


@app.command(
    epilog=examples(
        "headrace cluster elect",
        "headrace cluster elect orders",
        "headrace cluster elect --unclean --dry-run",
        "headrace cluster elect orders --partition 0 --unclean --replica 2 --yes",
    )
)
def elect(
    topics: Topics = None,
    partition: PartitionNumbers = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Let partitions be led that nobody leads; what the leader lacks is lost."),
    ] = False,
    replica: Annotated[
        int | None, typer.Option("--replica", metavar="BROKER", help="Who is to lead; else the longest log.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --unclean: show what each replica holds.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Let preferred replicas lead again; or, with --unclean, let partitions be led that nobody leads.

    An unclean election shows how far the log of each living replica reaches. Without topics it is for all partitions
    that nobody leads.
    """
    if partition and len(topics or ()) != 1:
        raise bad_input("--partition needs one topic, such as `headrace cluster elect orders --partition 0`")
    if not unclean and (replica is not None or dry_run):
        raise bad_input("--replica and --dry-run are for --unclean; preferred replicas are the first of their lists")
    with connecting.operations(bootstrap, properties) as operations:
        view = operations.view()
        chosen = _requested_replicas(view, topics, partition, None) if topics else None
        if not unclean:
            _report_elections(operations.elect(chosen), json)
            return
        leaderless = [p for p in view.partitions if p.leader is None and (chosen is None or p.key in chosen)]
        elections = choices(leaderless, operations.log_ends(leaderless), replica)
        if not json:
            show_choices(elections, len(leaderless) - len(elections))
        if dry_run:
            if json:
                say_json({"state": "planned", "choices": values_of_choices(elections)})
            return
        if elections and not yes:
            _confirm(topics)
        outcomes = elect_chosen(operations, elections, replica)
    _report_elections(outcomes, json, {"choices": values_of_choices(elections)})


def _report_elections(outcomes: "Outcomes", json: bool, more: "dict[str, Any] | None" = None) -> None:
    needless = {key for key, error in outcomes.items() if error is not None and error.code == _NOT_NEEDED}
    told = {key: error for key, error in outcomes.items() if key not in needless}
    failed = {key: error for key, error in told.items() if error is not None}
    if json:
        say_json({"elected": len(told) - len(failed), "partitions": values_of(told), **(more or {})})
    else:
        say(f"{len(told) - len(failed)} leaders elected")
    report_failures(failed)


def _confirm(topics: list[str] | None) -> None:
    what = ", ".join(topics) if topics else "all topics"
    if not sys.stdin.isatty():
        raise bad_input(f"an unclean election of {what} needs --yes, as there is no terminal to ask on")
    if not typer.confirm(f"Records of {what} that only other replicas have will be lost. Go on?", err=True):
        raise Failure("nothing was elected")


@app.command(epilog=examples("headrace cluster throttle 20M orders", "headrace cluster throttle off"))
def throttle(
    rate: Annotated[
        str, typer.Argument(metavar="BYTES|off", help="The most bytes a second for each broker: 10M, 5MiB.")
    ],
    topics: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Hold replicas that catch up to a rate, or hold nobody any more.

    Without topics it holds for those that move now. Replicas that are in sync are never held back.
    """
    limit = None if rate == "off" else amount(rate, "BYTES")
    with connecting.operations(bootstrap, properties) as operations:
        if limit is None:
            held = operations.unthrottle()
        else:
            view = operations.view()
            asked = _requested_replicas(view, topics, None, None) if topics else {p.key: () for p in view.moving}
            held = sorted({topic for topic, _ in asked})
            operations.throttle(limit, held)
    if json:
        say_json({"throttle": limit, "topics": held})
    elif limit is None:
        say("no limit")
    else:
        say(f"{shown_bytes(limit)}/s for {', '.join(held) or 'what is throttled already'}")
        note("the limit stays until `headrace cluster throttle off`")


@app.command(
    epilog=examples(
        "headrace cluster restart --node /var/lib/headrace",
        "headrace cluster restart 101 102 --node /var/lib/headrace",
        "headrace cluster restart --with 'ssh {host} headrace cluster restart {broker} --node /var/lib/headrace'",
        "headrace cluster restart --with 'ssh {host} sudo systemctl restart headrace-broker' --dry-run",
    )
)
def restart(
    broker: Annotated[
        list[int] | None, typer.Argument(metavar="[BROKER]...", help="Brokers, by number.", show_default="all")
    ] = None,
    node: Annotated[
        list[Path] | None,
        typer.Option(
            "--node",
            envvar="HEADRACE_NODE",
            help="The data directory, or control socket, of a `headrace node` on this machine; may be repeated.",
        ),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--with",
            metavar="COMMAND",
            help="Restarts a broker, and ends when it serves again; {broker} {host} {port} {rack} are filled in.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that one step may take.")] = 600.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the order, and restart nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Rolling restart: one broker after the other, the controller last, each step waiting for the full ISR.

    Without --with it asks the supervisor of the node on this machine, by its control socket, to restart its brokers; do
    so on each machine. With --with it restarts brokers of the whole cluster, by a command of yours. It stops at the
    first step that does not succeed in time.
    """
    from .restart import RestartOptions, RollingRestart, restarter_for

    restarter = restarter_for(node or (), command)
    options = RestartOptions(step_seconds=timeout, dry_run=dry_run, json=json)
    with connecting.operations(bootstrap, properties) as operations:
        RollingRestart(operations, restarter, options).run(broker or ())
