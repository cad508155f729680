"""The values in force: what was given in a file, what was changed while running, and the defaults under both."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from headrace.protocol.errors import CodedError, ErrorCode

from .broker import BROKER_SETTINGS
from .kraft import quorum_problem
from .listeners import (
    ADDRESS_SETTINGS,
    ADVERTISED,
    ALLOW_ANONYMOUS,
    LISTENERS,
    SSL,
    ListenerAddress,
    ListenerAddresses,
    is_advertisable,
    read_listeners,
    unknown_listener_problem,
)
from .names import nearest, shown
from .no_effect import KRAFT
from .per_listener import names_for, own_name
from .properties import parse_properties
from .sasl import JAAS_CONFIG
from .setting import ConfigError, ConfigSource, Setting, Value
from .tls import TLS_SETTINGS
from .topic import TOPIC_SETTINGS
from .zookeeper import zookeeper_problem

_SYNC_EACH: Final = {"log.flush.interval.messages": "1"}
"""What a lone broker does where nothing is set: no other broker holds a copy, so the disk must."""
CLIENT_AUTH: Final = "ssl.client.auth"
REQUIRED: Final = "required"
_REMEMBERED: Final = 10_000

T = TypeVar("T")


class FoundValue(NamedTuple):
    """One place where a setting has a value, and the value as it is written there."""

    name: str
    text: str
    source: ConfigSource
    factor: int = 1


class Reloaded(NamedTuple):
    """What a settings file that was read again has changed, in words."""

    changed: list[str]
    """In force now: name, old value, new value."""
    needs_restart: list[str]
    """Read only when a broker starts: the old values stay in force."""
    overridden: list[str]
    """Changed in the file, but set by AlterConfigs, which goes before it."""


class BrokerConfig:
    """The settings of this broker. `config["num.partitions"]` is the value in force, of the setting's own type.

    Values are checked when they come in. Those of `use_dynamic` replace the given ones at once, so a reader that
    keeps no copy always sees what is in force.
    """

    def __init__(self, given: Mapping[str, str], *, lone: bool = True) -> None:
        self.lone = lone and not given.get("zookeeper.connect")
        self.given, self._listeners = _checked(given, lone=self.lone)
        self._dynamic: list[tuple[ConfigSource, Mapping[str, str]]] = []
        self._renew()

    @classmethod
    def parse(cls, given: Mapping[str, str], *, lone: bool = True) -> "BrokerConfig":
        """The settings as given; `ConfigError` names all that are unknown or have a value they cannot have.

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
    def listeners(self) -> tuple[ListenerAddress, ...]:
        """Where to listen; an address without a host, as in `PLAINTEXT://:9092`, is all of this machine's."""
        return tuple(each if each.host else each._replace(host="0.0.0.0") for each in self._listeners.bound)

    @property
    def advertised_listeners(self) -> tuple[ListenerAddress, ...]:
        """Where clients and brokers are told to connect to."""
        for listener in self._listeners.advertised:
            if not is_advertisable(listener):
                raise ConfigError(
                    f"Clients cannot connect to {listener.host or 'an empty host'}: set {ADVERTISED} to an address "
                    f"that they reach this machine by, such as {listener._replace(host='broker1.example.com')}"
                )
        return self._listeners.advertised

    @property
    def listener(self) -> ListenerAddress:
        """The one that stands for this broker where one address does."""
        return next(each for each in self.listeners if each.name == self._listeners.client)

    @property
    def advertised(self) -> ListenerAddress:
        """Where that one is found."""
        return next(each for each in self.advertised_listeners if each.name == self._listeners.client)

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener at which other brokers reach this one."""
        return self._listeners.inter_broker

    @property
    def is_inter_broker_listener_set(self) -> bool:
        """Whether that was said: then brokers are let in on no other one."""
        return self._listeners.is_inter_broker_set

    def settings(self) -> Iterator[Setting]:
        """All of a broker, and those of single listeners that are given."""
        yield from BROKER_SETTINGS.values()
        for name in sorted({*self.given, *(name for _, values in self._dynamic for name in values)}):
            if name not in BROKER_SETTINGS and own_name(name) is not None:
                yield broker_setting(name)

    def in_force(self, setting: Setting) -> Value:
        """Its value; None where it has none."""
        return self._values[setting.name] if setting.name in self._values else self._in_force(setting)

    def is_anonymous(self, listener: ListenerAddress) -> bool:
        """Whether anybody who reaches the listener is let in."""
        if listener.asks_for_login:
            return False
        return listener.protocol != SSL or self.of_listener(listener.name, CLIENT_AUTH) != REQUIRED

    def refuse_open_listeners(self) -> None:
        """Raises `ConfigError` where others than programs of this machine could come in without showing who they are,
        unless that is allowed.
        """
        found = [each for each in self.listeners if self.is_anonymous(each) and not each.is_loopback]
        if found and not self[ALLOW_ANONYMOUS]:
            raise ConfigError(
                f"{LISTENERS} has {', '.join(map(str, found))}: anybody who reaches this machine could do everything "
                f"there. Use SASL_SSL, or SSL with {CLIENT_AUTH}={REQUIRED}; listen on 127.0.0.1; or, on a network "
                f"where everybody may, set {ALLOW_ANONYMOUS}=true (--allow-anonymous)"
            )

    def of_listener(self, listener: str, name: str, mechanism: str = "") -> Any:
        """The value for one listener, or for one mechanism on it: its own where it has one, else that of all."""
        own = self.own_of_listener(listener, name, mechanism)
        return own if own is not None or name == JAAS_CONFIG else self[name]

    def own_of_listener(self, listener: str, name: str, mechanism: str = "") -> Any:
        """The value that only this listener has, or this mechanism on it; None where it has none of its own."""
        for own in names_for(listener, name, mechanism):
            for values in (*(values for _, values in self._dynamic), self.given):
                if own in values:
                    return broker_setting(own).parse(values[own])
        return None

    @property
    def topic_defaults(self) -> Mapping[str, Value]:
        """What a topic on which nothing is set has."""
        return self._topic_defaults

    def use_dynamic(self, *, cluster: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Puts the settings that were changed at run time, for all brokers and for this one, before the given ones."""
        self._dynamic = [(ConfigSource.DYNAMIC_BROKER, own), (ConfigSource.DYNAMIC_DEFAULT_BROKER, cluster)]
        self._renew()

    def reload(self, new: "BrokerConfig") -> Reloaded:
        """Takes over what a file that was read again gives for dynamic settings; the others keep their values."""
        names = sorted(name for name in {*self.given, *new.given} if self.given.get(name) != new.given.get(name))
        reloadable = [name for name in names if _targets(name) or broker_setting(name).no_effect]
        before, old = self._values, self.given
        kept = {name: text for name, text in old.items() if name not in reloadable}
        self.given = kept | {name: new.given[name] for name in reloadable if name in new.given}
        self._renew()
        changed: list[str] = []
        overridden: list[str] = []
        for name in (name for name in reloadable if not broker_setting(name).no_effect):
            targets = _targets(name)
            is_own = name not in _RELOADABLE and not any(name in values for _, values in self._dynamic)
            if is_own or any(self._values.get(target) != before.get(target) for target in targets):
                changed.append(_difference(name, old.get(name), new.given.get(name)))
            elif any(target in values for _, values in self._dynamic for target in targets):
                overridden.append(_difference(name, old.get(name), new.given.get(name)))
        return Reloaded(changed, [name for name in names if name not in reloadable], overridden)

    def without_effect(self) -> Iterator[tuple[str, list[str]]]:
        """What was given and does nothing here, with a word on it."""
        given = [setting for name in self.given if (setting := broker_setting(name)).no_effect]
        quorum = sorted(setting.name for setting in given if setting.no_effect == KRAFT)
        others = sorted(setting.name for setting in given if setting.no_effect != KRAFT)
        if others:
            yield "settings of Kafka that have no effect here", others
        if quorum:
            yield (
                f"settings of KRaft have no effect here: {KRAFT}{'; this broker is alone' if self.lone else ''}",
                quorum,
            )

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
        return list(self._trace(broker_setting(name)))

    def trace_topic(self, name: str, overrides: Mapping[str, str]) -> list[FoundValue]:
        """Every place where the topic setting has a value, the one in force first."""
        setting = TOPIC_SETTINGS[name]
        found = [FoundValue(name, overrides[name], ConfigSource.DYNAMIC_TOPIC)] if name in overrides else []
        if setting.broker_name is not None:
            return found + self.trace(setting.broker_name)
        return [*found, FoundValue(name, setting.default or "", ConfigSource.DEFAULT)]

    def _trace(self, setting: Setting) -> Iterator[FoundValue]:
        for source, values in self._dynamic:
            if setting.name in values:
                yield FoundValue(setting.name, values[setting.name], source)
        for name, factor in ((setting.name, 1), *setting.fallbacks):
            if name in self.given:
                yield FoundValue(name, self.given[name], ConfigSource.STATIC_BROKER, factor)
        default = _SYNC_EACH.get(setting.name, setting.default) if self.lone else setting.default
        if default is not None:
            yield FoundValue(setting.name, default, ConfigSource.DEFAULT)

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
        value = broker_setting(found.name).parse(found.text)
        return scaled(value, found.factor)


def _checked(given: Mapping[str, str], *, lone: bool) -> tuple[dict[str, str], ListenerAddresses]:
    """The settings as they are used, and the listeners; `ConfigError` says everything that is wrong with them."""
    problems = [_problem(name, text) for name, text in given.items() if name not in ADDRESS_SETTINGS]
    used = dict(given)
    try:
        listeners = read_listeners(given, lone=lone)
    except ConfigError as error:
        listeners = read_listeners({})
        problems.append(str(error))
    else:
        problems.extend(unknown_listener_problem(name, given, listeners) for name in given)
        for name, addresses in ((LISTENERS, listeners.bound), (ADVERTISED, listeners.advertised)):
            if name in given:
                used[name] = ",".join(map(str, addresses))
    found = [problem for problem in (*problems, quorum_problem(given), zookeeper_problem(given)) if problem]
    if found:
        raise ConfigError(found[0] if len(found) == 1 else "\n".join((f"{len(found)} settings are wrong", *found)))
    return used, listeners


def _problem(name: str, text: str) -> str:
    try:
        broker_setting(name).parse(text)
    except ConfigError as error:
        return str(error)
    return ""


def _reloadable() -> Mapping[str, list[str]]:
    """The settings that a file can change while the broker runs, each with those whose values follow from it.

    Not `min.insync.replicas`: leaders and the controller have to change it together, as AlterConfigs has them do.
    """
    found: dict[str, list[str]] = {}
    for setting in BROKER_SETTINGS.values():
        if (setting.dynamic or setting.reloadable) and setting.name != "min.insync.replicas":
            for name in (setting.name, *(fallback for fallback, _ in setting.fallbacks)):
                found.setdefault(name, []).append(setting.name)
    return found


_RELOADABLE: Final = _reloadable()
_TLS: Final = frozenset(setting.name for setting in TLS_SETTINGS)
"""Of a listener they are looked at while it runs."""


def _targets(name: str) -> list[str]:
    """Whose values follow from a setting that a file can change while the broker runs; none where it cannot."""
    own = own_name(name)
    return [name] if own is not None and own.setting in _TLS else _RELOADABLE.get(name, [])


def _difference(name: str, old: str | None, new: str | None) -> str:
    if broker_setting(name).sensitive:
        return name
    before, after = ("not set" if text is None else shown(text.strip()) for text in (old, new))
    return f"{name} {before} -> {after}"


def scaled(value: Value, factor: int) -> Value:
    """A value in hours or minutes as milliseconds. A negative one means no limit, whatever the unit."""
    if factor == 1 or not isinstance(value, int):
        return value
    return value * factor if value >= 0 else -1


def broker_setting(name: str) -> Setting:
    """The broker setting of that name, or of one listener; `ConfigError` when there is none."""
    setting = BROKER_SETTINGS.get(name)
    if setting is None and (own := own_name(name)) is not None and own.setting in BROKER_SETTINGS:
        setting = BROKER_SETTINGS[own.setting]
        setting = replace(setting, name=name, dynamic=setting.dynamic and own.setting in _TLS)
        return replace(setting, no_effect="") if own.setting == JAAS_CONFIG else setting
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
                if setting.no_effect:
                    raise ConfigError(f"Cannot update {name} dynamically: it has no effect here, {setting.no_effect}")
                raise ConfigError(
                    f"Cannot update {name} dynamically: it is read when the broker starts; "
                    "change it in the broker's settings file and restart the broker"
                )
            setting.parse(text)
        except ConfigError as error:
            raise CodedError(ErrorCode.invalid_request, str(error)) from None
