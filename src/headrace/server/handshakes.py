"""TLS handshakes of one listener: they take turns on the event loop, are counted, and those that fail are logged.

A handshake takes the loop for about a millisecond (an RSA signature), a request for a hundredth of that. So the steps
of handshakes wait in a queue, of which `_TURN_SECONDS` are done before everything else has its turn again, however many
come at once. How long one may take from end to end is the listener's deadline for a first request.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

import structlog

from headrace.net.network import Socket
from headrace.net.tls import ServerTls
from headrace.net.tls_stream import Scratch, TlsFailure, TlsStream
from headrace.security.certificates import NoRuleApplies, PrincipalMapping, subject_name

_TURN_SECONDS: Final = 0.001
_REPORT_SECONDS: Final = 5.0
"""Failures are reported together, at most this often: who floods the broker must not fill its log."""

log = structlog.get_logger(__name__)

OnCertificate = Callable[[str, str, str, str], None]
"""Given the listener, the client's address, who it is, and why it is not let in, if it is not."""


class Handshakes:
    """Makes the streams of a listener that speaks TLS, and finds out who is at their other end."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        tls: ServerTls,
        mapping: PrincipalMapping,
        *,
        listener: str,
        names_clients: bool = True,
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        self._loop = loop
        self.tls = tls
        self.mapping = mapping
        self.listener = listener
        self._names_clients = names_clients
        """Whether a client is who its certificate says; else that is up to SASL."""
        self._timer = timer
        self._scratch = Scratch()
        self._steps: deque[Callable[[], None]] = deque()
        self._is_due = False
        self.on_login: OnCertificate = lambda _listener, _peer, _principal, _failure: None
        """Told of each client that a certificate names, and of each handshake that fails."""
        self.succeeded = 0
        self.failures = 0
        self._unreported = 0
        self._reports_at = 0.0

    def stream(self, sock: Socket) -> TlsStream:
        """The TLS of a new connection."""
        return TlsStream(sock, self.tls.context, self._scratch)

    def take_turn(self, step: Callable[[], None]) -> None:
        """Call `step` soon: in the next turn of the loop where no other waits, and never many in one."""
        self._steps.append(step)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        ends, steps = self._timer() + _TURN_SECONDS, self._steps
        try:
            while steps:
                steps.popleft()()
                if self._timer() >= ends:
                    break
        finally:
            self._is_due = bool(steps)
            if steps:
                self._loop.call_soon(self._run)

    def principal(self, stream: TlsStream) -> str | None:
        """Who the client's certificate says it is; None where it showed none, or is named by other means."""
        certificate = stream.session.getpeercert(binary_form=True) if self._names_clients else None
        if certificate is None:
            return None
        try:
            return self.mapping.principal(subject_name(certificate))
        except (NoRuleApplies, ValueError) as error:
            raise TlsFailure(f"nobody is known by its certificate: {error}") from None

    def named(self, peer: str, principal: str) -> None:
        """A client is who its certificate says."""
        self.on_login(self.listener, peer, principal, "")

    def failed(self, peer: str, reason: str) -> None:
        """A handshake has come to nothing: report it, or soon, with others."""
        self.on_login(self.listener, peer, "", reason)
        self.failures += 1
        self._unreported += 1
        now = self._loop.time()
        if now < self._reports_at:
            return
        self._reports_at = now + _REPORT_SECONDS
        log.warning(
            "TLS handshake failed",
            listener=self.listener,
            peer=peer,
            reason=reason,
            failures=self._unreported,
        )
        self._unreported = 0
