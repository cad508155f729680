"""A webhook receiver that does what a script says."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

Decide = Callable[["Delivered"], int]
HANG = -1
CUT = -2


class Delivered(NamedTuple):
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """Answers each POST with the status that `decide` gives; `HANG` says nothing, `CUT` closes."""

    def __init__(self, decide: Decide = lambda _delivered: 200, *, port: int = 0) -> None:
        self.decide = decide
        self.seen: list[Delivered] = []
        self.taken: list[Delivered] = []
        """Those that were answered with 2xx."""
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?a=1"

    async def __aenter__(self) -> "Receiver":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As if the process died: connections and all."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, enough: Callable[[], bool]) -> None:
        """Waits for deliveries."""
        while not enough():
            self._changed.clear()
            await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = head.split("\r\n")[1:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        delivered = Delivered(headers, await reader.readexactly(int(headers["content-length"])))
        self.seen.append(delivered)
        status = self.decide(delivered)
        if 200 <= status < 300:
            self.taken.append(delivered)
        self._changed.set()
        if status == HANG:
            await asyncio.Event().wait()
        if status == CUT:
            return False
        more = "Location: http://127.0.0.1:1/\r\n" if 300 <= status < 400 else ""
        writer.write(f"HTTP/1.1 {status} X\r\n{more}Content-Length: 2\r\n\r\nok".encode())
        await writer.drain()
        return True
