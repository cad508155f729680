"""One POST to a callback over HTTP/1.1: no redirects, no proxies, no cookies; of the answer only its status."""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Final, NamedTuple, Protocol

import httptools

from .addresses import AddressRefused, AddressRules, Callback, parse_callback

_LARGEST_ANSWER: Final = 64 * 1024
_CHUNK: Final = 16 * 1024


class CallbackResult(NamedTuple):
    """What a callback said; `status` is 0 when it said nothing."""

    status: int
    reason: str = ""
    retry_after: float = 0.0

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


class Post(Protocol):
    """Posts a body to a URL; never raises for what the other side does."""

    async def __call__(self, url: str, headers: Mapping[str, str], body: bytes, timeout: float) -> CallbackResult: ...


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class CallbackSender:
    """Posts for one worker, over one connection that is kept as long as the other side keeps it."""

    def __init__(self, rules: AddressRules, tls: ssl.SSLContext | None = None) -> None:
        self._rules = rules
        self._tls = tls
        self._kept: tuple[Callback, _Connection] | None = None

    async def __call__(self, url: str, headers: Mapping[str, str], body: bytes, timeout: float) -> CallbackResult:
        try:
            callback = parse_callback(url)
            async with asyncio.timeout(timeout):
                return await self._post(callback, encode_head(callback, headers, len(body)) + body)
        except AddressRefused as error:
            return CallbackResult(0, str(error))
        except TimeoutError:
            self.close()
            return CallbackResult(0, f"no answer within {timeout:g} s")
        except (OSError, ssl.SSLError, EOFError) as error:
            self.close()
            return CallbackResult(0, f"{type(error).__name__}: {error}"[:300])
        except httptools.HttpParserError as error:
            self.close()
            return CallbackResult(0, f"the answer is not HTTP: {error}")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection that is kept."""
        if self._kept is not None:
            self._kept[1].writer.close()
            self._kept = None

    async def _post(self, callback: Callback, request: bytes) -> CallbackResult:
        kept, self._kept = self._kept, None
        if kept is not None and kept[0][:3] == callback[:3]:
            try:
                return await self._ask(callback, kept[1], request)
            except (OSError, EOFError):
                kept[1].writer.close()  # closed by the other side while nobody looked: a new one tells more
        elif kept is not None:
            kept[1].writer.close()
        return await self._ask(callback, await self._connect(callback), request)

    async def _connect(self, callback: Callback) -> _Connection:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(callback.host, callback.port, type=socket.SOCK_STREAM)
        addresses = self._rules.check(callback.host, dict.fromkeys(str(info[4][0]) for info in infos))
        context = (self._tls or _default_tls()) if callback.is_secure else None
        reader, writer = await asyncio.open_connection(
            addresses[0],
            callback.port,
            ssl=context,
            server_hostname=callback.host if context is not None else None,
            limit=_LARGEST_ANSWER,
        )
        return _Connection(reader, writer)

    async def _ask(self, callback: Callback, connection: _Connection, request: bytes) -> CallbackResult:
        try:
            connection.writer.write(request)
            await connection.writer.drain()
            answer = _Answer()
            await answer.read(connection.reader)
        except BaseException:
            connection.writer.close()
            raise
        if answer.can_be_kept:
            self._kept = callback, connection
        else:
            connection.writer.close()
        return CallbackResult(answer.status, answer.reason, answer.retry_after)


@cache
def _default_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class _Answer:
    """An answer as it comes in; its body is counted and dropped."""

    def __init__(self) -> None:
        self.status = 0
        self.retry_after = 0.0
        self.can_be_kept = False
        self._size = 0
        self._is_complete = False
        self._parser = httptools.HttpResponseParser(self)

    @property
    def reason(self) -> str:
        return f"HTTP {self.status}"

    async def read(self, reader: asyncio.StreamReader) -> None:
        while not self._is_complete:
            data = await reader.read(_CHUNK)
            if not data:
                if self.status and not self._is_complete:
                    return  # a body that ends with the connection
                raise EOFError("the connection was closed before an answer came")
            self._size += len(data)
            self._parser.feed_data(data)
            if self._size > _LARGEST_ANSWER and self.status:
                return
        self.can_be_kept = bool(self._parser.should_keep_alive()) and self._size <= _LARGEST_ANSWER

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after" and value.isdigit() and len(value) < 6:
            self.retry_after = float(value)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        self._is_complete = self.status >= 200 or self.status == 101


def encode_head(callback: Callback, headers: Mapping[str, str], length: int) -> bytes:
    """The head of a POST. Headers have been checked: no CR or LF reaches this."""
    lines = [f"POST {callback.target} HTTP/1.1", f"Host: {callback.authority}", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
