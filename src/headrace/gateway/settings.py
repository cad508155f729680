"""The settings of a gateway."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.net.address import Address

ANONYMOUS: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user of the brokers."""

    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How brokers are reached and callers are served."""

    bootstrap: tuple[Address, ...]
    mechanism: str | None = None
    """The SASL mechanism that callers' names and passwords go out with; None where brokers have no SASL."""
    broker_tls: ssl.SSLContext | None = None
    own: Account | None = None
    """Who the gateway itself is: for pushing and for its probes."""
    certificates: Mapping[str, Account] = field(default_factory=dict)
    """Users by the common name of the certificate with which a caller came."""
    push_allow: tuple[str, ...] = ()
    """Addresses, networks and names that callbacks may have although they are not public."""
    push_keys: tuple[bytes, ...] = field(default=(), repr=False)
    """What subscriptions are sealed with; the same in all gateways of a cluster. Without any they are kept as they
    are."""
    advertise: str = ""
    """The URL under which this very gateway is reached, for what only it can answer."""
    patience: float = 15.0
    """Seconds that a call to the brokers goes on trying."""
    metrics: bool = True
    """Whether /metrics is served, to whoever can reach the gateway."""
    mover: Mapping[str, str] | None = field(default=None, repr=False)
    """How librdkafka reaches the brokers as the gateway's own user, to move delayed messages; None: not moved here."""
    most_clients: int = 256
    """Users with open connections at the same time."""
