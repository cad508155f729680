"""A WebSocket as a handler gets it."""

from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket as _WebSocket
from starlette.websockets import WebSocketDisconnect

from .messages import Answer

_LONGEST_REASON: Final = 120
_encode: Final = msgspec.json.Encoder().encode


class SocketClosed(Exception):
    """The other side has left."""


class WebSocket:
    """JSON texts to and fro, once it was accepted."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._socket = _WebSocket(scope, receive, send)
        self._send = send
        self._can_answer = "websocket.http.response" in (scope.get("extensions") or {})
        self.is_accepted = False

    async def accept(self) -> None:
        await self._socket.accept()
        self.is_accepted = True

    async def send(self, value: Any) -> None:
        """One value as a text message; `SocketClosed` when nobody reads any more."""
        await self.send_text(_encode(value).decode())

    async def send_text(self, text: str) -> None:
        try:
            await self._socket.send_text(text)
        except (OSError, RuntimeError, WebSocketDisconnect) as error:
            raise SocketClosed from error

    async def receive(self) -> str:
        """The next message as text; `SocketClosed` at the end."""
        try:
            message = await self._socket.receive()
        except RuntimeError as error:
            raise SocketClosed from error
        if message["type"] != "websocket.receive":
            raise SocketClosed
        text = message.get("text")
        return str(text) if text is not None else message.get("bytes", b"").decode("utf-8", "replace")

    async def refuse(self, answer: Answer, code: int, reason: str) -> None:
        """Say why not: with an HTTP answer where the handshake is still open, else as the reason of closing."""
        if self.is_accepted or not self._can_answer:
            await self.close(code, reason)
            return
        length = (b"content-length", b"%d" % len(answer.body))
        headers = [(b"content-type", answer.content_type), length, *answer.headers]
        await self._send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
        await self._send({"type": "websocket.http.response.body", "body": answer.body})

    async def close(self, code: int = 1000, reason: str = "") -> None:
        try:
            await self._socket.close(code, reason[:_LONGEST_REASON])
        except (OSError, RuntimeError, WebSocketDisconnect):
            pass
