"""Settings of one listener: `listener.name.<listener>.<setting>`, and `listener.name.<listener>.<mechanism>.<setting>`
for one SASL mechanism on it. Names of listeners and mechanisms are written small, as in Kafka.
"""

from typing import Final, NamedTuple

from .sasl import JAAS_CONFIG, MAX_REAUTH_MS, MECHANISMS

PREFIX: Final = "listener.name."
_MECHANISMS: Final = tuple(f"{mechanism.lower()}." for mechanism in MECHANISMS)
_FAMILIES: Final = ("sasl.", "ssl.")
_NAMES: Final = frozenset(
    {
        MAX_REAUTH_MS,
        "connections.max.idle.ms",
        "max.connections",
        "max.connections.per.ip",
        "max.connection.creation.rate",
    }
)
_OF_MECHANISMS_ONLY: Final = frozenset({JAAS_CONFIG})
"""That say nothing where they stand for all mechanisms."""


class OwnName(NamedTuple):
    """What such a name is made of."""

    listener: str
    mechanism: str
    """Empty where it is for all mechanisms."""
    setting: str


def own_name(name: str) -> OwnName | None:
    """The parts of a setting's name that is one listener's; None where it is none."""
    if not name.startswith(PREFIX):
        return None
    listener, _, setting = name[len(PREFIX) :].partition(".")
    mechanism = next((each for each in _MECHANISMS if setting.startswith(each)), "")
    setting = setting.removeprefix(mechanism)
    can_be = setting.startswith(_FAMILIES) or setting in _NAMES
    if not listener or not can_be or (not mechanism and setting in _OF_MECHANISMS_ONLY):
        return None
    return OwnName(listener, mechanism.rstrip("."), setting)


def names_for(listener: str, setting: str, mechanism: str = "") -> tuple[str, ...]:
    """The names that a setting can have for a mechanism on a listener, the one that goes first first."""
    prefix = f"{PREFIX}{listener.lower()}."
    own = (f"{prefix}{mechanism.lower()}.{setting}",) if mechanism else ()
    return own if setting in _OF_MECHANISMS_ONLY else (*own, f"{prefix}{setting}")
