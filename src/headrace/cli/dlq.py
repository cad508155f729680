"""`headrace dlq`: see dead letters, put them back, give them up."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import connecting
from .client_options import resolve_target
from .console import bad_input, examples, note, say, say_json, say_table
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json

if TYPE_CHECKING:
    from headrace.client.dead_letters import Chosen, DeadLetter, DeadLetters, Fix

app = typer.Typer(
    help="See dead letters, put them back, give them up.",
    epilog=examples(
        "headrace dlq list",
        "headrace dlq show orders.billing.dead-letter --reason Timeout",
        "headrace dlq redrive orders.billing.dead-letter --at 0:17",
    ),
    no_args_is_help=True,
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="A topic of dead letters.")]
At = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="PARTITION:OFFSET", help="This letter, as `show` names it; may be repeated."),
]
Reason = Annotated[str, typer.Option("--reason", help="Only letters with this text in their reason.")]
Key = Annotated[str | None, typer.Option("--key", help="Only letters with this key.")]
Origin = Annotated[
    str | None, typer.Option("--origin", metavar="TOPIC", help="Only letters that came from this topic.")
]
Group = Annotated[str | None, typer.Option("--group", help="Only letters that this group gave up.")]
All = Annotated[bool, typer.Option("--all", help="Every letter.")]
To = Annotated[str | None, typer.Option("--to", metavar="TOPIC", help="Into this topic; else where each came from.")]
FixUp = Annotated[
    str | None,
    typer.Option(
        "--fix", metavar="MODULE:FUNCTION", help="What mends a letter: it gives the letter to put back, or None."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show which letters it would be, and do nothing.")]


@app.command("list", epilog=examples("headrace dlq list", "headrace dlq list orders.failed --json"))
def list_(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", help="These; else all that end in .dead-letter or begin with dlq."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """List topics of dead letters, with how many nobody has dealt with yet."""
    from headrace.client.dead_letters import LETTER_TOPICS, SUFFIX

    names = topics or [
        each.name
        for each in connecting.admin(bootstrap, properties).list_topics()
        if each.name.endswith(SUFFIX) or each.name.startswith(LETTER_TOPICS)
    ]
    counts = {name: sum(1 for _ in letters_of(bootstrap, properties, name)) for name in names}
    if json:
        say_json([{"topic": name, "letters": count} for name, count in counts.items()])
    elif counts:
        say_table(("TOPIC", "LETTERS"), list(counts.items()))
    else:
        note(f"there is no topic whose name ends in {SUFFIX} or begins with {LETTER_TOPICS}")


@app.command(
    epilog=examples(
        "headrace dlq show orders.billing.dead-letter",
        "headrace dlq show orders.billing.dead-letter --reason Timeout --limit 10",
        "headrace dlq show orders.billing.dead-letter --at 0:17 --json",
    )
)
def show(
    topic: Topic,
    at: At = None,
    reason: Reason = "",
    key: Key = None,
    origin: Origin = None,
    group: Group = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many at the most.")] = 100,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Show dead letters: where they were, how often they were tried, why they were given up, what is in them."""
    chosen = _chosen(at, reason, key, origin, group, everything=True)
    found: list[DeadLetter] = []
    for letter in letters_of(bootstrap, properties, topic):
        if chosen(letter):
            found.append(letter)
        if len(found) >= limit:
            break
    _say(found, json=json)


@app.command(
    epilog=examples(
        "headrace dlq redrive orders.billing.dead-letter --at 0:17",
        "headrace dlq redrive orders.billing.dead-letter --reason Timeout",
        "headrace dlq redrive orders.billing.dead-letter --all --fix mend:fix --to orders-mended",
    )
)
def redrive(
    topic: Topic,
    at: At = None,
    reason: Reason = "",
    key: Key = None,
    origin: Origin = None,
    group: Group = None,
    all_: All = False,
    to: To = None,
    fix: FixUp = None,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Put dead letters back, each exactly once: it is written and done with in the same transaction.

    Every group that reads the topic gets them again. Name letters with --at, choose them by what they say, or all.
    """
    chosen = _chosen(at, reason, key, origin, group, everything=all_)
    mend = _function(fix) if fix else _as_it_is
    letters = letters_of(bootstrap, properties, topic)
    if dry_run:
        _say([letter for letter in letters if chosen(letter)], json=json)
        return
    if to is not None:
        connecting.admin(bootstrap, properties).partition_numbers(to)
    _say_count(letters.redrive(chosen, to=to, fix=mend), "put back", at, json=json)


@app.command(
    epilog=examples(
        "headrace dlq discard orders.billing.dead-letter --at 0:17 --at 2:4",
        "headrace dlq discard orders.billing.dead-letter --reason 'unknown customer' --dry-run",
    )
)
def discard(
    topic: Topic,
    at: At = None,
    reason: Reason = "",
    key: Key = None,
    origin: Origin = None,
    group: Group = None,
    all_: All = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Give dead letters up: no command shows or puts them back any more, until retention deletes them."""
    chosen = _chosen(at, reason, key, origin, group, everything=all_)
    letters = letters_of(bootstrap, properties, topic)
    if dry_run:
        _say([letter for letter in letters if chosen(letter)], json=json)
        return
    _say_count(letters.discard(chosen), "discarded", at, json=json)


def letters_of(bootstrap: str, properties: list[str] | None, topic: str) -> "DeadLetters":
    """The letters of a topic."""
    from headrace.client.dead_letters import DeadLetters
    from headrace.client.properties import for_librdkafka

    target = resolve_target(bootstrap, properties)
    admin = connecting.admin(bootstrap, properties)
    return DeadLetters(admin, target.bootstrap, topic, for_librdkafka(target.settings))


def _chosen(
    at: list[str] | None, reason: str, key: str | None, origin: str | None, group: str | None, *, everything: bool
) -> "Chosen":
    from headrace.client.dead_letters import selection

    for place in at or ():
        partition, _, offset = place.partition(":")
        if not (partition.isdecimal() and offset.isdecimal()):
            raise bad_input(f"--at '{place}' is not PARTITION:OFFSET, such as 0:17")
    is_limited = bool(at or reason or key is not None or origin or group)
    if not is_limited and not everything:
        raise bad_input("say which letters: --at, --reason, --key, --origin or --group, or --all of them")
    places = [f"{int(partition)}:{int(offset)}" for partition, _, offset in (each.partition(":") for each in at or ())]
    return selection(places=places, reason=reason, key=key, topic=origin, group=group)


def _as_it_is(letter: "DeadLetter") -> "DeadLetter":
    return letter


def _function(target: str) -> "Fix":
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise bad_input(f"--fix '{target}' is not MODULE:FUNCTION, such as mend:fix")
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(import_module(module), name, None)
    except Exception as error:
        raise bad_input(f"--fix {module} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise bad_input(f"--fix {module} has no function {name}")
    return found  # type: ignore[no-any-return]


def _say_count(count: int, what: str, at: list[str] | None, *, json: bool) -> None:
    missing = len(set(at or ())) - count
    if json:
        say_json({"letters": count})
    else:
        say(f"{count} letter{'s' * (count != 1)} {what}")
    if at and missing > 0:
        note(f"{missing} of those named with --at {'is' if missing == 1 else 'are'} no letter any more, or never was")


def _say(letters: "list[DeadLetter]", *, json: bool) -> None:
    if json:
        say_json([_values(letter) for letter in letters])
    elif not letters:
        note("no such letters")
    else:
        rows = [
            (
                letter.place,
                f"{letter.topic or '?'}-{letter.about.get('partition', '?')}@{letter.about.get('offset', '?')}",
                letter.about.get("attempts", "?"),
                _text(letter.key, 20),
                _text(letter.value, 40),
                _short(letter.reason, 80),
            )
            for letter in letters
        ]
        say_table(("LETTER", "ORIGIN", "ATTEMPTS", "KEY", "VALUE", "REASON"), rows)


def _values(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "letter": letter.place,
        "at": letter.timestamp.isoformat(),
        "key": _text(letter.key),
        "value": _text(letter.value),
        "headers": {name: _text(data) for name, data in letter.headers},
        "about": dict(letter.about),
    }


def _text(data: bytes | None, most: int = 1 << 30) -> str | None:
    return None if data is None else _short(data.decode(errors="replace"), most)


def _short(text: str, most: int) -> str:
    line = " ".join(text.split()) if most < 1 << 30 else text
    return line if len(line) <= most else f"{line[: most - 1]}…"
