"""docs/configuration.md, from the tables."""

from collections.abc import Iterable

from .broker import BROKER_SETTINGS
from .client_metrics import CLIENT_METRICS_SETTINGS
from .groups import OWN_GROUP_SETTINGS
from .setting import MAX_INT, MAX_LONG, Setting
from .topic import TOPIC_SETTINGS

_HEAD = """# Configuration

Settings have Kafka's names, types and defaults. A broker reads its own from the `.properties` file given with
`--config`. Those marked *dynamic* can be changed while it runs: by any Kafka client's admin functions, for one broker
or for all, or in the file, which SIGHUP (`kill -HUP`) has the broker read again. It then logs what has changed, what
needs a restart, and what was refused; a file with anything wrong in it changes nothing.

Topic settings can be set when the topic is created and changed at any time; one that is not set has the value of the
broker setting in the last column.

A lone broker (one with an embedded store) has `log.flush.interval.messages=1` where nothing else is set: no other
broker holds a copy of its records, so it syncs them to disk before it acknowledges them.
"""


_IGNORED = """## Accepted, without effect

Kafka's own `server.properties`, of 4.x with KRaft or of 3.x with ZooKeeper, can be given with `--config`. What means
nothing here is accepted, and named in one warning when the broker starts; tools see and change it as in Kafka. A value
that asks for protection or for a function that is not there is refused. Names that Kafka does not have either are
refused, all at once, with the nearest name that exists.
"""


def render_docs() -> str:
    """The page as markdown."""
    topic = _table(("setting", "type", "default", "allowed", "what it does", "broker's default"), _topic_rows())
    metrics = _table(
        ("setting", "type", "default", "allowed", "what it does"), map(_cells, CLIENT_METRICS_SETTINGS.values())
    )
    broker = _table(("setting", "type", "default", "allowed", "what it does"), _broker_rows())
    ignored = _table(("setting", "type", "default", "allowed", "why"), _ignored_rows())
    group = _table(("setting", "type", "default", "allowed", "what it does", "broker's default"), _group_rows())
    sections = (("Topics", topic), ("Groups", group), ("Client metrics", metrics), ("Brokers", broker))
    tables = "".join(f"\n## {name}\n\n{table}" for name, table in sections)
    return f"{_HEAD}{tables}\n{_IGNORED}\n{ignored}"


def _topic_rows() -> Iterable[tuple[str, ...]]:
    for setting in TOPIC_SETTINGS.values():
        yield (*_cells(setting), f"`{setting.broker_name}`" if setting.broker_name else "")


def _group_rows() -> Iterable[tuple[str, ...]]:
    for setting in OWN_GROUP_SETTINGS.values():
        yield (*_cells(setting), f"`{setting.broker_name}`" if setting.broker_name else "")


def _broker_rows() -> Iterable[tuple[str, ...]]:
    for setting in BROKER_SETTINGS.values():
        if not setting.no_effect:
            yield _broker_row(setting)


def _ignored_rows() -> Iterable[tuple[str, ...]]:
    for setting in BROKER_SETTINGS.values():
        if setting.no_effect:
            yield (*_broker_row(setting)[:-1], setting.no_effect)


def _broker_row(setting: Setting) -> tuple[str, ...]:
    name, *rest = _cells(setting)
    return (f"{name} *dynamic*" if setting.dynamic else name, *rest)


def _cells(setting: Setting) -> tuple[str, ...]:
    allowed = setting.rule.words if setting.rule is not None else ""
    return f"`{setting.name}`", setting.type.name.lower(), _default(setting), allowed, setting.doc


def _default(setting: Setting) -> str:
    if setting.default is None:
        return "not set"
    return "no limit" if setting.default in (str(MAX_INT), str(MAX_LONG)) else f"`{setting.default}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
