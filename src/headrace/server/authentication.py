"""Before a connection is known, and when it has to show again who it is: SaslHandshake 0-1, SaslAuthenticate 0-2.

    state \\ API    ApiVersions   SaslHandshake   SaslAuthenticate          Hello                  any other
    NEW            NEW           CHOSEN          closed                    NEW, KNOWN or closed   closed
    CHOSEN         closed        closed          CHOSEN, KNOWN or closed   closed                 closed
    KNOWN          served        CHOSEN*         closed                    closed                 served
    EXPIRED        closed        CHOSEN          closed                    closed                 closed

On a listener without SASL a connection is KNOWN from the start, and SaslHandshake is answered ILLEGAL_SASL_STATE.
A mechanism of several steps (SCRAM) stays CHOSEN until its last. After SaslHandshake v0 tokens come as bare frames,
without a request header. Hello is how another broker of the cluster becomes known instead: see `handlers.peer`.

Sessions end (KIP-368) where `connections.max.reauth.ms` says so, or with the token that was shown; the client is told
when. * Until then, and after it, it may authenticate again: by the same mechanism, as the same principal, with
SaslHandshake v1, and not more than once a second. What else it asks once its session has EXPIRED closes the connection.

A wrong password is answered after a delay that grows with each failure from the same address; meanwhile nothing more
is read from the connection. Other logins from that address take turns: none is answered, right or wrong, until a pause
after the last failure has passed, so that hanging up early makes nobody guess faster. One that finds `MOST_WAITING`
before it is closed unanswered.
"""

from asyncio import AbstractEventLoop, TimerHandle, wait_for
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from struct import Struct
from typing import Any, Final, NamedTuple

import structlog

from headrace.config.names import shown
from headrace.net.clock import Clock, SystemClock
from headrace.net.tasks import Tasks
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode, ProtocolViolation
from headrace.protocol.peer import InternalApi
from headrace.security.failed_logins import FailedLogins, Turn
from headrace.security.sasl import AuthenticationFailed, Challenge, Done, Mechanism, SaslServer, Wait
from headrace.security.sasl.exchange import refused

from .connection import Connection, Parts, Slot

log = structlog.get_logger(__name__)

UNKNOWN_FRAME_LIMIT: Final = 512 * 1024
"""The largest request of a client that is not known yet."""
MOST_WAITING: Final = 40
"""Logins of one address that wait for their turn."""
MOST_ASKED: Final = 32
"""Requests of a connection before it has chosen a mechanism that there is: who is unknown has no quota. Clients need
two or three."""
AGAIN_SECONDS: Final = 1.0
"""Between two times that a client authenticates again, at least."""
_WAIT_SECONDS: Final = 15.0
"""For what a mechanism has to find out first."""
_LENGTH: Final = Struct(">i")


class AuthenticationState(Enum):
    """How far a connection has come."""

    NEW = auto()
    CHOSEN = auto()
    KNOWN = auto()
    EXPIRED = auto()


_ADMITTED: Final[dict[AuthenticationState, frozenset[int]]] = {
    AuthenticationState.NEW: frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, InternalApi.HELLO}),
    AuthenticationState.CHOSEN: frozenset({ApiKey.SASL_AUTHENTICATE}),
    AuthenticationState.EXPIRED: frozenset({ApiKey.SASL_HANDSHAKE}),
}


OnLogin = Callable[[Connection, str, str, str], None]
"""Given the mechanism, the principal (where it failed: as it was claimed), and why it failed, if it did."""


class SaslReply(NamedTuple):
    """How a client is answered, in the form of the token that it sent."""

    challenge: Callable[[bytes], Parts]
    right: Callable[[bytes, int], Parts]
    """Given the last word of the mechanism, and the milliseconds that the session lasts; 0 for no end."""
    wrong: Callable[[str], Parts | None]
    """None where only closing the connection says that it is wrong."""


@dataclass(slots=True)
class _Progress:
    """A connection on its way, or one that will have to come again."""

    state: AuthenticationState = AuthenticationState.NEW
    mechanism: str = ""
    exchange: SaslServer | None = None
    is_bare: bool = False
    principal: str | None = None
    """Who it was before, where it authenticates again."""
    requests: int = 0
    """Requests while it was NEW."""
    begun_again_at: float = float("-inf")
    expiry: TimerHandle | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Login:
    """A login whose verdict is known here, but not told yet."""

    slot: Slot
    mechanism: str
    reply: SaslReply
    verdict: Done | AuthenticationFailed


@dataclass(slots=True)
class LoginCounts:
    """What has become of logins, since the start."""

    succeeded: int = 0
    failed: int = 0
    repeated: int = 0
    """Of those that succeeded, by clients that were known before."""
    expired: int = 0
    """Connections closed because they were used after their session had ended."""


class Authenticator:
    """Brings the connections of a SASL listener from NEW to KNOWN, and again when their sessions end."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        mechanisms: Mapping[str, Mechanism],
        frame_limit: int,
        *,
        session_ms: Mapping[str, int] | None = None,
        clock: Clock | None = None,
        failed_logins: FailedLogins | None = None,
        longest_token: int = UNKNOWN_FRAME_LIMIT,
    ) -> None:
        self._loop = loop
        self._mechanisms = mechanisms
        self._session_ms = session_ms or {}
        """By mechanism: how long a session lasts at most; 0 for any time."""
        self._clock = clock or SystemClock()
        self._failed_logins = failed_logins or FailedLogins()
        self._frame_limit = frame_limit
        self._longest_token = longest_token
        self._progress: dict[Connection, _Progress] = {}
        """Of connections that are not KNOWN, and of those whose sessions end."""
        self._waiting: dict[Turn, deque[_Login]] = {}
        """Of those turns for which somebody waits."""
        self._running = Tasks()
        self.counts = LoginCounts()
        self.on_login: OnLogin = lambda _connection, _mechanism, _principal, _failure: None
        """Told of each verdict."""

    def open(self, connection: Connection) -> None:
        """A connection was accepted."""
        connection.is_known = False
        connection.set_frame_limit(UNKNOWN_FRAME_LIMIT)
        self._progress[connection] = _Progress()

    def close(self, connection: Connection) -> None:
        progress = self._progress.pop(connection, None)
        if progress is not None and progress.expiry is not None:
            progress.expiry.cancel()

    async def stop(self) -> None:
        """End what mechanisms wait for."""
        await self._running.close()

    def check(self, connection: Connection, api_key: int) -> None:
        """Raises `ProtocolViolation` unless the API may be asked for in the connection's state."""
        progress = self._progress[connection]
        state = progress.state
        if state is AuthenticationState.NEW:
            progress.requests += 1
            if progress.requests > MOST_ASKED:
                raise ProtocolViolation(f"{MOST_ASKED} requests, and the client has not begun to authenticate")
        if api_key in _ADMITTED[state]:
            return
        if state is AuthenticationState.EXPIRED:
            self.counts.expired += 1
            raise ProtocolViolation(f"API {api_key} after the session of {shown(connection.principal)} had ended")
        raise ProtocolViolation(f"API {api_key} before the client has authenticated")

    def takes_bare_token(self, connection: Connection) -> bool:
        progress = self._progress.get(connection)
        return progress is not None and progress.is_bare and progress.state is AuthenticationState.CHOSEN

    def handshake(self, connection: Connection, mechanism: str, version: int) -> dict[str, Any]:
        """The answer to SaslHandshake."""
        progress = self._progress.get(connection)
        if progress is None or progress.state in (AuthenticationState.KNOWN, AuthenticationState.EXPIRED):
            self._begin_again(connection, progress, mechanism, version)
        begin = self._mechanisms.get(mechanism)
        names = list(self._mechanisms)
        if begin is None:
            return {"error_code": ErrorCode.unsupported_sasl_mechanism, "mechanisms": names}
        progress = self._progress[connection]
        progress.state = AuthenticationState.CHOSEN
        progress.mechanism, progress.exchange, progress.is_bare = mechanism, begin(), version == 0
        return {"error_code": ErrorCode.none, "mechanisms": names}

    def _begin_again(self, connection: Connection, progress: _Progress | None, mechanism: str, version: int) -> None:
        now = self._loop.time()
        if progress is None:
            raise ProtocolViolation("the client has authenticated already")
        if now - progress.begun_again_at < AGAIN_SECONDS:
            raise ProtocolViolation("the client has authenticated again within the last second")
        if mechanism != progress.mechanism or version == 0:
            raise ProtocolViolation(
                f"the client authenticates again by {shown(mechanism)} (SaslHandshake v{version}), "
                f"and was known by {progress.mechanism}"
            )
        progress.begun_again_at = now
        progress.principal = connection.principal
        connection.is_known = False

    def authenticate(self, connection: Connection, token: bytes, answer: Callable[[dict[str, Any]], Parts]) -> None:
        """SaslAuthenticate: its answer, encoded by `answer`, may come later. After the last token the connection is
        KNOWN, or is closed where it is wrong.
        """
        fine = {"error_code": ErrorCode.none, "error_message": None}
        wrong = {"error_code": ErrorCode.sasl_authentication_failed, "auth_bytes": b""}
        reply = SaslReply(
            challenge=lambda token: answer({**fine, "auth_bytes": token, "session_lifetime": 0}),
            right=lambda token, lifetime: answer({**fine, "auth_bytes": token, "session_lifetime": lifetime}),
            wrong=lambda message: answer({**wrong, "error_message": message}),
        )
        self._take(connection, token, reply)

    def take_bare_token(self, connection: Connection, token: bytes) -> None:
        """A token after SaslHandshake v0; what is wrong with it can only be told by closing."""
        self._take(connection, token, _BARE)

    def _take(self, connection: Connection, token: bytes, reply: SaslReply) -> None:
        progress = self._progress[connection]
        slot = connection.open_slot()
        step = self._step(progress, token)
        if isinstance(step, Challenge):
            slot.answer(reply.challenge(step.token))
        elif isinstance(step, Wait):
            connection.hold()
            self._running.spawn(self._take_later(progress, slot, token, reply, step))
        else:
            self._finish(_Login(slot=slot, mechanism=progress.mechanism, reply=reply, verdict=step))

    async def _take_later(self, progress: _Progress, slot: Slot, token: bytes, reply: SaslReply, wait: Wait) -> None:
        try:
            await wait_for(wait.until(), _WAIT_SECONDS)
        except TimeoutError:
            pass
        if slot.connection.is_closed:
            return
        self._follow(progress, slot, reply, self._step(progress, token))

    def _follow(
        self, progress: _Progress, slot: Slot, reply: SaslReply, step: Challenge | Wait | Done | AuthenticationFailed
    ) -> None:
        """Do what follows from a token after the wait for it. Who would have to wait again is to come back: that is no
        wrong password."""
        connection = slot.connection
        if isinstance(step, Wait):
            log.warning("login given up", peer=connection.peer, mechanism=progress.mechanism)
            connection.close()
        elif isinstance(step, Challenge):
            slot.answer(reply.challenge(step.token))
            connection.release()
        else:
            self._finish(_Login(slot=slot, mechanism=progress.mechanism, reply=reply, verdict=step))

    def _step(self, progress: _Progress, token: bytes) -> Challenge | Wait | Done | AuthenticationFailed:
        assert progress.exchange is not None
        if len(token) > self._longest_token:
            return refused(progress.mechanism, reason=f"a token of {len(token)} bytes")
        try:
            step = progress.exchange.step(token)
        except AuthenticationFailed as failure:
            return failure
        except Exception:
            log.exception("a login could not be checked", mechanism=progress.mechanism)
            return refused(progress.mechanism)
        before = progress.principal
        if isinstance(step, Done) and before is not None and step.principal != before:
            message = f"Cannot change principals during re-authentication from {before}: {step.principal}"
            return AuthenticationFailed(message, step.principal.partition(":")[2], "another principal than before")
        return step

    def _finish(self, login: _Login) -> None:
        """Tell a verdict when it is its turn."""
        connection, verdict = login.slot.connection, login.verdict
        is_wrong = isinstance(verdict, AuthenticationFailed)
        user = verdict.user if isinstance(verdict, AuthenticationFailed) else verdict.principal.partition(":")[2]
        turn = self._failed_logins.turn(connection.peer, user, self._loop.time(), is_wrong=is_wrong)
        waiting = self._waiting.get(turn)
        if waiting is None:
            pause = self._pause(turn)
            if not pause:
                self._respond(login, turn)
                return
            waiting = self._waiting[turn] = deque()
            self._loop.call_later(pause, self._take_turns, turn)
        if len(waiting) >= MOST_WAITING:
            connection.close()
            return
        connection.hold()
        waiting.append(login)

    def _pause(self, turn: Turn) -> float:
        return self._failed_logins.pause(turn, self._loop.time())

    def _take_turns(self, turn: Turn) -> None:
        """Tell those who wait their verdicts, up to the next one that is wrong."""
        waiting = self._waiting[turn]
        while waiting:
            pause = self._pause(turn)
            if pause:
                self._loop.call_later(pause, self._take_turns, turn)
                return
            login = waiting.popleft()
            if not login.slot.connection.is_closed:
                self._respond(login, turn)
        del self._waiting[turn]

    def _respond(self, login: _Login, turn: Turn) -> None:
        connection, verdict = login.slot.connection, login.verdict
        if isinstance(verdict, AuthenticationFailed):
            self._tell_wrong(login, verdict, turn)
            return
        self.on_login(connection, login.mechanism, verdict.principal, "")
        lifetime = self._lifetime(login.mechanism, verdict)
        self._let_in(connection, verdict, lifetime)
        login.slot.answer(login.reply.right(verdict.token, lifetime or 0))
        if connection.is_held:
            connection.release()

    def _tell_wrong(self, login: _Login, failure: AuthenticationFailed, turn: Turn) -> None:
        connection = login.slot.connection
        connection.hold()
        connection.drain()
        delay = self._failed(connection, login.mechanism, failure, turn)
        answer = login.reply.wrong(str(failure))
        self._loop.call_later(delay, connection.close if answer is None else lambda: login.slot.answer(answer))

    def _failed(self, connection: Connection, mechanism: str, failure: AuthenticationFailed, turn: Turn) -> float:
        """Count a failed login; the seconds until it is answered."""
        self.counts.failed += 1
        reason = failure.reason or "a wrong user name or password"
        self.on_login(connection, mechanism, f"User:{failure.user}", reason)
        failed = self._failed_logins.failed(turn, self._loop.time())
        if failed.is_reported:
            log.warning(
                "authentication failed",
                user=shown(failure.user),
                peer=connection.peer,
                mechanism=mechanism,
                reason=reason,
                failures=failed.failures,
            )
        return failed.delay

    def _lifetime(self, mechanism: str, done: Done) -> int | None:
        """The milliseconds that a session may last; None for any time."""
        most = self._session_ms.get(mechanism, 0)
        limits = [most] if most > 0 else []
        if done.expires_at_ms is not None:
            limits.append(max(0, done.expires_at_ms - self._clock.now_ms()))
        return min(limits, default=None)

    def _let_in(self, connection: Connection, done: Done, lifetime: int | None) -> None:
        progress = self._progress[connection]
        self.counts.succeeded += 1
        self.counts.repeated += progress.principal is not None
        if progress.expiry is not None:
            progress.expiry.cancel()
        self.admit(connection, done.principal)
        connection.by_token = done.by_token
        connection.session_expires_at = None
        if lifetime is None:
            return
        progress.state, progress.exchange = AuthenticationState.KNOWN, None
        self._progress[connection] = progress
        connection.session_expires_at = self._loop.time() + lifetime / 1000
        progress.expiry = self._loop.call_later(lifetime / 1000, self._expire, connection, progress)

    def _expire(self, connection: Connection, progress: _Progress) -> None:
        progress.expiry = None
        if progress.state is AuthenticationState.KNOWN:
            progress.state = AuthenticationState.EXPIRED
            connection.is_known = False

    def admit(self, connection: Connection, principal: str) -> None:
        """The client has authenticated: the connection is KNOWN."""
        connection.principal = principal
        connection.is_known = True
        connection.set_frame_limit(self._frame_limit)
        self._progress.pop(connection, None)


def _framed(token: bytes) -> Parts:
    return [_LENGTH.pack(len(token)) + token]


_BARE: Final = SaslReply(challenge=_framed, right=lambda token, _lifetime: _framed(token), wrong=lambda _message: None)
