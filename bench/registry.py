"""Look-ups of the schema registry beside a bare ASGI application's answer to the same requests, over real sockets.

Besides requests per second, which on a busy machine tell more about the asker, the servers' own CPU time per request.

python -m bench.registry
"""

import asyncio
import json
import multiprocessing
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import uvicorn

from headrace.registry.api.routes import Api
from headrace.registry.log import MemoryLog
from headrace.registry.service import Registry
from headrace.web.application import Application

CONNECTIONS = 16
SECONDS = 2.0
REPEATS = 3
REGISTER = json.dumps({"schema": '{"type":"record","name":"R","fields":[{"name":"a","type":"long"}]}'}).encode()
PATHS = ("/schemas/ids/1", "/subjects/s/versions/latest", "/subjects/s/versions/1")


async def bare(_scope: Any, _receive: Any, send: Any) -> None:
    """What any answer costs at least: no question is asked, and the same bytes are sent."""
    body = b"x" * 160
    headers = [(b"content-type", b"application/json"), (b"content-length", b"160")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def registry_application() -> Application:
    registry = Registry(MemoryLog())

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        async with registry.running():
            yield

    return Application([Api(registry).routes()], life=life())


def serve(kind: str, listener: socket.socket) -> None:
    application: Any = bare if kind == "bare" else registry_application()
    lifespan: Any = "off" if kind == "bare" else "on"
    config = uvicorn.Config(application, http="httptools", loop="uvloop", lifespan=lifespan, log_config=None, ws="none")
    uvicorn.Server(config).run(sockets=[listener])


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    await reader.readexactly(length)


async def rate(port: int, path: str) -> float:
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: */*\r\n\r\n".encode()
    end = time.perf_counter() + SECONDS

    async def one() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        count = 0
        while time.perf_counter() < end:
            await ask(reader, writer, request)
            count += 1
        writer.close()
        return count

    return sum(await asyncio.gather(*(one() for _ in range(CONNECTIONS)))) / SECONDS


async def register(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(REGISTER)}\r\n\r\n"
    await ask(reader, writer, head.encode() + REGISTER)
    writer.close()


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def measure(ports: dict[str, int], pids: dict[str, int]) -> None:
    await register(ports["registry"])
    for path in PATHS:
        best = {"bare": 0.0, "registry": 0.0}
        cost = {"bare": float("inf"), "registry": float("inf")}
        for _ in range(REPEATS):
            for kind, port in ports.items():
                before = cpu_seconds(pids[kind])
                found = await rate(port, path)
                best[kind] = max(best[kind], found)
                cost[kind] = min(cost[kind], (cpu_seconds(pids[kind]) - before) / (found * SECONDS))
        shown = [f"{kind} {best[kind]:,.0f}/s at {cost[kind] * 1e6:.0f} us" for kind in best]
        print(f"{path}: {', '.join(shown)}; {cost['bare'] / cost['registry']:.2f} of the bare one's by CPU time")


def main() -> None:
    servers, ports, pids = [], {}, {}
    for kind in ("bare", "registry"):
        listener = socket.create_server(("127.0.0.1", 0))
        server = multiprocessing.get_context("fork").Process(target=serve, args=(kind, listener))
        server.start()
        servers.append(server)
        assert server.pid is not None
        ports[kind], pids[kind] = listener.getsockname()[1], server.pid
    try:
        time.sleep(1.0)
        asyncio.run(measure(ports, pids))
    finally:
        for server in servers:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
