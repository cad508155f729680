"""Many connections at once: requests made with kio, replies in the order of the requests, waited for by tasks."""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine
from functools import cache
from io import BytesIO
from struct import Struct
from typing import Any, Final, TypeVar, cast

import uvloop
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from .frames import request_frame
from .model import BenchError

_LENGTH: Final = Struct(">i")
_REPLY_HEAD: Final = 5
"""Bytes before the body of a reply whose version is flexible: the correlation id and no tags."""
CODE_AT: Final = _REPLY_HEAD + 4
"""Where the error code stands in replies that have one for all, after the throttle time."""
_CODE: Final = Struct(">h")


T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; of what went wrong at several places, the first that can be told."""
    try:
        return cast(T, uvloop.run(work))
    except BaseExceptionGroup as group:
        told: BaseException = group.subgroup((BenchError, OSError)) or group
        while isinstance(told, BaseExceptionGroup):
            told = told.exceptions[0]
        raise told from None


class Link(asyncio.Protocol):
    """One connection. What is asked by several tasks is pipelined."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        buffer = self._data
        buffer += data
        while len(buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
            if len(buffer) < end:
                return
            reply = bytes(buffer[_LENGTH.size : end])
            del buffer[:end]
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(BenchError(f"the server closed a connection: {exc}"))

    async def ask(self, frame: bytes) -> bytes:
        """The reply to a frame, without its length."""
        assert self._transport is not None
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(reply)
        self._transport.write(frame)
        return await reply

    async def beat(self, frame: bytes) -> int:
        """The error code of a reply that has one for all."""
        return code_of(await self.ask(frame))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Links:
    """The connections of a run, closed together."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._links: list[Link] = []

    async def __aenter__(self) -> "Links":
        return self

    async def __aexit__(self, *_: object) -> None:
        for link in self._links:
            link.close()
        await asyncio.sleep(0)

    async def open(self) -> Link:
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(Link, "127.0.0.1", self._port)
        self._links.append(link)
        return link


@cache
def nested(api_key: int, version: int, name: str) -> Any:
    """A class of kio's that is a part of a request."""
    module = __import__(load_request_schema(api_key, version).__module__, fromlist=[name])
    return getattr(module, name)


def framed(api_key: int, version: int, **values: Any) -> bytes:
    """A request as it is sent. Its version has to be a flexible one."""
    schema: Any = load_request_schema(api_key, version)
    body = BytesIO()
    entity_writer(schema)(body, schema(**values))
    return request_frame(api_key, version, body.getvalue(), flexible=True)


def decoded(api_key: int, version: int, reply: bytes) -> Any:
    """What a reply says."""
    entity, _ = entity_reader(load_response_schema(api_key, version))(reply, _REPLY_HEAD)
    return entity


def code_of(reply: bytes) -> int:
    return int(_CODE.unpack_from(reply, CODE_AT)[0])


async def sleep_until(moment: float) -> None:
    """Sleep to a moment of the clock that figures are taken with."""
    await asyncio.sleep(max(moment - time.perf_counter(), 0))
