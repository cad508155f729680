"""`headrace queue`: share groups as queues, and what they have given up."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from headrace.client.errors import ClientError

from . import connecting, dlq
from .console import bad_input, doubtful, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json
from .watching import DEFAULT_INTERVAL, Interval, Watch, watching

if TYPE_CHECKING:
    from headrace.ops.configs import ConfigOperations
    from headrace.ops.share_groups import ShareGroupDescription

app = typer.Typer(
    help="See queues (share groups), what waits in them, and what they have given up.",
    epilog=examples(
        "headrace queue list",
        "headrace queue show workers",
        "headrace queue redrive workers --reason rejected",
    ),
    no_args_is_help=True,
)

LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
MOST_COUNTED: Final = 100_000
"""Records of a topic of dead letters that `show` reads to count the letters in them: more take too long."""
_DASH: Final = "-"
_UNKNOWN: Final = frozenset({"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_OR_PARTITION"})

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue, by its group.id.")]


@app.command("list", epilog=examples("headrace queue list", "headrace queue list --waiting --json"))
def list_(
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Only queues in which records wait, the most first.")
    ] = False,
    watch: Watch = False,
    interval: Interval = DEFAULT_INTERVAL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """List queues with their members, their topics, how many records wait or are out, and where dead letters go."""
    shares = connecting.share_group_operations(bootstrap, properties)
    configs = connecting.config_operations(bootstrap, properties)

    def show_all() -> None:
        found = shares.overviews(shares.list_groups())
        if waiting:
            found = sorted((each for each in found if each.lag), key=lambda each: -(each.lag or 0))
        rows = [
            {
                "queue": each.group,
                "state": each.state,
                "members": each.members,
                "topics": list(each.topics),
                "waiting": each.lag,
                "dead_letters": _settings(configs, each.group).get(LETTER_TOPIC) or None,
            }
            for each in found
        ]
        if json:
            say_json(rows)
        elif rows:
            say_table(("QUEUE", "STATE", "MEMBERS", "TOPICS", "WAITING", "DEAD LETTERS"), [_row(row) for row in rows])
        else:
            note("no records wait in any queue" if waiting else "no queues yet; they come with their first member")

    watching(show_all, watch, interval, json=json)


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    left = row["waiting"] and not row["members"]
    waiting = _or_dash(row["waiting"])
    return (
        row["queue"],
        row["state"] if row["state"] in ("Stable", "Empty") else doubtful(row["state"]),
        _or_dash(row["members"]),
        ", ".join(row["topics"]) or _DASH,
        doubtful(waiting) if left else waiting,
        row["dead_letters"] or _DASH,
    )


def _or_dash(value: object) -> object:
    return _DASH if value is None else value


@app.command(epilog=examples("headrace queue show workers", "headrace queue show workers --watch"))
def show(
    queue: Queue,
    watch: Watch = False,
    interval: Interval = DEFAULT_INTERVAL,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Show a queue: its members, where it is in each partition, its own settings, and its dead letters.

    It is done with everything before START; what waits is what is not accepted or given up from there on, also while a
    member has it. Dead letters are counted where their topic has up to 100,000 records.
    """
    shares = connecting.share_group_operations(bootstrap, properties)
    configs = connecting.config_operations(bootstrap, properties)

    def show_one() -> None:
        described = shares.describe_group(queue)
        settings = _settings(configs, queue)
        topic = settings.get(LETTER_TOPIC)
        letters = None if not topic else _count(bootstrap, properties, topic, queue)
        if json:
            values = {**asdict(described), "waiting": described.lag, "settings": settings}
            say_json({**values, "dead_letters": topic and {"topic": topic, **_told(letters)}})
        else:
            _say(described, settings, topic, letters)

    watching(show_one, watch, interval, json=json)


class _Letters(NamedTuple):
    """How many letters of a queue nobody has dealt with."""

    number: int
    is_exact: bool
    """Or there are no more of them."""


def _told(letters: _Letters | None) -> dict[str, int | None]:
    if letters is None or letters.is_exact:
        return {"letters": None if letters is None else letters.number}
    return {"letters": None, "at_most": letters.number}


def _say(
    described: "ShareGroupDescription", settings: dict[str, str], topic: str | None, letters: _Letters | None
) -> None:
    say(f"queue {described.group}: {described.state}, {described.lag} waiting")
    for name, value in settings.items():
        say(f"  {name}={value}")
    if described.members:
        say_table(
            ("MEMBER", "CLIENT", "HOST", "PARTITIONS"),
            [
                (each.member, each.client, each.host, ", ".join(f"{t}-{p}" for t, p in each.partitions) or _DASH)
                for each in described.members
            ],
        )
    else:
        note("no members")
    if described.partitions:
        rows = [(e.topic, e.partition, _or_dash(e.start), _or_dash(e.lag)) for e in described.partitions]
        say_table(("TOPIC", "PARTITION", "START", "WAITING"), rows)
    if not topic:
        note(f"what it gives up is gone: {LETTER_TOPIC} is not set (headrace config set group {described.group} …)")
    elif letters is None:
        note(f"its dead letters go to {topic}, which does not exist")
    elif not letters.is_exact:
        say(f"at most {letters.number} dead letters in {topic}: `headrace dlq show {topic} --group …` reads them")
    else:
        say(f"{letters.number} dead letter{'s' * (letters.number != 1)} in {topic}")


@app.command(
    epilog=examples(
        "headrace queue redrive workers --at 0:17",
        "headrace queue redrive workers --reason rejected --dry-run",
        "headrace queue redrive workers --all --fix mend:fix",
    )
)
def redrive(
    queue: Queue,
    at: dlq.At = None,
    reason: dlq.Reason = "",
    key: dlq.Key = None,
    origin: dlq.Origin = None,
    all_: dlq.All = False,
    to: dlq.To = None,
    fix: dlq.FixUp = None,
    dry_run: dlq.DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Put back what a queue has given up, each record exactly once: as `headrace dlq redrive` with the queue's topic.

    Every group that reads the topic gets the records again.
    """
    _check_choice(at, reason, key, origin, all_)
    dlq.redrive(
        _letter_topic(bootstrap, properties, queue),
        at=at,
        reason=reason,
        key=key,
        origin=origin,
        group=queue,
        to=to,
        fix=fix,
        dry_run=dry_run,
        bootstrap=bootstrap,
        properties=properties,
        json=json,
    )


@app.command(
    epilog=examples("headrace queue discard workers --at 0:17", "headrace queue discard workers --all --dry-run")
)
def discard(
    queue: Queue,
    at: dlq.At = None,
    reason: dlq.Reason = "",
    key: dlq.Key = None,
    origin: dlq.Origin = None,
    all_: dlq.All = False,
    dry_run: dlq.DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Give up dead letters of a queue for good: as `headrace dlq discard` with the queue's topic."""
    _check_choice(at, reason, key, origin, all_)
    dlq.discard(
        _letter_topic(bootstrap, properties, queue),
        at=at,
        reason=reason,
        key=key,
        origin=origin,
        group=queue,
        dry_run=dry_run,
        bootstrap=bootstrap,
        properties=properties,
        json=json,
    )


def _check_choice(at: list[str] | None, reason: str, key: str | None, origin: str | None, all_: bool) -> None:
    if not (at or reason or key is not None or origin or all_):
        raise bad_input("say which letters: --at, --reason, --key or --origin, or --all of them")


def _settings(configs: "ConfigOperations", queue: str) -> dict[str, str]:
    """What was set for a queue itself."""
    from headrace.ops.configs import ConfigKind

    entries = configs.describe_configs(ConfigKind.GROUP, queue)
    return {each.name: each.value or "" for each in entries if not each.is_default}


def _letter_topic(bootstrap: str, properties: ClientProperties, queue: str) -> str:
    topic = _settings(connecting.config_operations(bootstrap, properties), queue).get(LETTER_TOPIC)
    if topic:
        return topic
    connecting.share_group_operations(bootstrap, properties).describe_group(queue)  # says where there is none
    raise ClientError(
        f"queue '{queue}' has no dead letters: set {LETTER_TOPIC} with `headrace config set group {queue} …`",
        "NO_DEAD_LETTERS",
    )


def _count(bootstrap: str, properties: ClientProperties, topic: str, queue: str) -> _Letters | None:
    """None where there is no such topic."""
    try:
        letters = dlq.letters_of(bootstrap, properties, topic)
        most = letters.record_count()
        if most > MOST_COUNTED:
            return _Letters(most, is_exact=False)
        return _Letters(sum(1 for each in letters if each.about.get("group") == queue), is_exact=True)
    except ClientError as error:
        if error.code not in _UNKNOWN:
            raise
        return None
