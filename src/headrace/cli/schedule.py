"""`headrace schedule`: messages that are sent again and again, and the mover that sends them."""

import asyncio
import signal
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import connecting
from .client_options import resolve_target
from .console import bad_input, examples, note, say, say_json, say_table
from .listening import stop_with_stdin
from .logs import FormatOption, LevelOption, LogFormat, LogLevel, configure_logs
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties, Json, pairs

if TYPE_CHECKING:
    from headrace.client.delays.mover import Mover
    from headrace.client.delays.schedules import Schedule, Schedules, ScheduleTable

app = typer.Typer(
    help="Send messages again and again, at the times of a cron expression.",
    epilog=examples(
        'headrace schedule create reports nightly --cron "30 2 * * *" --time-zone Europe/Berlin --value all',
        "headrace schedule list",
        "headrace schedule pause reports nightly",
    ),
    no_args_is_help=True,
)

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Where its messages go.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]


@app.command(
    epilog=examples(
        'headrace schedule create reports nightly --cron "30 2 * * *" --time-zone Europe/Berlin --value all',
        'headrace schedule create prices refresh --cron "*/15 * * * MON-FRI" --key all --value @refresh.json',
    )
)
def create(
    topic: Topic,
    name: Name,
    cron: Annotated[
        str, typer.Option("--cron", help="Minute, hour, day, month, weekday; with six fields the first is the second.")
    ],
    time_zone: Annotated[str, typer.Option("--time-zone", help="Whose clocks count: Europe/Berlin, UTC.")] = "UTC",
    value: Annotated[str | None, typer.Option("--value", help="The message's value; @FILE reads it.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Its key, which chooses the partition.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header; may be repeated.")
    ] = None,
    replace_: Annotated[bool, typer.Option("--replace", help="In place of the schedule that has the name.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Send a message to a topic at the times of a cron expression, from the next one on.

    Each time is sent once, by whichever gateway, or `headrace schedule run`, is running. Where none was running, the
    times that have passed are made up for by one message.
    """
    from headrace.client.delays.schedules import Schedule

    schedule = Schedule(
        name=name,
        cron=cron,
        time_zone=time_zone,
        value=_value(value),
        key=None if key is None else key.encode(),
        headers=tuple((n, v.encode()) for item in header or () for n, v in pairs([item], "--header").items()),
    )
    made = _schedules(bootstrap, properties, topic).create(schedule, replaces=replace_)
    first = _time(made.next_ms(0))
    say_json({"topic": topic, "schedule": name, "next": first}) if json else say(f"{name}: next at {first}")


@app.command("list", epilog=examples("headrace schedule list", "headrace schedule list reports --json"))
def list_(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="These; else all.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """List schedules, and when each sends next."""
    found: list[dict[str, Any]] = []
    for topic in topics or _with_schedules(bootstrap, properties):
        table = _schedules(bootstrap, properties, topic).table()
        found += [_shown(topic, table, table.schedules[name]) for name in sorted(table.schedules)]
    if json:
        say_json(found)
    elif found:
        columns = ("topic", "schedule", "cron", "time_zone", "next")
        rows = [tuple(str(each[column]) if each[column] else "-" for column in columns) for each in found]
        say_table(("TOPIC", "SCHEDULE", "CRON", "TIME ZONE", "NEXT"), rows)
    else:
        note("there is no schedule")


@app.command(epilog=examples("headrace schedule show reports nightly", "headrace schedule show reports nightly --json"))
def show(
    topic: Topic,
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    json: Json = False,
) -> None:
    """Show a schedule: what it sends, and when."""
    schedules = _schedules(bootstrap, properties, topic)
    schedule = schedules.get(name)
    shown = _shown(topic, schedules.table(), schedule) | {
        "key": _text(schedule.key),
        "value": _text(schedule.value),
        "headers": [[header, _text(data)] for header, data in schedule.headers],
    }
    if json:
        say_json(shown)
    else:
        for field, text in shown.items():
            say(f"{field.replace('_', ' ')}: {'-' if text is None else text}")


@app.command(epilog=examples("headrace schedule pause reports nightly"))
def pause(
    topic: Topic,
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
) -> None:
    """Send nothing until it is resumed."""
    _schedules(bootstrap, properties, topic).pause(name)
    say(f"{name}: paused")


@app.command(epilog=examples("headrace schedule resume reports nightly"))
def resume(
    topic: Topic,
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
) -> None:
    """Go on with the next time from now on; what has passed meanwhile is left out."""
    _schedules(bootstrap, properties, topic).resume(name)
    say(f"{name}: resumed")


@app.command(epilog=examples("headrace schedule delete reports nightly"))
def delete(
    topic: Topic,
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
) -> None:
    """Forget a schedule."""
    _schedules(bootstrap, properties, topic).delete(name)
    say(f"{name}: deleted")


@app.command("run-now", epilog=examples("headrace schedule run-now reports nightly"))
def run_now(
    topic: Topic,
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
) -> None:
    """Send its message now, too; its times stay as they are, and it may be paused."""
    where = _schedules(bootstrap, properties, topic).run_now(name)
    say(f"{name}: sent to {where.topic}, partition {where.partition}, offset {where.offset}")


@app.command(epilog=examples("headrace schedule setup orders"))
def setup(
    topic: Topic,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
) -> None:
    """Make the topics that delays and schedules of a topic need, for users who may not make topics."""
    from headrace.client.delays.lanes import lanes_topic
    from headrace.client.delays.topics import make_lanes

    schedules = _schedules(bootstrap, properties, topic)
    make_lanes(connecting.admin(bootstrap, properties), topic, lanes_topic(topic))
    schedules.setup()
    say(f"{topic}: {lanes_topic(topic)} and {schedules.topic} are there")


@app.command(epilog=examples("headrace schedule run", "headrace schedule run -F mover.properties"))
def run(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = LogLevel.INFO,
    with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Move delayed messages, and send what schedules ask for, until SIGINT or SIGTERM.

    Waits for the brokers where none answers yet. Gateways do this, too (but with --no-delays): it is for clusters
    without one, and for loads that a gateway should not bear. Any number may run.
    """
    configure_logs(log_format, log_level)
    if with_stdin:
        stop_with_stdin()
    from headrace.client.delays.mover import Mover
    from headrace.client.properties import for_librdkafka

    target = resolve_target(bootstrap, properties)
    mover = Mover(target.bootstrap, for_librdkafka(target.settings))
    asyncio.run(_run(mover, lambda: say(f"headrace ready mover={target.bootstrap}")))


async def _run(mover: "Mover", on_ready: Callable[[], None]) -> None:
    """In a thread: a signal is not to come while the event is waited for."""
    stop = threading.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await asyncio.to_thread(mover.run, stop, on_ready)


def _schedules(bootstrap: str, properties: list[str] | None, topic: str) -> "Schedules":
    from headrace.client.delays.schedules import Schedules
    from headrace.client.properties import for_librdkafka

    target = resolve_target(bootstrap, properties)
    admin = connecting.admin(bootstrap, properties)
    return Schedules(admin, target.bootstrap, topic, for_librdkafka(target.settings))


def _with_schedules(bootstrap: str, properties: list[str] | None) -> list[str]:
    """Topics that have any."""
    from headrace.protocol.delayed import SCHEDULES

    topics = connecting.admin(bootstrap, properties).list_topics()
    return [each.name.removesuffix(SCHEDULES) for each in topics if each.name.endswith(SCHEDULES)]


def _shown(topic: str, table: "ScheduleTable", schedule: "Schedule") -> dict[str, Any]:
    fired = table.fired_ms(schedule)
    return {
        "topic": topic,
        "schedule": schedule.name,
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "paused": schedule.is_paused,
        "next": "paused" if schedule.is_paused else _time(schedule.next_ms(fired)),
        "last": _time(fired or None),
    }


def _time(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms // 1000, UTC).isoformat().replace("+00:00", "Z")


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


def _value(text: str | None) -> bytes | None:
    if text is None or not text.startswith("@"):
        return None if text is None else text.encode()
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise bad_input(f"--value {text}: the file cannot be read: {error}") from error
