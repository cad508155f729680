"""A WebSocket as a handler gets it."""

import json
from typing import Any

from .messages import Receive, Send


class SocketClosed(Exception):
    """The other side has left."""


class WebSocket:
    """A WebSocket that has been accepted: JSON texts to and fro."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def accept(self) -> None:
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept"})

    async def send(self, value: Any) -> None:
        """One value as a text message; `SocketClosed` when nobody reads any more."""
        await self.send_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    async def send_text(self, text: str) -> None:
        try:
            await self._send({"type": "websocket.send", "text": text})
        except (OSError, RuntimeError) as error:
            raise SocketClosed from error

    async def receive(self) -> str:
        """The next message as text; `SocketClosed` at the end."""
        message = await self._receive()
        if message["type"] != "websocket.receive":
            raise SocketClosed
        text = message.get("text")
        return str(text) if text is not None else message.get("bytes", b"").decode("utf-8", "replace")

    async def close(self, code: int = 1000, reason: str = "") -> None:
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason[:120]})
        except (OSError, RuntimeError):
            pass
