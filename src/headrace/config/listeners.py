"""The addresses that a broker serves, out of `listeners` and the settings around it.

A listener has a name, which stands in capitals, and a protocol, which is its name or what
`listener.security.protocol.map` says. The rules are Kafka's: names and ports once each, a wildcard needs an address
for clients, only listeners that exist are advertised, and brokers reach each other at one that is. Listeners of
controllers, which Kafka's own files have and which do not exist here, are left out.

What `listener.name.<listener>.` stands before counts for that listener alone.
"""

import re
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from headrace.net.address import is_loopback

from .names import shown
from .per_listener import own_name
from .setting import ConfigError, Setting, Type, Value, ValueRule

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
PROTOCOL_MAP: Final = "listener.security.protocol.map"
CONTROLLER_NAMES: Final = "controller.listener.names"
INTER_BROKER_NAME: Final = "inter.broker.listener.name"
INTER_BROKER_PROTOCOL: Final = "security.inter.broker.protocol"
ALLOW_ANONYMOUS: Final = "headrace.allow.anonymous.listeners"
ADDRESS_SETTINGS: Final = (LISTENERS, ADVERTISED, PROTOCOL_MAP, INTER_BROKER_NAME, INTER_BROKER_PROTOCOL)
"""They are checked together."""
DEFAULT_LISTENERS: Final = "PLAINTEXT://127.0.0.1:9092"
_DEFAULT_MAP: Final = ",".join(f"{protocol}:{protocol}" for protocol in PROTOCOLS)
_ADDRESS: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_-]+)://(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:\[\]/\s]*)):(?P<port>\d{1,5})", re.ASCII
)
_NAME: Final = re.compile(r"\s*([^\s:/,]+)://")
_PAIR: Final = re.compile(r"\s*(?P<name>[A-Za-z0-9_-]+)\s*:\s*(?P<protocol>\w+)\s*", re.ASCII)
WILDCARDS: Final = ("", "0.0.0.0", "::")
_FORM: Final = "must look like PLAINTEXT://127.0.0.1:9092"


class ListenerAddress(NamedTuple):
    """An address: where the broker listens, or where clients are told to find it."""

    name: str
    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def encrypts(self) -> bool:
        """Whether it speaks TLS."""
        return self.protocol in (SSL, SASL_SSL)

    @property
    def asks_for_login(self) -> bool:
        """Whether clients authenticate by SASL."""
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        return is_loopback(self.host)


class ListenerAddresses(NamedTuple):
    """All of a broker's."""

    bound: tuple[ListenerAddress, ...]
    """Where it listens."""
    advertised: tuple[ListenerAddress, ...]
    """Where it is found; those that are not advertised are found only by who knows of them."""
    inter_broker: str
    """The name of the one at which other brokers reach this one."""
    is_inter_broker_set: bool
    """Whether that was said. Then brokers are let in nowhere else."""

    @property
    def client(self) -> str:
        """The name of the one that stands for this broker where one address does: the first that is not for brokers."""
        names = [listener.name for listener in self.advertised]
        for_clients = [name for name in names if not (self.is_inter_broker_set and name == self.inter_broker)]
        return (for_clients or names)[0]


def parse_listener(text: str, protocols: Mapping[str, str] | None = None) -> ListenerAddress:
    """`PLAINTEXT://host:port` as an address; `ConfigError` when it is not one."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(f"Invalid address '{shown(text.strip())}': {_FORM}")
    if match["v6"] is not None and not isinstance(_ip(match["v6"].partition("%")[0]), IPv6Address):
        raise ConfigError(f"Invalid address '{shown(text.strip())}': '{shown(match['v6'])}' is no IPv6 address")
    name = match["name"].upper()
    protocol = (protocols or {}).get(name, name)
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"Invalid address '{shown(text.strip())}': what the listener {name} speaks is not known; "
            f"say it in {PROTOCOL_MAP}, as {name}:SASL_SSL, one of {', '.join(PROTOCOLS)}"
        )
    return ListenerAddress(name, protocol, match["v6"] or match["host"], int(match["port"]))


def is_advertisable(listener: ListenerAddress) -> bool:
    """Whether clients could connect to it from elsewhere."""
    return listener.host not in WILDCARDS


def read_listeners(given: Mapping[str, str], *, lone: bool = True) -> ListenerAddresses:
    """The listeners that the settings come to; `ConfigError` says what is wrong with them and what to do."""
    protocols = _protocols(given.get(PROTOCOL_MAP, ""))
    controllers = _controllers(given)
    bound = _addresses(LISTENERS, given.get(LISTENERS) or DEFAULT_LISTENERS, protocols, controllers)
    _refuse_shared_ports(bound)
    advertised = bound
    if given.get(ADVERTISED, "").strip():
        advertised = _addresses(ADVERTISED, given[ADVERTISED], protocols, controllers)
        _refuse_unknown(bound, advertised)
    name, is_set = _inter_broker(given, advertised, lone=lone)
    return ListenerAddresses(bound, advertised, name, is_set)


def unknown_listener_problem(setting: str, given: Mapping[str, str], listeners: ListenerAddresses) -> str:
    """Why a setting of a listener is of no use, as nobody listens there: a protection would seem to be on."""
    own = own_name(setting)
    if own is None:
        return ""
    name = own.listener.upper()
    named = {listener.name for listener in listeners.bound}
    if name in named | _controllers(given) | set(_protocols(given.get(PROTOCOL_MAP, ""))) | set(PROTOCOLS):
        return ""
    return f"{shown(setting)} is of a listener {name} that does not exist; there are {', '.join(sorted(named))}"


def _protocols(text: str) -> dict[str, str]:
    """Listener names and what they speak."""
    protocols: dict[str, str] = {}
    for pair in (pair for pair in text.split(",") if pair.strip()):
        match = _PAIR.fullmatch(pair)
        if match is None:
            raise ConfigError(f"Invalid value '{shown(text)}' for configuration {PROTOCOL_MAP}: must be {_MAP.words}")
        name, protocol = match["name"].upper(), match["protocol"].upper()
        if protocol not in PROTOCOLS:
            raise ConfigError(
                f"{PROTOCOL_MAP} has {name} speak {shown(protocol)}, which is none of {', '.join(PROTOCOLS)}"
            )
        if protocols.setdefault(name, protocol) != protocol:
            raise ConfigError(f"{PROTOCOL_MAP} has {name} speak both {protocols[name]} and {protocol}; keep one")
    return protocols


def _controllers(given: Mapping[str, str]) -> set[str]:
    return {name.strip().upper() for name in given.get(CONTROLLER_NAMES, "").split(",") if name.strip()}


def _addresses(
    setting: str, text: str, protocols: Mapping[str, str], controllers: set[str]
) -> tuple[ListenerAddress, ...]:
    texts = [each.strip() for each in text.split(",") if each.strip()]
    served = [each for each in texts if _name(each) not in controllers]
    if not served:
        raise ConfigError(
            f"{setting} has addresses of {CONTROLLER_NAMES} only, and a broker is no controller of its own here: "
            f"write {setting}={DEFAULT_LISTENERS}, or where clients are to connect"
        )
    listeners = [_parsed(setting, each, protocols) for each in served]
    names = [listener.name for listener in listeners]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"{setting} has more than one listener {', '.join(twice)}: each must have a different name, "
            f"which {PROTOCOL_MAP} gives a protocol (INTERNAL:{PLAINTEXT},EXTERNAL:{SASL_SSL})"
        )
    return tuple(listeners)


def _parsed(setting: str, text: str, protocols: Mapping[str, str]) -> ListenerAddress:
    try:
        return parse_listener(text, protocols)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None


def _name(text: str) -> str:
    match = _NAME.match(text)
    return "" if match is None else match[1].upper()


def _refuse_shared_ports(bound: tuple[ListenerAddress, ...]) -> None:
    """Kafka's rule: one listener a port, or two where one is at an IPv4 address and the other at an IPv6 one."""
    by_port: dict[int, list[ListenerAddress]] = {}
    for listener in bound:
        if listener.port:
            by_port.setdefault(listener.port, []).append(listener)
    for port, shared in by_port.items():
        kinds = sorted(type(_ip(listener.host)).__name__ for listener in shared)
        if len(shared) > 1 and kinds != [IPv4Address.__name__, IPv6Address.__name__]:
            raise ConfigError(
                f"{LISTENERS} has {' and '.join(map(str, shared))}: each listener must have a different port than "
                f"{port}, unless one is at an IPv4 address and the other at an IPv6 one"
            )


def _refuse_unknown(bound: tuple[ListenerAddress, ...], advertised: tuple[ListenerAddress, ...]) -> None:
    names = {listener.name for listener in bound}
    unknown = [listener.name for listener in advertised if listener.name not in names]
    if unknown:
        raise ConfigError(
            f"{ADVERTISED} names {', '.join(unknown)}, which {LISTENERS} does not: it has {', '.join(sorted(names))}"
        )


def _inter_broker(given: Mapping[str, str], advertised: tuple[ListenerAddress, ...], *, lone: bool) -> tuple[str, bool]:
    """The name of the listener for brokers, and whether it was said."""
    name, protocol = (given.get(setting, "").strip().upper() for setting in (INTER_BROKER_NAME, INTER_BROKER_PROTOCOL))
    names = [listener.name for listener in advertised]
    if name and protocol:
        raise ConfigError(f"Only one of {INTER_BROKER_NAME} and {INTER_BROKER_PROTOCOL} should be set; keep the first")
    if protocol and protocol not in PROTOCOLS:
        raise ConfigError(
            f"Invalid value '{shown(protocol)}' for configuration {INTER_BROKER_PROTOCOL}: "
            f"must be one of {', '.join(PROTOCOLS)}"
        )
    if name or protocol:
        if (name or protocol) not in names:
            setting = INTER_BROKER_NAME if name else INTER_BROKER_PROTOCOL
            raise ConfigError(
                f"{setting}={shown(name or protocol)}: brokers reach each other at a listener that is advertised, and "
                f"these are: {', '.join(names)}"
            )
        return name or protocol, True
    if len(names) == 1 or lone:
        return names[0], False
    if PLAINTEXT in names:
        return PLAINTEXT, False
    raise ConfigError(
        f"There are {len(names)} listeners, {', '.join(names)}: say at which one the brokers reach each other, "
        f"{INTER_BROKER_NAME}={names[0]}"
    )


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_map(value: Value) -> bool:
    return all(_PAIR.fullmatch(pair) for pair in str(value).split(",") if pair.strip())


_MAP: Final = ValueRule(holds=_is_map, words="pairs like INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL")


def _settings() -> Iterator[Setting]:
    yield Setting(
        name=LISTENERS,
        type=Type.STRING,
        default=DEFAULT_LISTENERS,
        doc="The addresses to listen on, as NAME://HOST:PORT,… where a name is a protocol (PLAINTEXT, SSL, "
        f"SASL_PLAINTEXT, SASL_SSL) or has one in {PROTOCOL_MAP}. 0.0.0.0 listens on all; then advertised.listeners "
        "must be set.",
        importance="high",
    )
    yield Setting(
        name=ADVERTISED,
        type=Type.STRING,
        default=None,
        doc="The addresses that clients and brokers are told to connect to, each with the name of its listener: who "
        "asks on a listener is told those of the same name. The same as listeners where it is not set.",
        importance="high",
    )
    yield Setting(
        name=PROTOCOL_MAP,
        type=Type.STRING,
        default=_DEFAULT_MAP,
        rule=_MAP,
        doc="What a listener that has a name of its own speaks.",
    )
    yield Setting(
        name=INTER_BROKER_NAME,
        type=Type.STRING,
        default=None,
        doc="The listener at which other brokers reach this one, and the only one on which they are let in. Where it "
        "is not set, brokers are let in on each, and reach this one at the only one, or at the one named PLAINTEXT.",
    )
    yield Setting(
        name=INTER_BROKER_PROTOCOL,
        type=Type.STRING,
        default=None,
        doc=f"The same as {INTER_BROKER_NAME}, for a listener whose name is its protocol.",
    )
    yield Setting(
        name=ALLOW_ANONYMOUS,
        type=Type.BOOLEAN,
        default="false",
        doc="Whether a broker may listen beyond this machine where clients do not authenticate: on PLAINTEXT, or on "
        "SSL without ssl.client.auth=required. Whoever reaches such a listener may do everything, unless an authorizer "
        "says otherwise of User:ANONYMOUS.",
        importance="high",
    )


LISTENER_SETTINGS: Final = tuple(_settings())
