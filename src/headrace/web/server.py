"""The application on a port: uvicorn, told to be quick and to stop cleanly."""

import asyncio
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.net.tcp import BACKLOG, listening_socket

from .application import Application

LARGEST_MESSAGE: Final = 16 << 20

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
        http=_Protocol,
        loop="uvloop",
        ws="websockets-sansio",
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


class _Protocol(HttpToolsProtocol):
    """HTTP that tells the application whose certificate a connection came with: `scope["state"]["certificate"]`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state = {**self.app_state, "certificate": common_name(certificate)}


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
