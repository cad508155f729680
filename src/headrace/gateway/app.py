"""What the gateway serves for now: its version, and whether the cluster answers."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from headrace import __version__
from headrace.client.probe import MAX_ANSWER, Address, checked_length, count_brokers, metadata_request

from .http import Request, Response, failure, serving

_PROBE_SECONDS: Final = 3.0
_FRESH_SECONDS: Final = 1.0


class Gateway:
    """The routes. `bootstrap` is asked in order until one broker answers."""

    def __init__(self, bootstrap: Sequence[Address]) -> None:
        self._bootstrap = bootstrap
        self._lock = asyncio.Lock()
        self._asked_at = float("-inf")
        self._brokers = 0

    async def respond(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return failure(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.method} is not served here; use GET")
        if request.path == "/":
            return Response(status=HTTPStatus.OK, body={"name": "headrace", "version": __version__})
        if request.path == "/health":
            return await self._health()
        return failure(HTTPStatus.NOT_FOUND, "there is nothing here; try / or /health")

    async def _health(self) -> Response:
        brokers = await self._fresh_count()
        if brokers:
            return Response(status=HTTPStatus.OK, body={"status": "ok", "brokers": brokers})
        return Response(status=HTTPStatus.SERVICE_UNAVAILABLE, body={"status": "unavailable", "brokers": 0})

    async def _fresh_count(self) -> int:
        """One question to the cluster a second at most, however often we are asked."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._asked_at > _FRESH_SECONDS:
                self._brokers = await self._count()
                self._asked_at = asyncio.get_running_loop().time()
            return self._brokers

    async def _count(self) -> int:
        for address in self._bootstrap:
            try:
                return await broker_count(address, _PROBE_SECONDS)
            except (OSError, ValueError):
                continue
        return 0


async def broker_count(address: Address, timeout: float) -> int:
    """How many brokers the cluster at this address has; OSError or ValueError if no broker answers there."""
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(*address, limit=MAX_ANSWER)
        try:
            writer.write(metadata_request())
            length = checked_length(await reader.readexactly(4))
            return count_brokers(await reader.readexactly(length))
        except asyncio.IncompleteReadError as error:
            raise ValueError("the connection closed before the answer") from error
        finally:
            writer.close()


def run_gateway(bootstrap: Sequence[Address], http: Address, on_ready: Callable[[Address], None]) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. OSError if the address cannot be bound."""
    return asyncio.run(_run(bootstrap, http, on_ready))


async def _run(bootstrap: Sequence[Address], http: Address, on_ready: Callable[[Address], None]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serving(http.host, http.port, Gateway(bootstrap).respond) as port:
        on_ready(Address(http.host, port))
        await stop.wait()
    return 0
