"""The address that a broker serves, out of `listeners` and the settings around it.

A broker has one listener so far. Kafka's own files name more: those for controllers, which do not exist here, are left
out; of the others there may be one. It may have a name of its own, which `listener.security.protocol.map` explains.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from .names import shown
from .setting import ConfigError, Rule, Setting, Type, Value

SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", SASL_PLAINTEXT, SASL_SSL)
PROTOCOL_MAP: Final = "listener.security.protocol.map"
CONTROLLER_NAMES: Final = "controller.listener.names"
_ADDRESSES: Final = ("listeners", "advertised.listeners")
_LISTENER: Final = re.compile(
    r"(?P<protocol>[A-Za-z_]+)://(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})"
)
_NAME: Final = re.compile(r"\s*([^\s:/,]+)://")


class Listener(NamedTuple):
    """An address: where the broker listens, or where clients are told to find it."""

    protocol: str
    host: str
    port: int


def parse_listener(text: str) -> Listener:
    """`PLAINTEXT://host:port` as an address; `ConfigError` when it is not one."""
    match = _LISTENER.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(f"Invalid address {text!r}: must look like PLAINTEXT://127.0.0.1:9092")
    protocol = match["protocol"].upper()
    if protocol not in PROTOCOLS:
        raise ConfigError(f"Invalid address {text!r}: {protocol} is not served, use one of {', '.join(PROTOCOLS)}")
    return Listener(protocol, match["v6"] or match["host"], int(match["port"]))


def _is_address(value: Value) -> bool:
    try:
        parse_listener(str(value))
    except ConfigError:
        return False
    return True


_ADDRESS: Final = Rule(holds=_is_address, words="one address like PLAINTEXT://127.0.0.1:9092")
LISTENER_SETTINGS: Final = (
    Setting(
        name="listeners",
        type=Type.STRING,
        default="PLAINTEXT://127.0.0.1:9092",
        rule=_ADDRESS,
        doc="The address to listen on, one so far. 0.0.0.0 listens on all; then advertised.listeners must be set.",
        importance="high",
    ),
    Setting(
        name="advertised.listeners",
        type=Type.STRING,
        default=None,
        rule=_ADDRESS,
        doc="The address that clients are told to connect to. The same as listeners where it is not set.",
        importance="high",
    ),
    Setting(
        name=PROTOCOL_MAP,
        type=Type.STRING,
        default="PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        rule=Rule(
            holds=lambda value: all(re.fullmatch(r"\s*\w+:\w+\s*", pair) for pair in str(value).split(",")),
            words="pairs like INTERNAL:PLAINTEXT,EXTERNAL:SASL_PLAINTEXT",
        ),
        doc="What a listener that has a name of its own speaks.",
    ),
)


def with_one_listener(given: Mapping[str, str]) -> dict[str, str]:
    """The settings with one address in `listeners` and in `advertised.listeners`, where they are given.

    `ConfigError` says which addresses are too many, and what to write.
    """
    protocols = _protocols(given.get(PROTOCOL_MAP, ""))
    controllers = {name.strip().upper() for name in given.get(CONTROLLER_NAMES, "").split(",") if name.strip()}
    settings = dict(given)
    for setting in _ADDRESSES:
        addresses = [text.strip() for text in given.get(setting, "").split(",") if text.strip()]
        served = [text for text in addresses if _name(text) not in controllers]
        if addresses and not served:
            raise ConfigError(
                f"{setting} has addresses of {CONTROLLER_NAMES} only, and a broker is no controller of its own here: "
                f"write {setting}=PLAINTEXT://127.0.0.1:9092, or where clients are to connect"
            )
        if len(served) > 1:
            raise ConfigError(_too_many(setting, served, protocols))
        if served:
            settings[setting] = _in_protocol(served[0], protocols)
    return settings


def _protocols(text: str) -> dict[str, str]:
    """Listener names and what they speak."""
    pairs = (pair.partition(":") for pair in text.split(","))
    return {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs if protocol.strip()}


def _name(text: str) -> str:
    match = _NAME.match(text)
    return "" if match is None else match[1].upper()


def _in_protocol(text: str, protocols: Mapping[str, str]) -> str:
    """The address with the protocol that its listener's name stands for."""
    name = _name(text)
    return f"{protocols[name]}{text[text.index('://') :]}" if name in protocols else text


def _too_many(setting: str, addresses: list[str], protocols: Mapping[str, str]) -> str:
    usable = [text for text in addresses if _is_address(_in_protocol(text, protocols))]
    keep = _in_protocol((usable or ["PLAINTEXT://127.0.0.1:9092"])[0], protocols)
    return (
        f"{setting} has {len(addresses)} addresses, {shown(', '.join(addresses))}: a broker serves one listener so "
        f"far, {' or '.join(PROTOCOLS)}. Keep the one that clients and the other brokers all reach: write "
        f"{setting}={keep}"
    )
