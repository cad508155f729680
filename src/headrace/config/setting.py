"""What a setting is: its name, its type, what it may hold, and how its text becomes a value."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from .names import shown

Value = bool | int | float | str | tuple[str, ...] | None
"""What a setting holds once parsed."""

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1


class ConfigError(Exception):
    """A setting that does not exist or cannot have the value it was given; the message says what to do."""


class Type(Enum):
    """Kafka's types of settings, with the number each has in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Where a value comes from, numbered as in DescribeConfigs; of the first five the lower number wins."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRule:
    """What a value must satisfy, and the same in words."""

    holds: Callable[[Value], bool]
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a topic or of a broker."""

    name: str
    type: Type
    default: str | None
    doc: str
    rule: ValueRule | None = None
    importance: str = "medium"
    dynamic: bool = False
    """Whether it can be changed while the broker runs; topic settings always can."""
    reloadable: bool = False
    """Whether another reading of the settings file can change it although no request can, as it is a secret."""
    obsolete: bool = False
    """Accepted for old tools, without effect, and described only where it is set."""
    no_effect: str = ""
    """Why it is accepted and does nothing here; empty for a setting that is honoured."""
    broker_name: str | None = None
    """Of a topic setting: the broker setting that holds its default."""
    fallbacks: tuple[tuple[str, int], ...] = ()
    """Settings that speak where this one is not given, with the factor that turns their value into this one's."""

    @property
    def sensitive(self) -> bool:
        return self.type is Type.PASSWORD

    def parse(self, text: str) -> Value:
        """The value that the text stands for; `ConfigError` when it is not allowed here."""
        text = text.strip()
        try:
            value = _PARSERS[self.type](text)
        except ValueError as error:
            raise self._refusal(text, str(error)) from None
        if self.rule is not None and not self.rule.holds(value):
            raise self._refusal(text, self.rule.words)
        return value

    def _refusal(self, text: str, allowed: str) -> ConfigError:
        value = "of a password" if self.sensitive else f"'{shown(text)}'"
        return ConfigError(f"Invalid value {value} for configuration {self.name}: must be {allowed}")


def render(value: Value) -> str | None:
    """A value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return None if value is None else str(value)


def at_least(low: int) -> ValueRule:
    return ValueRule(holds=lambda value: isinstance(value, int) and value >= low, words=f"at least {low}")


def between(low: float, high: float) -> ValueRule:
    return ValueRule(
        holds=lambda value: isinstance(value, int | float) and low <= value <= high, words=f"between {low} and {high}"
    )


def one_of(*allowed: str) -> ValueRule:
    return ValueRule(holds=lambda value: value in allowed, words=f"one of {', '.join(allowed)}")


def only(allowed: Value, words: str) -> ValueRule:
    return ValueRule(holds=lambda value: value == allowed, words=words)


def some_of(*allowed: str, least: int = 1) -> ValueRule:
    def holds(value: Value) -> bool:
        return (
            isinstance(value, tuple)
            and len(value) >= least
            and len(set(value)) == len(value)
            and set(value) <= set(allowed)
        )

    count = "one or more" if least else "any"
    return ValueRule(holds=holds, words=f"{count} of {', '.join(allowed)}, each once")


def _boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError("true or false")
    return lowered == "true"


def _whole_number(bits: int) -> Callable[[str], int]:
    limit = 1 << (bits - 1)

    def parse(text: str) -> int:
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and -limit <= int(text) < limit):
            raise ValueError(f"a whole number from {-limit} to {limit - 1}")
        return int(text)

    return parse


def _double(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("a number")
    return value


def _list(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",")) if text else ()


_PARSERS: Final[dict[Type, Callable[[str], Value]]] = {
    Type.BOOLEAN: _boolean,
    Type.STRING: str,
    Type.INT: _whole_number(32),
    Type.SHORT: _whole_number(16),
    Type.LONG: _whole_number(64),
    Type.DOUBLE: _double,
    Type.LIST: _list,
    Type.CLASS: str,
    Type.PASSWORD: str,
}
