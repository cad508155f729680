"""The application on a port: uvicorn, told to be quick and to stop cleanly."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .application import Application

BACKLOG: Final = 1024
LARGEST_MESSAGE: Final = 10 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen and how. A `client_ca` asks callers for certificates that it signed."""

    host: str
    port: int
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    client_ca: str | None = None
    keep_alive_seconds: int = 75
    grace_seconds: int = 5
    most_connections: int | None = 4096


def serve(application: Application, listen: Listen, on_ready: Callable[[str, int], None]) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. OSError when the address cannot be bound."""
    sock = _bound(listen)
    config = uvicorn.Config(
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
        ssl_cert_reqs=ssl.CERT_OPTIONAL if listen.client_ca else ssl.CERT_NONE,
    )
    server = _Server(config, lambda: on_ready(listen.host, sock.getsockname()[1]))
    try:
        server.run(sockets=[sock])
    finally:
        sock.close()
    return 0 if server.started else 1


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
    """Tells when it serves."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Asked to leave: leave, with nothing raised again once all is closed."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()


def _bound(listen: Listen) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock
