"""A request as a handler gets it, and what it may answer with."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope

HeaderList = Sequence[tuple[bytes, bytes]]

JSON: Final = b"application/json"
PART_SECONDS: Final = 30.0
"""How long a body may stand still."""
MOST_BODY: Final = 16 << 20
"""Bytes of a request's body, also after decompression: a message of 10 MB fits in base64."""
_GZIP_WINDOW: Final = 31
_UNPACKED_AT_ONCE: Final = 64 * 1024
_encode: Final = msgspec.json.Encoder().encode


class Answer(NamedTuple):
    """A whole answer. Headers come besides those that every answer has."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: HeaderList = ()


class Stream(NamedTuple):
    """An answer whose parts are sent as they come; `chunks` is closed when the caller leaves."""

    status: int
    chunks: AsyncIterator[bytes]
    content_type: bytes
    headers: HeaderList = ()
    reads_body: bool = False
    """Whether they are made of the request's body while that comes in: who leaves is noticed there."""


class Disconnected(Exception):
    """The caller left before its request was whole."""


class BadBody(Exception):
    """The body is too large (413), not in an encoding we take (415), damaged (400), too slow (408), or one too many."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def json_answer(value: Any, status: int = 200, headers: HeaderList = (), content_type: bytes = JSON) -> Answer:
    """A value as JSON."""
    return Answer(status, _encode(value), content_type, headers)


class Receiving:
    """Bytes of bodies that are under way, of all requests together: who sends slowly cannot fill the memory."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def grow(self, count: int) -> None:
        """Count some more, or fewer; `BadBody` when there is no room."""
        if count > 0 and self.held + count > self.most:
            raise BadBody(503, "too many large bodies are on their way; try again")
        self.held += count


RECEIVING: Final = Receiving(512 << 20)


class Request(HTTPConnection):
    """One request, or the handshake of a WebSocket. `fields` is the quick way to its headers."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope)
        self.fields: dict[bytes, bytes] = dict(scope["headers"])
        """Headers by lower-case name; of one that came twice the last."""
        self.method: str = scope.get("method", "GET")
        self._receive = receive
        self._body: bytes | None = None

    def header(self, name: bytes) -> str | None:
        """A header's text; None where there is none."""
        value = self.fields.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def address(self) -> str:
        """Where the request came from."""
        peer = self.scope.get("client")
        return str(peer[0]) if peer else ""

    @property
    def media_type(self) -> str:
        """What the body is said to be, without parameters; empty where nothing is said."""
        return self.fields.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")

    async def body(self, limit: int = MOST_BODY) -> bytes:
        """The whole body, unpacked, read once; `BadBody` as soon as it is more than `limit` bytes."""
        if self._body is None:
            encoding = self.fields.get(b"content-encoding")
            if encoding is None or encoding == b"identity":
                self._body = await self._raw(limit)
            elif encoding.lower() == b"gzip":
                self._body = gunzip(await self._raw(limit), limit)
            else:
                raise _unknown_encoding(encoding)
        return self._body

    async def parts(self, seconds: float = PART_SECONDS) -> AsyncIterator[bytes]:
        """The body as it comes in, unpacked; who takes parts slowly has the sender wait.

        `BadBody` where it stands still for so long, or is no gzip although it says so.
        """
        encoding = self.fields.get(b"content-encoding", b"identity").lower()
        if encoding not in (b"identity", b"gzip"):
            raise _unknown_encoding(encoding)
        unpacker = _Gunzip() if encoding == b"gzip" else None
        while True:
            message = await self._next_part(seconds)
            body: bytes = message.get("body", b"")
            if unpacker is None:
                yield body
            else:
                for part in unpacker.feed(body):
                    yield part
            if not message.get("more_body"):
                break
        if unpacker is not None:
            unpacker.finish()

    async def disconnected(self) -> None:
        """Returns once the caller has left; to be awaited only after the body has been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _raw(self, limit: int) -> bytes:
        declared = self.fields.get(b"content-length", b"")
        if len(declared) > 15 or (declared.isdigit() and int(declared) > limit):
            raise _too_large(limit)
        message = await self._receive()
        body: bytes = message.get("body", b"")
        if not message.get("more_body"):
            if message["type"] == "http.disconnect":
                raise Disconnected
            if len(body) > limit:
                raise _too_large(limit)
            return body
        return await self._rest(bytearray(body), limit)

    async def _rest(self, received: bytearray, limit: int) -> bytes:
        """The body as it comes in; bounded in size, in time between its parts, and together with all others."""
        held = 0
        try:
            while True:
                message = await self._next_part(PART_SECONDS)
                received += message.get("body", b"")
                if len(received) > limit:
                    raise _too_large(limit)
                RECEIVING.grow(len(received) - held)
                held = len(received)
                if not message.get("more_body"):
                    return bytes(received)
        finally:
            RECEIVING.grow(-held)

    async def _next_part(self, seconds: float) -> Message:
        try:
            async with asyncio.timeout(seconds):
                message = await self._receive()
        except TimeoutError:
            raise BadBody(408, f"nothing of the body came for {seconds:g} s") from None
        if message["type"] == "http.disconnect":
            raise Disconnected
        return message


class _Gunzip:
    """What was compressed, in parts of bounded size."""

    def __init__(self) -> None:
        self._unpacker = zlib.decompressobj(wbits=_GZIP_WINDOW)

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._unpacker.eof:
                raise BadBody(400, "something follows the gzip body")
            try:
                yield self._unpacker.decompress(data, _UNPACKED_AT_ONCE)
            except zlib.error as error:
                raise BadBody(400, f"the body is not gzip: {error}") from error
            data = self._unpacker.unconsumed_tail or self._unpacker.unused_data

    def finish(self) -> None:
        if not self._unpacker.eof:
            raise BadBody(400, "the gzip body is cut short")


def gunzip(data: bytes, limit: int) -> bytes:
    """What was compressed, stopped at `limit` bytes however small the input."""
    unpacker = zlib.decompressobj(wbits=_GZIP_WINDOW)
    try:
        unpacked = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        raise BadBody(400, f"the body is not gzip: {error}") from error
    if len(unpacked) > limit:
        raise _too_large(limit)
    if not unpacker.eof:
        raise BadBody(400, "the gzip body is cut short")
    return unpacked


def _unknown_encoding(encoding: bytes) -> BadBody:
    return BadBody(415, f"a body can be sent as it is or with gzip, not '{encoding[:40].decode('latin-1')}'")


def _too_large(limit: int) -> BadBody:
    return BadBody(413, f"a body has at most {limit} bytes, also after decompression")
