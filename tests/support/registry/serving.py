"""A registry on a port of this machine, in a thread of its own, and on the same log as others if asked."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from headrace.registry.api.routes import Api
from headrace.registry.log import MemoryLog, SchemaLog
from headrace.registry.service import Registry
from headrace.web.application import Application
from headrace.web.routes import Mounted


class _Server(uvicorn.Server):
    """Tells when it serves."""

    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._ready.set()


@contextmanager
def serving(part: Callable[[], Mounted]) -> Iterator[str]:
    """The URL of a gateway that serves one part."""
    listener = socket.create_server(("127.0.0.1", 0))
    ready = threading.Event()
    mounted = part()
    application = Application(mounted.routes, life=mounted.life)
    server = _Server(uvicorn.Config(application, lifespan="on", log_config=None, ws="none"), ready)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    try:
        assert ready.wait(60)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()


def in_memory(log: SchemaLog | None = None) -> Mounted:
    """A registry whose log is in memory."""
    registry = Registry(log or MemoryLog())

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        async with registry.running():
            yield

    return Mounted(routes=(Api(registry).routes(),), life=life())
