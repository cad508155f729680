"""`headrace group`: list, describe, move and delete groups: of consumers, and share groups."""

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headrace.client.errors import ClientError
from headrace.ops.groups import CommitProgress, GroupAdmin, GroupDescription, GroupOverview, unknown_group
from headrace.protocol.topic_partition import TopicPartition

from .. import connecting
from ..console import (
    ExitCode,
    Failure,
    Marked,
    bad_input,
    coloured,
    doubtful,
    examples,
    note,
    say,
    say_json,
    say_table,
)
from ..options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json
from ..positions import parse_position
from ..watching import DEFAULT_INTERVAL, Interval, Watch, watching
from .reset import Move, TopicChoice, parse_topic, plan

if TYPE_CHECKING:
    from headrace.ops.share_groups import ShareGroupDescription, ShareGroupOperations, ShareProgress

app = typer.Typer(
    help="List, describe, move and delete groups: of consumers, and share groups.",
    epilog=examples("headrace group describe billing", "headrace group reset billing --topic orders --to earliest"),
    no_args_is_help=True,
)

_TOPICS_SHOWN: Final = 3
_NOT_FOUND: Final = "GROUP_ID_NOT_FOUND"

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group, by its group.id.")]
Groups = Annotated[list[str], typer.Argument(metavar="GROUP", help="Groups, by their group.id.")]


@app.command(
    "list",
    epilog=examples(
        "headrace group list", "headrace group list --state empty --json", "headrace group list --lagging --watch"
    ),
)
def list_(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only groups in this state; may be repeated.")
    ] = None,
    lagging: Annotated[bool, typer.Option("--lagging", help="Only groups that have lag, the most first.")] = False,
    watch: Watch = False,
    interval: Interval = DEFAULT_INTERVAL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """List groups with their state, members, topics and lag.

    Lag counts from the start of the log in partitions of these topics for which the group has committed nothing. Of a
    share group it is what is not acknowledged or given up.
    """
    wanted = {each.lower() for each in state or ()}
    admin = connecting.group_admin(bootstrap, properties)
    shares = connecting.share_group_operations(bootstrap, properties)

    def show() -> None:
        shared = [group for group in shares.list_groups() if not wanted or group.state.lower() in wanted]
        known = {group.group for group in shared}
        listed = [group for group in admin.list_groups() if group.group not in known]
        groups = admin.overviews(group for group in listed if not wanted or group.state.lower() in wanted)
        groups = sorted([*groups, *shares.overviews(shared)], key=lambda group: group.group)
        if lagging:
            groups = sorted((g for g in groups if g.lag), key=lambda g: -(g.lag or 0))
        if json:
            say_json([asdict(group) for group in groups])
        elif groups:
            say_table(("GROUP", "STATE", "TYPE", "MEMBERS", "TOPICS", "LAG"), [_row(group) for group in groups])
        else:
            _say_none(state, lagging)

    watching(show, watch, interval, json=json)


def _row(group: GroupOverview) -> tuple[object, ...]:
    topics = ", ".join(group.topics[:_TOPICS_SHOWN]) + (", …" if len(group.topics) > _TOPICS_SHOWN else "")
    lag = "-" if group.lag is None else group.lag
    is_left = group.lag and not group.members
    members = _or_dash(group.members)
    return (group.group, _state(group.state), group.type, members, topics or "-", doubtful(lag) if is_left else lag)


def _state(state: str) -> str:
    return state if state in ("Stable", "Empty") else doubtful(state)


def _say_none(state: list[str] | None, lagging: bool) -> None:
    if lagging:
        note("no group has lag")
    elif state:
        note(f"no groups in state {', '.join(state)}")
    else:
        note("no groups yet; they come with their first consumer")


@app.command(
    epilog=examples(
        "headrace group describe billing",
        "headrace group describe billing --watch",
        "headrace group describe billing --json",
    )
)
def describe(
    groups: Groups,
    watch: Watch = False,
    interval: Interval = DEFAULT_INTERVAL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Show members, what each of them reads, and the lag per partition and in total.

    All partitions of the topics that the group reads are shown. Where it has committed nothing, `-`, the lag is
    everything from the start of the log, as a consumer with auto.offset.reset=earliest would read it. A share group is
    done with everything before START; its lag is what is not acknowledged or given up from there on.
    """
    admin = connecting.group_admin(bootstrap, properties)

    def find(group: str) -> "GroupDescription | ShareGroupDescription":
        try:
            return admin.describe_group(group)
        except ClientError as error:
            if error.code != _NOT_FOUND:
                raise
            return connecting.share_group_operations(bootstrap, properties).describe_group(group)

    def show() -> None:
        described = [find(group) for group in dict.fromkeys(groups)]
        if json:
            say_json([_as_json(group) for group in described])
            return
        for position, group in enumerate(described):
            if position:
                say("")
            if isinstance(group, GroupDescription):
                _show(group)
            else:
                _show_shared(group)

    watching(show, watch, interval, json=json)


def _as_json(group: "GroupDescription | ShareGroupDescription") -> dict[str, object]:
    if not isinstance(group, GroupDescription):
        return {**asdict(group), "lag": group.lag}
    partitions = [{**asdict(progress), "lag": progress.lag} for progress in group.partitions]
    return {**asdict(group), "partitions": partitions, "lag": group.lag}


def _show_shared(group: "ShareGroupDescription") -> None:
    _show_head(group, str(group.lag))
    if group.partitions:
        say_table(
            ("TOPIC", "PARTITION", "START", "LAG"),
            [(p.topic, p.partition, _or_dash(p.start), _shared_lag(group, p)) for p in group.partitions],
        )


def _shared_lag(group: "ShareGroupDescription", progress: "ShareProgress") -> str:
    """Lag that nobody is there to work off stands out."""
    shown = _or_dash(progress.lag)
    return doubtful(shown) if progress.lag and not group.members else shown


def _show_head(group: "GroupDescription | ShareGroupDescription", lag: str) -> None:
    say(f"group        {group.group}")
    say(f"state        {_lined(_state(group.state))} ({group.type})")
    if group.assignor:
        say(f"assignor     {group.assignor}")
    say(f"coordinator  {group.coordinator}")
    say(f"lag          {lag}")
    if group.members:
        say_table(
            ("MEMBER", "CLIENT", "HOST", "PARTITIONS"),
            [(m.member, m.client, m.host, _shown(m.partitions)) for m in group.members],
        )


def _show(group: GroupDescription) -> None:
    _show_head(group, _total(group))
    if group.partitions:
        say_table(
            ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"),
            [
                (p.topic, p.partition, _or_dash(p.committed), _or_dash(p.end), _lag(p), p.member or "-")
                for p in group.partitions
            ],
        )


def _total(group: GroupDescription) -> str:
    missing = group.uncommitted
    if not missing:
        return str(group.lag)
    records = sum(progress.lag or 0 for progress in missing)
    where = "1 partition" if len(missing) == 1 else f"{len(missing)} partitions"
    return f"{group.lag}, of which {records} in {where} without a commit"


def _lag(progress: CommitProgress) -> str:
    """Lag that nobody is there to work off stands out."""
    shown = _or_dash(progress.lag)
    return doubtful(shown) if progress.lag and progress.member is None else shown


def _lined(text: str) -> str:
    return coloured(text) if isinstance(text, Marked) else text


def _shown(partitions: tuple[TopicPartition, ...]) -> str:
    topics: dict[str, list[str]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(str(partition))
    return "  ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in topics.items()) or "-"


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


@app.command(
    epilog=examples(
        "headrace group reset billing --topic orders --to earliest",
        "headrace group reset billing --topic orders:0,2-4 --to 2026-01-31T12:00 --execute",
        "headrace group reset billing --all-topics --shift -100 --execute",
    )
)
def reset(
    group: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:PARTITIONS]", help="A topic, or some partitions of it; may be repeated."
        ),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="Every topic the group has committed for.")] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="POSITION",
            help="earliest, latest, an offset, the last N (-10), a time, or a time ago (-1h).",
        ),
    ] = None,
    shift: Annotated[
        int | None, typer.Option("--shift", metavar="N", help="By N records from where the group is; -N goes back.")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it. Without, it only shows what would change.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change; the default.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Move a group that has no members to other offsets.

    A share group forgets what was acknowledged out of order from there on.
    """
    if execute and dry_run:
        raise bad_input("--execute and --dry-run exclude each other; keep one")
    if (to is None) == (shift is None):
        raise bad_input("say where to: either --to POSITION or --shift N")
    if bool(topic) == all_topics:
        raise bad_input("say which topics: either --topic TOPIC or --all-topics")
    position = None if to is None else parse_position(to, "--to", time.time_ns() // 1_000_000)
    choices: list[TopicChoice] = [parse_topic(each, "--topic") for each in topic or ()]
    admin = connecting.group_admin(bootstrap, properties)
    mover: GroupAdmin | ShareGroupOperations = admin
    at = admin.committed_offsets(group)
    if not at and not _is_known(admin, group):
        shares = connecting.share_group_operations(bootstrap, properties)
        if shares.exists(group):
            mover, at = shares, shares.start_offsets(group)
        elif all_topics:
            raise unknown_group(group)
    moves = plan(admin, group, at, choices, position, shift)
    if execute:
        _refuse_members(mover, group)
        mover.move(group, {TopicPartition(move.topic, move.partition): move.to for move in moves if move.changes})
    _report_moves(moves, execute, json)


def _is_known(admin: GroupAdmin, group: str) -> bool:
    """Whether it is a group of consumers."""
    try:
        return admin.exists(group)
    except ClientError as error:
        if error.code != _NOT_FOUND:
            raise
        return False


def _refuse_members(admin: "GroupAdmin | ShareGroupOperations", group: str) -> None:
    count = admin.member_count(group)
    if count:
        raise Failure(f"group '{group}' has {count} member(s), whose own commits would undo this; stop them first")


def _report_moves(moves: list[Move], executed: bool, json: bool) -> None:
    if json:
        say_json({"executed": executed, "partitions": [{**asdict(move), "change": move.change} for move in moves]})
        return
    say_table(
        ("TOPIC", "PARTITION", "FROM", "TO", "CHANGE"),
        [(m.topic, m.partition, _or_dash(m.at), m.to, "-" if m.change is None else f"{m.change:+d}") for m in moves],
    )
    if not executed:
        note("nothing was changed; add --execute to do it")


@app.command(epilog=examples("headrace group delete billing", "headrace group delete billing audit --yes"))
def delete(
    groups: Groups,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Delete groups that have no members, and what they have committed."""
    names = list(dict.fromkeys(groups))
    if not yes:
        _confirm(names)
    _report_deleted(connecting.group_admin(bootstrap, properties).delete_groups(names), json)


def _confirm(names: list[str]) -> None:
    if not sys.stdin.isatty():
        raise bad_input(f"deleting {', '.join(names)} needs --yes, as there is no terminal to ask on")
    what = f"group '{names[0]}'" if len(names) == 1 else f"{len(names)} groups ({', '.join(names)})"
    if not typer.confirm(f"Delete {what} and the offsets committed?", err=True):
        raise Failure("nothing was deleted")


def _report_deleted(results: Mapping[str, ClientError | None], json: bool) -> None:
    if json:
        say_json(
            [
                {"group": name, "state": "deleted"}
                if error is None
                else {"group": name, "state": "failed", "error": _reason(error), "code": error.code}
                for name, error in results.items()
            ]
        )
    for name, error in results.items():
        if error is not None:
            note(f"headrace: group '{name}': {_reason(error)}")
        elif not json:
            say(f"{name}: deleted")
    if any(results.values()):
        raise typer.Exit(ExitCode.FAILED)


def _reason(error: ClientError) -> str:
    if error.code == "NON_EMPTY_GROUP":
        return "it has members; stop them first"
    if error.code == _NOT_FOUND:
        return "it does not exist; `headrace group list` shows those that do"
    return error.message
