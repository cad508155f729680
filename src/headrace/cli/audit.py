"""`headrace audit`: who did what to the cluster, and who was turned away."""

import json as json_
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from headrace.client.errors import UnknownTopic

from . import connecting
from .console import Failure, bad, bad_input, coloured, doubtful, examples, note
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, time_ms
from .positions import BEGINNING, END, Position, PositionKind, resolve

TOPIC: Final = "__audit_log"
_MOST_IDS: Final = 10_000
_WIDTH: Final = len("succeeded")


def register(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace audit --since 1h",
            "headrace audit --follow --denied",
            "headrace audit --user alice --operation CreateTopics,DeleteTopics",
            "headrace audit --resource orders --json | jq .principal",
        )
    )(audit)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which events are shown; what is empty is not asked for."""

    users: frozenset[str] = frozenset()
    operations: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    denied: bool = False

    def takes(self, event: Mapping[str, Any]) -> bool:
        principal = str(event.get("principal", ""))
        return (
            (not self.users or principal in self.users or principal.partition(":")[2] in self.users)
            and (not self.operations or str(event.get("operation", "")).lower() in self.operations)
            and (not self.resources or any(each.get("name") in self.resources for each in _resources(event)))
            and (not self.denied or event.get("outcome") == "denied")
        )


def audit(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new events.")] = False,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="From when: 1h, 30m, 7d ago, or 2026-01-31T12:00.")
    ] = None,
    user: Annotated[
        list[str] | None, typer.Option("--user", "-u", help="Only what this user or principal did; may be repeated.")
    ] = None,
    operation: Annotated[
        list[str] | None,
        typer.Option("--operation", "-o", help="Only these: CreateTopics, Write, SCRAM-SHA-512; may be repeated."),
    ] = None,
    resource: Annotated[
        list[str] | None, typer.Option("--resource", "-r", help="Only what was about this name; may be repeated.")
    ] = None,
    denied: Annotated[bool, typer.Option("--denied", help="Only what was refused, and logins that failed.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Show the audit log of the cluster.

    Brokers keep it in the topic __audit_log where `headrace.audit=topic`. A line that stands for several events says
    how many: what is refused again and again is told once, then counted.
    """
    event_filter = AuditFilter(
        users=_listed(user),
        operations=frozenset(each.lower() for each in _listed(operation)),
        resources=_listed(resource),
        denied=denied,
    )
    start = Position(PositionKind.TIME, _since(since)) if since else BEGINNING
    admin = connecting.admin(bootstrap, properties)
    try:
        partitions = admin.partition_numbers(TOPIC)
    except UnknownTopic:
        raise Failure(
            f"the cluster has no topic {TOPIC}: its brokers record nothing there yet; headrace.audit=topic lets them"
        ) from None
    starts = resolve(admin, TOPIC, partitions, start, committed_only=False)
    ends = None if follow else resolve(admin, TOPIC, partitions, END, committed_only=False)
    reader = connecting.record_reader(bootstrap, properties, TOPIC, starts, ends)
    shown, known = 0, OrderedDict[str, None]()
    with closing(reader.messages()) as messages:
        for message in messages:
            if message is None:
                sys.stdout.flush()
                continue
            event = _event(message.value())
            if event is None or _is_known(event, known) or not event_filter.takes(event):
                continue
            shown += 1
            typer.echo(json_.dumps(event, separators=(",", ":")) if json else _line(event))
    if not shown and not json:
        note("nothing is recorded that you asked for")


def _listed(given: Iterable[str] | None) -> frozenset[str]:
    return frozenset(each.strip() for item in given or () for each in item.split(",") if each.strip())


def _since(text: str) -> int:
    now = time.time_ns() // 1_000_000
    try:
        return time_ms(f"-{text.removeprefix('-')}" if text[-1:].isalpha() else text, "--since", now)
    except Failure:
        raise bad_input(f"--since '{text}' is not a time; write 30m, 1h, 7d or 2026-01-31T12:00") from None


def _event(value: bytes | None) -> dict[str, Any] | None:
    try:
        event = json_.loads(value or b"")
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _is_known(event: Mapping[str, Any], known: OrderedDict[str, None]) -> bool:
    """Whether an event was seen before: a batch whose answer was lost is written twice."""
    event_id = str(event.get("id"))
    if event_id in known:
        return True
    known[event_id] = None
    if len(known) > _MOST_IDS:
        known.popitem(last=False)
    return False


def _resources(event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = event.get("resources", [])
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _line(event: Mapping[str, Any]) -> str:
    parts = [
        _text(event.get("time", "-")),
        _outcome(_text(event.get("outcome", "-"))),
        f"{_text(event.get('principal') or '-')}@{_text(event.get('host') or '-')}",
        _text(event.get("operation", "-")),
        ", ".join(_named(each) for each in _resources(event)),
        "(dry run)" if event.get("dry_run") else "",
        _text(event.get("error", "")),
        _text(event.get("message", "")),
        f"x{event['count']} since {_text(event.get('since', '-'))}" if event.get("count") else "",
    ]
    return "  ".join(part for part in parts if part)


def _outcome(text: str) -> str:
    padded = text.ljust(_WIDTH)
    if text == "succeeded":
        return padded
    return coloured(bad(padded) if text == "denied" else doubtful(padded))


def _named(resource: Mapping[str, Any]) -> str:
    details = " ".join(
        f"{_text(name)}={_text(value)}" for name, value in resource.items() if name not in ("type", "name", "error")
    )
    return f"{_text(resource.get('type', ''))}:{_text(resource.get('name', ''))}{f' ({details})' if details else ''}"


def _text(value: object) -> str:
    """What a client has chosen is never taken for more than text by a terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in str(value))
