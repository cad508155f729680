"""The values in force: what was given in a file, what was changed while running, and the defaults under both."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from headrace.protocol.errors import CodedError, ErrorCode

from .broker import BROKER_SETTINGS, Listener, parse_listener
from .names import nearest, shown
from .properties import parse_properties
from .setting import ConfigError, Setting, Source, Value
from .topic import TOPIC_SETTINGS

_SYNC_EACH: Final = {"log.flush.interval.messages": "1"}
"""What a lone broker does where nothing is set: no other broker holds a copy, so the disk must."""
_WILDCARDS: Final = ("", "0.0.0.0", "::")
_REMEMBERED: Final = 10_000

T = TypeVar("T")


class FoundValue(NamedTuple):
    """One place where a setting has a value, and the value as it is written there."""

    name: str
    text: str
    source: Source
    factor: int = 1


class BrokerConfig:
    """The settings of this broker. `config["num.partitions"]` is the value in force, of the setting's own type.

    Values are checked when they come in. Those of `use_dynamic` replace the given ones at once, so a reader that
    keeps no copy always sees what is in force.
    """

    def __init__(self, given: Mapping[str, str], *, lone: bool = True) -> None:
        self.lone = lone and not given.get("zookeeper.connect")
        self.given = dict(given)
        self._dynamic: list[tuple[Source, Mapping[str, str]]] = []
        for name, text in given.items():
            broker_setting(name).parse(text)
        self._renew()

    @classmethod
    def parse(cls, given: Mapping[str, str], *, lone: bool = True) -> "BrokerConfig":
        """The settings as given; `ConfigError` names the first that is unknown or has a value it cannot have.

        `lone` is whether this broker is the only one (an embedded store): it then syncs before it acknowledges.
        """
        return cls(given, lone=lone)

    @classmethod
    def from_file(
        cls, path: str | Path, *, lone: bool = True, overrides: Mapping[str, str] | None = None
    ) -> "BrokerConfig":
        """The settings in a `.properties` file, with `overrides` (the command line's) before them."""
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"The settings in {path} cannot be read: {error}") from None
        try:
            return cls({**parse_properties(text), **(overrides or {})}, lone=lone)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @property
    def node_id(self) -> int:
        return int(self["node.id"])

    @property
    def listener(self) -> Listener:
        """Where to listen."""
        return parse_listener(self["listeners"])

    @property
    def advertised(self) -> Listener:
        """Where clients are told to connect to."""
        address = parse_listener(self["advertised.listeners"] or self["listeners"])
        if address.host in _WILDCARDS:
            raise ConfigError(
                f"Clients cannot connect to {address.host or 'an empty host'}: set advertised.listeners to an address "
                "that they reach this machine by, such as PLAINTEXT://broker1.example.com:9092"
            )
        return address

    @property
    def topic_defaults(self) -> Mapping[str, Value]:
        """What a topic on which nothing is set has."""
        return self._topic_defaults

    def use_dynamic(self, *, cluster: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Puts the settings that were changed at run time, for all brokers and for this one, before the given ones."""
        self._dynamic = [(Source.DYNAMIC_BROKER, own), (Source.DYNAMIC_DEFAULT_BROKER, cluster)]
        self._renew()

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, made once and kept for as long as no setting of this broker changes."""
        found = self._remembered.get(key)
        if found is None:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            found = self._remembered[key] = make()
        value: T = found
        return value

    def trace(self, name: str) -> list[FoundValue]:
        """Every place where the broker setting has a value, the one in force first."""
        return list(self._trace(BROKER_SETTINGS[name]))

    def trace_topic(self, name: str, overrides: Mapping[str, str]) -> list[FoundValue]:
        """Every place where the topic setting has a value, the one in force first."""
        setting = TOPIC_SETTINGS[name]
        found = [FoundValue(name, overrides[name], Source.DYNAMIC_TOPIC)] if name in overrides else []
        if setting.broker_name is not None:
            return found + self.trace(setting.broker_name)
        return [*found, FoundValue(name, setting.default or "", Source.DEFAULT)]

    def _trace(self, setting: Setting) -> Iterator[FoundValue]:
        for source, values in self._dynamic:
            if setting.name in values:
                yield FoundValue(setting.name, values[setting.name], source)
        for name, factor in ((setting.name, 1), *setting.fallbacks):
            if name in self.given:
                yield FoundValue(name, self.given[name], Source.STATIC_BROKER, factor)
        default = _SYNC_EACH.get(setting.name, setting.default) if self.lone else setting.default
        if default is not None:
            yield FoundValue(setting.name, default, Source.DEFAULT)

    def _renew(self) -> None:
        self._remembered: dict[Hashable, Any] = {}
        self._values = {name: self._in_force(setting) for name, setting in BROKER_SETTINGS.items()}
        self._topic_defaults = MappingProxyType(
            {
                name: self._values[setting.broker_name] if setting.broker_name else setting.parse(setting.default or "")
                for name, setting in TOPIC_SETTINGS.items()
            }
        )

    def _in_force(self, setting: Setting) -> Value:
        found = next(self._trace(setting), None)
        if found is None:
            return None
        value = BROKER_SETTINGS[found.name].parse(found.text)
        return scaled(value, found.factor)


def scaled(value: Value, factor: int) -> Value:
    """A value in hours or minutes as milliseconds. A negative one means no limit, whatever the unit."""
    if factor == 1 or not isinstance(value, int):
        return value
    return value * factor if value >= 0 else -1


def broker_setting(name: str) -> Setting:
    """The broker setting of that name; `ConfigError` when there is none."""
    setting = BROKER_SETTINGS.get(name)
    if setting is None:
        raise ConfigError(f"Unknown broker setting {shown(name)}{nearest(name, BROKER_SETTINGS)}")
    return setting


def effective_topic(overrides: Mapping[str, str], config: BrokerConfig) -> Mapping[str, Value]:
    """The values in force for a topic on which `overrides` are set."""
    if not overrides:
        return config.topic_defaults
    # What is in the store was checked on the way in; a name that a later version dropped is left out.
    known = {name: text for name, text in overrides.items() if name in TOPIC_SETTINGS}
    return {**config.topic_defaults, **{name: TOPIC_SETTINGS[name].parse(text) for name, text in known.items()}}


def validate_broker_overrides(overrides: Mapping[str, str]) -> None:
    """Raises `CodedError` (INVALID_REQUEST, as Kafka does) unless all can be changed at run time to those values."""
    for name, text in overrides.items():
        try:
            setting = broker_setting(name)
            if not setting.dynamic:
                raise ConfigError(
                    f"Cannot update {name} dynamically: it is read when the broker starts; "
                    "change it in the broker's settings file and restart the broker"
                )
            setting.parse(text)
        except ConfigError as error:
            raise CodedError(ErrorCode.invalid_request, str(error)) from None
