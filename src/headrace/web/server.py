"""The application on a port: uvicorn, told to be quick and to stop cleanly."""

import asyncio
import signal
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import httptools
import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from headrace.net.tcp import BACKLOG, listening_socket

from .application import Application
from .guard import network_of, peer_address
from .problem import Problem, render

LARGEST_MESSAGE: Final = 16 << 20
LARGEST_HEAD: Final = 64 * 1024
"""Bytes of a request's line and headers."""
HEAD_SECONDS: Final = 30.0
"""How long a head may take, from the connection or the first byte of the request on."""
_AROUND_HEADER: Final = 4
_NEVER: Final = float("inf")
_SCHEME: Final = b"://"
_PROBES: Final = (b"/healthz", b"/readyz")
_WEBSOCKET: Final = b"websocket"
_CONNECT: Final = b"CONNECT"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen and how. A `client_ca` asks callers for certificates that it signed."""

    host: str
    port: int
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    client_ca: str | None = None
    requires_certificate: bool = False
    """Whether a caller without one is turned away, where there is a `client_ca`."""
    keep_alive_seconds: int = 75
    grace_seconds: int = 5
    most_connections: int | None = 4096
    most_per_address: int = 1024


def serve(
    application: Application,
    listen: Listen,
    on_ready: Callable[[str, int], None],
    on_stop: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. OSError when the address cannot be bound.

    `on_ready` is called on the event loop, `on_stop` when a signal has come.
    """
    return HttpServer(application, listen, on_ready, on_stop).run()


class HttpServer:
    """An application on a port that is bound at once: OSError where that cannot be."""

    def __init__(
        self,
        application: Application,
        listen: Listen,
        on_ready: Callable[[str, int], None],
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = listening_socket(listen.host, listen.port)
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(_config(application, listen), lambda: on_ready(listen.host, self.port), on_stop)

    def run(self) -> int:
        """Serve until `stop`, or, in the main thread, SIGTERM or SIGINT; the exit code."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
        return 0 if self._server.started else 1

    def stop(self) -> None:
        """Let `run` return once what was asked is answered; may be called from any thread."""
        self._server.should_exit = True


def _config(application: Application, listen: Listen) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        interface="asgi3",
        http=partial(_Protocol, Crowd(listen.most_per_address)),  # type: ignore[arg-type]  # called as a class is
        loop="uvloop",
        ws=WebSocketsSansIOProtocol,
        ws_max_size=LARGEST_MESSAGE,
        ws_ping_interval=20.0,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=listen.keep_alive_seconds,
        timeout_graceful_shutdown=listen.grace_seconds,
        limit_concurrency=listen.most_connections,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
        ssl_keyfile_password=listen.key_password,
        ssl_ca_certs=listen.client_ca,
        ssl_cert_reqs=_wanted_certificates(listen),
    )


def _wanted_certificates(listen: Listen) -> ssl.VerifyMode:
    if listen.client_ca is None:
        return ssl.CERT_NONE
    return ssl.CERT_REQUIRED if listen.requires_certificate else ssl.CERT_OPTIONAL


class Crowd:
    """How many connections each address has; an IPv6 network of 64 bits counts as one, this machine not at all."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._counts: Counter[bytes] = Counter()

    def enter(self, host: str) -> bytes | None:
        """Count a connection; what to `leave` by."""
        address = peer_address(host)
        if address is None or address.is_loopback:
            return None
        key = network_of(address)
        self._counts[key] += 1
        return key

    def leave(self, key: bytes) -> None:
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    def count(self, key: bytes | None) -> int:
        return 0 if key is None else self._counts[key]


class _HeadTooLarge(Exception):
    pass


class _Socket(WebSocketsSansIOProtocol):
    """A WebSocket; tells when it is over."""

    def __init__(self, on_lost: Callable[[], None], **given: Any) -> None:
        super().__init__(**given)
        self._on_lost = on_lost

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_lost()


class _Protocol(HttpToolsProtocol):
    """HTTP whose heads are bounded in bytes and time, and whose connections are bounded for each address.

    Where there are too many, probes are answered and everything else is 503; at twice as many the new ones are closed.
    A request that would rather speak another protocol (`Upgrade`) is served as it is, unless that is WebSocket's: the
    parser takes what follows its head for the other protocol, and has to be told otherwise. The application is told
    whose certificate a connection came with: `scope["state"]["certificate"]`.
    """

    def __init__(self, crowd: Crowd, **given: Any) -> None:
        super().__init__(**given)
        self._crowd = crowd
        self._place: bytes | None = None
        self._unheard = 0
        """Bytes that have come since the parser told of a request's begin, the end of its headers, or some body."""
        self._since_head = 0
        """Bytes that have come since the last headers were whole."""
        self._is_too_large = False
        self._head_due = _NEVER
        """When the head that is awaited must be whole, by the loop's clock."""
        self._head_timer: asyncio.TimerHandle | None = None
        """Looks at that; one for each connection, not for each request."""
        self.ws_protocol_class = partial(_Socket, self._leave)  # type: ignore[assignment]  # called as a class is

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._place = self._crowd.enter(str(peer[0])) if isinstance(peer, tuple) else None
        if self._is_crowded(2):
            transport.abort()
            return
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state = {**self.app_state, "certificate": common_name(certificate)}
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def _should_upgrade(self) -> bool:
        """Whether what the parser has read may be no request of HTTP's: then it is looked at once its head is whole."""
        return self.parser.get_method() != _CONNECT

    def data_received(self, data: bytes) -> None:
        count = len(data)
        self._unheard += count
        self._since_head += count
        self._unset_keepalive_if_required()
        self._parse(data)
        if self.transport.is_closing():
            return
        if self._unheard > LARGEST_HEAD or (count > LARGEST_HEAD and self._head_size() > LARGEST_HEAD):
            self._is_too_large = True
            self.send_400_response("The head is too large.")

    def _parse(self, data: bytes) -> None:
        try:
            while data and not self.transport.is_closing():
                try:
                    self.parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    data = self._upgraded(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _upgraded(self, rest: bytes) -> bytes:
        """What is still to be parsed once a head has come that asks for another protocol."""
        if not self._should_upgrade():
            return b""
        if self._get_upgrade() == _WEBSOCKET:
            self._begin_websocket()
            return b""
        line = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        kept = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
        self.parser.feed_data(b"".join((line, *kept, b"\r\n")))
        return rest

    def _begin_websocket(self) -> None:
        most = self.config.limit_concurrency
        if not self._can_become_websocket():
            self._answer_and_close(400, "a WebSocket begins with a GET without a body")
        elif self._is_crowded(1) or (most is not None and len(self.connections) >= most):
            self._answer_and_close(503, "too many connections; try again later")
        else:
            self._expect_no_head()
            self.handle_websocket_upgrade()

    def _can_become_websocket(self) -> bool:
        headers = dict(self.headers)
        has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        return self.scope["method"] == "GET" and not has_body and self._is_silent()

    def _is_silent(self) -> bool:
        """Whether no answer is under way."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]  # None before the first

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - as uvicorn has it
        if not self._is_too_large:
            self._answer_and_close(400, "what came is not HTTP as it is taken here")
            return
        self._answer_and_close(431, f"a request's line and headers have at most {LARGEST_HEAD} bytes")

    def on_message_begin(self) -> None:
        self._unheard = 0
        HttpToolsProtocol.on_message_begin(self)
        self._await_head()

    def on_headers_complete(self) -> None:
        if self._since_head > LARGEST_HEAD:
            self._require_small_head()
        self._unheard = self._since_head = 0
        self._head_due = _NEVER
        if not self.url.startswith(b"/") and _SCHEME in self.url:
            self._take_host_of_target()
        if self.url.partition(b"?")[0] in _PROBES:
            self.limit_concurrency = None
        else:
            self.limit_concurrency = 0 if self._is_crowded(1) else self.config.limit_concurrency
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unheard = 0
        super().on_body(body)

    def _take_host_of_target(self) -> None:
        """A target that names a host is meant for that, whatever `Host` says."""
        authority = self.url.partition(_SCHEME)[2].partition(b"/")[0].partition(b"?")[0]
        self.headers[:] = [header for header in self.headers if header[0] != b"host"]
        self.headers.append((b"host", authority))

    def _require_small_head(self) -> None:
        if self._head_size() > LARGEST_HEAD:
            self._is_too_large = True
            raise _HeadTooLarge

    def _head_size(self) -> int:
        """Of the last request's line and headers, trailers among them; 0 where none has begun."""
        if not self.headers:
            return 0
        return len(self.url) + sum(len(name) + len(value) + _AROUND_HEADER for name, value in self.headers)

    def _is_crowded(self, times: int) -> bool:
        most = self.config.limit_concurrency
        is_full = most is not None and times > 1 and len(self.connections) > most * times
        return is_full or self._crowd.count(self._place) > self._crowd.most * times

    def _await_head(self) -> None:
        if self._head_due == _NEVER:
            self._head_due = self.loop.time() + HEAD_SECONDS
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(HEAD_SECONDS, self._look_at_head)

    def _look_at_head(self) -> None:
        self._head_timer = None
        left = self._head_due - self.loop.time()
        if left <= 0:
            self._answer_and_close(408, f"no whole head came in {HEAD_SECONDS:g} s")
        elif self._head_due != _NEVER:
            self._head_timer = self.loop.call_later(left, self._look_at_head)

    def _answer_and_close(self, status: int, detail: str) -> None:
        """Only while no answer is under way on this connection: then it is just closed."""
        if self._is_silent():
            answer = render(Problem(status, detail))
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {answer.content_type.decode()}\r\n"
                f"content-length: {len(answer.body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + answer.body)
        self.transport.close()

    def _expect_no_head(self) -> None:
        self._head_due = _NEVER
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _leave(self) -> None:
        self._expect_no_head()
        if self._place is not None:
            self._crowd.leave(self._place)
            self._place = None


def common_name(certificate: Mapping[str, Any]) -> str:
    """The common name in a certificate's subject; empty where it has none."""
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return str(names[-1]) if names else ""


class _Server(uvicorn.Server):
    """Tells when it serves, and when it was asked to leave."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stop = on_stop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        if self.started:
            self._on_ready()

    def _reload(self) -> None:
        """After SIGHUP: read the certificate and its key again, for connections that come now."""
        certificate, context = self.config.ssl_certfile, self.config.ssl
        if context is None or certificate is None:
            log.info("nothing to reload: other settings are read when this process starts")
            return
        chain = (certificate, self.config.ssl_keyfile, self.config.ssl_keyfile_password)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*chain)  # what fails half way would break the other
            context.load_cert_chain(*chain)
        except (OSError, ssl.SSLError) as error:
            log.error("certificate refused, the old one stays in use", certificate=str(certificate), reason=str(error))
        else:
            log.info("certificate reloaded", certificate=str(certificate))

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Asked to leave: leave, with nothing raised again once all is closed."""
        self._on_stop()
        super().handle_exit(sig, frame)
        self._captured_signals.clear()
