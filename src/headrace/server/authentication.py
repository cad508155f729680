"""Before a connection is known: SaslHandshake 0-1, SaslAuthenticate 0-2, and what else may be asked.

    state \\ API    ApiVersions   SaslHandshake   SaslAuthenticate   Hello                  any other
    NEW            NEW           CHOSEN          closed             NEW, KNOWN or closed   closed
    CHOSEN         closed        closed          KNOWN or closed    closed                 closed
    KNOWN          served        closed          closed             closed                 served

On a listener without SASL a connection is KNOWN from the start, and SaslHandshake is answered ILLEGAL_SASL_STATE.
A wrong password is answered after a delay that grows with each failure from the same address; meanwhile nothing more
is read from the connection. Other logins from that address take turns: none is answered, right or wrong, until a pause
after the last failure has passed, so that hanging up early makes nobody guess faster. One that finds `MOST_WAITING`
before it is closed unanswered. After SaslHandshake v0 tokens come as bare frames, without a request header. Hello is
how another broker of the cluster becomes known instead: see `handlers.peer`.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

from .connection import Connection, Parts, Slot

log = structlog.get_logger(__name__)

UNKNOWN_FRAME_LIMIT: Final = 512 * 1024
"""The largest request of a client that is not known yet."""
MOST_WAITING: Final = 40
"""Logins of one address that wait for their turn."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Login:
    """A login whose verdict is known here, but not told yet."""

    slot: Slot
    user: str
    """As it is shown, where the token is wrong."""
    is_right: bool
    answer: Parts | None
    """None where only closing the connection says that it is wrong."""


class Authenticator:
    """Brings the connections of a SASL listener from NEW to KNOWN."""

    def __init__(self, loop: AbstractEventLoop, users: Mapping[str, str], frame_limit: int) -> None:
        self._loop = loop
        self._users = users
        self._failed_logins = FailedLogins()
        self._frame_limit = frame_limit
        self._states: dict[Connection, AuthenticationState] = {}
        self._waiting: dict[str, deque[_Login]] = {}
        """By address, for those where somebody waits."""

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

    def authenticate(self, connection: Connection, token: bytes, answer: Callable[[dict[str, Any]], Parts]) -> None:
        """SaslAuthenticate: its answer, encoded by `answer`, may come later. After it the connection is KNOWN, or is
        closed where the token is wrong.
        """
        code = ErrorCode.sasl_authentication_failed
        self._log_in(
            connection,
            token,
            right=answer(
                {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": b"", "session_lifetime": 0}
            ),
            wrong=lambda message: answer({"error_code": code, "error_message": message, "auth_bytes": b""}),
        )

    def take_bare_token(self, connection: Connection, token: bytes) -> None:
        """A token after SaslHandshake v0; what is wrong with it can only be told by closing."""
        self._log_in(connection, token, right=[_LENGTH.pack(0)], wrong=lambda _message: None)

    def _log_in(
        self, connection: Connection, token: bytes, *, right: Parts, wrong: Callable[[str], Parts | None]
    ) -> None:
        slot = connection.open_slot()
        try:
            login = _Login(slot=slot, user=authenticate_plain(token, self._users), is_right=True, answer=right)
        except AuthenticationFailed as failure:
            login = _Login(slot=slot, user=shown(failure.user), is_right=False, answer=wrong(str(failure)))
        waiting = self._waiting.get(connection.peer)
        if waiting is None:
            pause = self._pause(connection.peer)
            if not pause:
                self._tell(login)
                return
            waiting = self._waiting[connection.peer] = deque()
            self._loop.call_later(pause, self._take_turns, connection.peer)
        if len(waiting) >= MOST_WAITING:
            connection.close()
            return
        connection.hold()
        waiting.append(login)

    def _pause(self, address: str) -> float:
        return self._failed_logins.pause(address, self._loop.time())

    def _take_turns(self, address: str) -> None:
        """Tell those who wait their verdicts, up to the next one that is wrong."""
        waiting = self._waiting[address]
        while waiting:
            pause = self._pause(address)
            if pause:
                self._loop.call_later(pause, self._take_turns, address)
                return
            login = waiting.popleft()
            if not login.slot.connection.is_closed:
                self._tell(login)
        del self._waiting[address]

    def _tell(self, login: _Login) -> None:
        connection = login.slot.connection
        if login.is_right:
            self.admit(connection, f"User:{login.user}")
            login.slot.answer(login.answer)
            if connection.is_held:
                connection.release()
            return
        connection.hold()
        connection.drain()
        delay = self._failed(connection, login.user)
        self._loop.call_later(
            delay, connection.close if login.answer is None else lambda: login.slot.answer(login.answer)
        )

    def _failed(self, connection: Connection, user: str) -> float:
        """Count a failed login; the seconds until it is answered."""
        failed = self._failed_logins.failed(connection.peer, self._loop.time())
        if failed.is_reported:
            log.warning(
                "authentication failed", user=user, peer=connection.peer, mechanism=PLAIN, failures=failed.failures
            )
        return failed.delay

    def admit(self, connection: Connection, principal: str) -> None:
        """Somebody has shown who it is: the connection is KNOWN."""
        connection.principal = principal
        connection.is_known = True
        connection.set_frame_limit(self._frame_limit)
        self._states.pop(connection, None)
