"""TLS handshakes of one listener: they take turns on the event loop, are counted, and those that fail are logged.

A step of a handshake takes the loop for a quarter of a millisecond (a signature on P-256), up to a whole one (RSA), a
request for a tenth of that. So steps wait: one is done, and then everything else has the loop for as long as that one
took, in which a request can be read, synced and answered. However many come at once, those who are connected keep half
of the loop, and never wait for more than one step. Each address has a queue of its own, and they take turns: who
floods the broker waits behind himself. How long a handshake may take from end to end is the listener's deadline for a
first request.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

import structlog

from headrace.net.address import owner_of
from headrace.net.network import Socket
from headrace.net.tls import ServerTls
from headrace.net.tls_stream import Scratch, TlsFailure, TlsStream
from headrace.security.certificates import NoRuleApplies, PrincipalMapping, subject_name

_LONGEST_REST_SECONDS: Final = 0.002
_REPORT_SECONDS: Final = 5.0
"""Failures are reported together, at most this often: who floods the broker must not fill its log."""

log = structlog.get_logger(__name__)

OnCertificate = Callable[[str, str, str, str], None]
"""Given the listener, the client's address, who it is, and why it is not let in, if it is not."""


class Handshakes:
    """TLS handshakes of a listener: makes the streams and reads the client's principal from its certificate."""

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
        self._steps: dict[str, deque[Callable[[], None]]] = {}
        """By the address they come from, the next one first."""
        self._is_due = False
        self._rests_until = 0.0
        self.on_login: OnCertificate = lambda _listener, _peer, _principal, _failure: None
        """Told of each client that a certificate names, and of each handshake that fails."""
        self.succeeded = 0
        self.failures = 0
        self._unreported = 0
        self._reports_at = 0.0

    def stream(self, sock: Socket) -> TlsStream:
        """The TLS of a new connection."""
        return TlsStream(sock, self.tls.context, self._scratch)

    def take_turn(self, address: str, step: Callable[[], None]) -> None:
        """Call `step` soon: in the next turn of the loop where no other waits, and never two in one."""
        self._steps.setdefault(owner_of(address), deque()).append(step)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        began = self._timer()
        if began < self._rests_until:  # timers would not do: they count whole milliseconds
            self._loop.call_soon(self._run)
            return
        try:
            self._next_step()()
        finally:
            ended = self._timer()
            self._rests_until = ended + min(ended - began, _LONGEST_REST_SECONDS)
            self._is_due = bool(self._steps)
            if self._steps:
                self._loop.call_soon(self._run)

    def _next_step(self) -> Callable[[], None]:
        address = next(iter(self._steps))
        steps = self._steps.pop(address)
        step = steps.popleft()
        if steps:
            self._steps[address] = steps
        return step

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
        """A client has been authenticated by its certificate: report the login."""
        self.on_login(self.listener, peer, principal, "")

    def failed(self, peer: str, reason: str) -> None:
        """Log a failed handshake; many at a time become one log line."""
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
