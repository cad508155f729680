"""A listener between one client and the broker that writes down which API versions the client uses.

Bytes pass through unchanged, except that addresses in Metadata, FindCoordinator and DescribeCluster answers
are replaced by the tap's own, so that the client stays on it. The endpoints that Produce and Fetch answers
carry after a change of leader are left alone: such a client goes on without the tap.
"""

import asyncio
import dataclasses
import io
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from kio.index import UnknownEntity, load_response_schema
from kio.serial import entity_reader, entity_writer

T = TypeVar("T")
_WITH_ADDRESSES = {3, 10, 60}
_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhi")


class Tap:
    """Use as a context manager; clients connect to `address`, and `seen` grows as they work."""

    def __init__(self, upstream: str) -> None:
        self.seen: set[tuple[int, int]] = set()
        self.address = ""
        self._upstream = upstream
        self._listeners: dict[str, str] = {}
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.address = self._wait(self._listener(self._upstream))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _listener(self, upstream: str) -> str:
        if upstream not in self._listeners:

            async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                task = asyncio.current_task()
                assert task is not None
                self._connections.add(task)
                try:
                    await self._serve(upstream, reader, writer)
                finally:
                    self._connections.discard(task)

            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            self._servers.append(server)
            self._listeners[upstream] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return self._listeners[upstream]

    async def _serve(self, upstream: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = upstream.rpartition(":")
        try:
            broker_reader, broker_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        asked: dict[int, tuple[int, int]] = {}
        directions = [
            asyncio.ensure_future(self._requests(reader, broker_writer, asked)),
            asyncio.ensure_future(self._answers(broker_reader, writer, asked)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            broker_writer.close()
            writer.close()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, tuple[int, int]]
    ) -> None:
        while True:
            size = await reader.readexactly(_SIZE.size)
            frame = await reader.readexactly(_SIZE.unpack(size)[0])
            key, version, correlation = _REQUEST.unpack_from(frame)
            self.seen.add((key, version))
            asked[correlation] = (key, version)
            writer.write(size + frame)
            await writer.drain()

    async def _answers(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: dict[int, tuple[int, int]]
    ) -> None:
        while True:
            size = await reader.readexactly(_SIZE.size)
            frame = await reader.readexactly(_SIZE.unpack(size)[0])
            key, version = asked.pop(_SIZE.unpack_from(frame)[0], (-1, -1))
            if key in _WITH_ADDRESSES:
                frame = await self._rerouted_frame(key, version, frame)
            # A client that is gone may still have acks=0 records on the way, so the connection outlives it.
            with suppress(ConnectionError):
                writer.write(_SIZE.pack(len(frame)) + frame)
                await writer.drain()

    async def _rerouted_frame(self, key: int, version: int, frame: bytes) -> bytes:
        try:
            schema = load_response_schema(key, version)
        except UnknownEntity:
            return frame
        header, start = entity_reader(schema.__header_schema__)(frame, 0)
        answer, _ = entity_reader(schema)(frame, start)
        out = io.BytesIO()
        entity_writer(schema.__header_schema__)(out, header)
        entity_writer(schema)(out, await self._rerouted(answer))
        return out.getvalue()

    async def _rerouted(self, part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple([await self._rerouted(one) for one in part])
        if not dataclasses.is_dataclass(part) or isinstance(part, type):
            return part
        changes = {field.name: await self._rerouted(getattr(part, field.name)) for field in dataclasses.fields(part)}
        if changes.get("host") and changes.get("port", -1) > 0:
            host, _, port = (await self._listener(f"{changes['host']}:{changes['port']}")).rpartition(":")
            changes |= {"host": host, "port": type(changes["port"])(int(port))}
        return dataclasses.replace(part, **changes)
