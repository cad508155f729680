"""One authentication by SASL, as a server sees it: the client's tokens in, a step for each out. No I/O."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol


class AuthenticationFailed(Exception):
    """The client is not who it says. The message is what it is told, and tells it nothing about who exists; `user` is
    who it said it was, `reason` what was wrong: both for the log."""

    def __init__(self, message: str, user: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.user = user
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Challenge:
    """The client has to answer this."""

    token: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The client has shown who it is."""

    principal: str
    """`User:alice`."""
    token: bytes = b""
    """The last word to the client."""
    expires_at_ms: int | None = None
    """When what it has shown ends, in milliseconds since 1970; None for never."""
    by_token: bool = field(default=False)
    """Whether it holds a delegation token only: such a client makes no further ones."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be said yet: the same token is to be given again once this is over."""

    until: "Ready"


Ready = Callable[[], Awaitable[object]]
"""Returns when there is something to say."""
Step = Challenge | Done | Wait


class SaslServer(Protocol):
    """The server's side of one authentication."""

    def step(self, token: bytes) -> Step:
        """What follows from the client's next token; raises `AuthenticationFailed`, after which there is no next."""
        ...


Mechanism = Callable[[], SaslServer]
"""Begins an exchange."""


class _OnceReady:
    def __init__(
        self, exchange: SaslServer, is_ready: Callable[[], bool], ready: Callable[[], Awaitable[object]]
    ) -> None:
        self._exchange = exchange
        self._is_ready = is_ready
        self._ready = ready

    def step(self, token: bytes) -> Step:
        return self._exchange.step(token) if self._is_ready() else Wait(self._ready)


def once_ready(mechanism: Mechanism, is_ready: Callable[[], bool], ready: Ready) -> Mechanism:
    """The same mechanism for when its users are known: nobody is told before that a password is wrong."""
    return lambda: _OnceReady(mechanism(), is_ready, ready)


def user_principal(name: str) -> str:
    return f"User:{name}"


def refused(mechanism: str, user: str = "", reason: str = "") -> AuthenticationFailed:
    """The same words whatever was wrong, as Kafka's."""
    message = f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    return AuthenticationFailed(message, user, reason)
