"""docs/configuration.md, from the tables."""

from collections.abc import Iterable

from .broker import BROKER_SETTINGS
from .groups import OWN_GROUP_SETTINGS
from .setting import MAX_INT, MAX_LONG, Setting
from .topic import TOPIC_SETTINGS

_HEAD = """# Configuration

Settings have Kafka's names, types and defaults. A broker reads its own from the `.properties` file given with
`--config`. Those marked *dynamic* can be changed while it runs (by any Kafka client's admin
functions), for one broker or for all. Topic settings can be set when the topic is created and changed at any time;
one that is not set has the value of the broker setting in the last column.

A lone broker (one with an embedded store) has `log.flush.interval.messages=1` where nothing else is set: no other
broker holds a copy of its records, so it syncs them to disk before it acknowledges them.
"""


def render_docs() -> str:
    """The page as markdown."""
    topic = _table(("setting", "type", "default", "allowed", "what it does", "broker's default"), _topic_rows())
    broker = _table(("setting", "type", "default", "allowed", "what it does"), _broker_rows())
    group = _table(("setting", "type", "default", "allowed", "what it does", "broker's default"), _group_rows())
    return f"{_HEAD}\n## Topics\n\n{topic}\n## Groups\n\n{group}\n## Brokers\n\n{broker}"


def _topic_rows() -> Iterable[tuple[str, ...]]:
    for setting in TOPIC_SETTINGS.values():
        yield (*_cells(setting), f"`{setting.broker_name}`" if setting.broker_name else "")


def _group_rows() -> Iterable[tuple[str, ...]]:
    for setting in OWN_GROUP_SETTINGS.values():
        yield (*_cells(setting), f"`{setting.broker_name}`")


def _broker_rows() -> Iterable[tuple[str, ...]]:
    for setting in BROKER_SETTINGS.values():
        name, *rest = _cells(setting)
        yield (f"{name} *dynamic*" if setting.dynamic else name, *rest)


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
