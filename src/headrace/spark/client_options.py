"""The settings of the client among the options: `kafka.<name>`, with Kafka's names.

Most go to the columnar client as they are. A consumer's settings that have nothing to do here are taken and left
aside, so that a query moves over by changing its format; those that would promise what a query cannot keep are
refused, as Spark's connector refuses them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace.client.columnar.settings import ALIASES, SETTINGS, WITHOUT_EFFECT, ClientSettings
from headrace.client.errors import ClientError
from headrace.config.names import nearest, shown
from headrace.config.setting import ConfigError

PREFIX: Final = "kafka."
BOOTSTRAP_NAMES: Final = ("kafka.bootstrap.servers", "bootstrap.servers", "bootstrap")

_REFUSED: Final = {
    "auto.offset.reset": "say where to start with startingOffsets",
    "enable.auto.commit": "name a group with option group and finished offsets are committed to it",
    "key.deserializer": "keys are binary; cast or decode the column",
    "value.deserializer": "values are binary; cast the column, or decode it with option format",
    "interceptor.classes": "the source runs no Java code",
}

_OF_GROUP_MEMBERS: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "exclude.internal.topics",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metric.reporters",
        "partition.assignment.strategy",
        "session.timeout.ms",
    }
)
"""Settings of a group's member, which the source is not: taken, without effect."""

_ISOLATION: Final = ("read_uncommitted", "read_committed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What `kafka.<name>` options say."""

    connection: dict[str, str]
    """Settings for the client, by Kafka's names."""
    read_committed: bool
    group: str | None


def client_settings(options: Mapping[str, str]) -> ClientOptions:
    """The client's settings among all options, whose names are in lower case."""
    given = {name.removeprefix(PREFIX): value for name, value in options.items() if name.startswith(PREFIX)}
    for name in given:
        if name in _REFUSED:
            raise ConfigError(f"option {PREFIX}{name} cannot be set: {_REFUSED[name]}")
    isolation = given.pop("isolation.level", _ISOLATION[0]).strip().lower()
    if isolation not in _ISOLATION:
        raise ConfigError(f"option kafka.isolation.level must be {' or '.join(_ISOLATION)}, not '{shown(isolation)}'")
    group = given.pop("group.id", "").strip() or None
    connection = {name: value for name, value in given.items() if name not in _OF_GROUP_MEMBERS}
    connection["bootstrap.servers"] = bootstrap_servers(options)
    check_settings(connection, [*_OF_GROUP_MEMBERS, "group.id"])
    return ClientOptions(connection=connection, read_committed=isolation == _ISOLATION[1], group=group)


def bootstrap_servers(options: Mapping[str, str]) -> str:
    """Where the brokers are, by one of `BOOTSTRAP_NAMES`."""
    given = {options[name].strip() for name in BOOTSTRAP_NAMES if options.get(name, "").strip()}
    if not given:
        raise ConfigError("option kafka.bootstrap.servers is missing: where are the brokers, such as 127.0.0.1:9092?")
    if len(given) > 1:
        raise ConfigError(f"the brokers are given twice, differently: {shown(' and '.join(sorted(given)))}")
    return given.pop()


def check_settings(connection: Mapping[str, str], others: Iterable[str] = ()) -> None:
    """`ConfigError` for settings that are unknown or wrong; `others` are names that someone else understands."""
    known = {*SETTINGS, *ALIASES, *WITHOUT_EFFECT, *others}
    for name in connection:
        if name not in known:
            raise ConfigError(
                f"unknown option {shown(PREFIX + name)}{nearest(PREFIX + name, [PREFIX + other for other in known])}"
            )
    try:
        ClientSettings(connection)
    except ClientError as error:
        raise ConfigError(f"in the options kafka.*: {error.message}") from None
