"""Before a connection is known: SaslHandshake 0-1, SaslAuthenticate 0-2, and what else may be asked.

    state \\ API    ApiVersions   SaslHandshake   SaslAuthenticate   Hello                  any other
    NEW            NEW           CHOSEN          closed             NEW, KNOWN or closed   closed
    CHOSEN         closed        closed          KNOWN or closed    closed                 closed
    KNOWN          served        closed          closed             closed                 served

On a listener without SASL a connection is KNOWN from the start, and SaslHandshake is answered ILLEGAL_SASL_STATE.
A wrong password is answered after a delay that grows with each failure from the same address; meanwhile nothing more
is read from the connection. After SaslHandshake v0 tokens come as bare frames, without a request header. Hello is how
another broker of the cluster becomes known instead: see `handlers.peer`.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from enum import Enum, auto
from struct import Struct
from typing import Any, Final

import structlog

from headrace.config.names import shown
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode, ProtocolViolation
from headrace.protocol.peer import InternalApi
from headrace.security.failed_logins import FailedLogins
from headrace.security.sasl import PLAIN, AuthenticationFailed, authenticate_plain

from .connection import Connection, Parts

log = structlog.get_logger(__name__)

UNKNOWN_FRAME_LIMIT: Final = 512 * 1024
"""The largest request of a client that is not known yet."""
_LENGTH: Final = Struct(">i")


class AuthenticationState(Enum):
    """How far a connection has come."""

    NEW = auto()
    CHOSEN = auto()
    CHOSEN_BARE = auto()
    KNOWN = auto()


_ADMITTED: Final[dict[AuthenticationState, frozenset[int]]] = {
    AuthenticationState.NEW: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, InternalApi.HELLO}),
    AuthenticationState.CHOSEN: frozenset({ApiKey.SASL_AUTHENTICATE}),
}


class Authenticator:
    """Brings the connections of a SASL listener from NEW to KNOWN."""

    def __init__(self, loop: AbstractEventLoop, users: Mapping[str, str], frame_limit: int) -> None:
        self._loop = loop
        self._users = users
        self._failed_logins = FailedLogins()
        self._frame_limit = frame_limit
        self._states: dict[Connection, AuthenticationState] = {}

    def open(self, connection: Connection) -> None:
        """A connection was accepted."""
        connection.is_known = False
        connection.set_frame_limit(UNKNOWN_FRAME_LIMIT)
        self._states[connection] = AuthenticationState.NEW

    def close(self, connection: Connection) -> None:
        self._states.pop(connection, None)

    def check(self, connection: Connection, api_key: int) -> None:
        """Raises `ProtocolViolation` unless the API may be asked for in the connection's state."""
        if api_key not in _ADMITTED[self._states[connection]]:
            raise ProtocolViolation(f"API {api_key} before the client has authenticated")

    def takes_bare_token(self, connection: Connection) -> bool:
        return self._states.get(connection) is AuthenticationState.CHOSEN_BARE

    def handshake(self, connection: Connection, mechanism: str, version: int) -> dict[str, Any]:
        """The answer to SaslHandshake."""
        if mechanism != PLAIN:
            return {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": [PLAIN]}
        self._states[connection] = AuthenticationState.CHOSEN_BARE if version == 0 else AuthenticationState.CHOSEN
        return {"error_code": ErrorCode.none, "mechanisms": [PLAIN]}

    def authenticate(
        self, connection: Connection, token: bytes, answer: Callable[[dict[str, Any]], Parts]
    ) -> Parts | None:
        """The answer to SaslAuthenticate, encoded by `answer`: the connection is KNOWN afterwards. None where the token
        is wrong: then the answer comes later, and the connection is closed after it.
        """
        try:
            user = authenticate_plain(token, self._users)
        except AuthenticationFailed as failure:
            delay = self._delay(connection, failure)
            code = ErrorCode.sasl_authentication_failed
            parts = answer({"error_code": code, "error_message": str(failure), "auth_bytes": b""})
            slot = connection.open_slot()
            self._close_after(connection, delay, lambda: slot.answer(parts))
            return None
        self.admit(connection, f"User:{user}")
        return answer({"error_code": ErrorCode.none, "error_message": None, "auth_bytes": b"", "session_lifetime": 0})

    def take_bare_token(self, connection: Connection, token: bytes) -> None:
        """A token after SaslHandshake v0; what is wrong with it can only be told by closing."""
        try:
            user = authenticate_plain(token, self._users)
        except AuthenticationFailed as failure:
            connection.open_slot()
            self._close_after(connection, self._delay(connection, failure), connection.close)
            return
        self.admit(connection, f"User:{user}")
        connection.open_slot().answer([_LENGTH.pack(0)])

    def _delay(self, connection: Connection, failure: AuthenticationFailed) -> float:
        login = self._failed_logins.failed(connection.peer, self._loop.time())
        if login.is_reported:
            log.warning(
                "authentication failed",
                user=shown(failure.user),
                peer=connection.peer,
                mechanism=PLAIN,
                failures=login.failures,
            )
        return login.delay

    def _close_after(self, connection: Connection, delay: float, last: Callable[[], None]) -> None:
        """Serve nothing more, do what is last after the delay, then close."""
        connection.hold()
        connection.drain()
        self._loop.call_later(delay, last)

    def admit(self, connection: Connection, principal: str) -> None:
        """Somebody has shown who it is: the connection is KNOWN."""
        connection.principal = principal
        connection.is_known = True
        connection.set_frame_limit(self._frame_limit)
        self._states.pop(connection, None)
