"""A bare uvloop `Protocol` that finds frames and answers each with one of the size asked for. It keeps nothing."""

import argparse
import asyncio
from struct import Struct
from typing import Final, cast

import uvloop

from .bare import announce, reply_of

_LENGTH: Final = Struct(">i")


class Echo(asyncio.Protocol):
    """Answers frames."""

    def __init__(self, reply: bytes, gone: asyncio.Event) -> None:
        self._reply = reply
        self._gone = gone
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        position = answers = 0
        end = len(data)
        while end - position >= _LENGTH.size:
            after = position + _LENGTH.size + int(_LENGTH.unpack_from(data, position)[0])
            if after > end:
                break
            position = after
            answers += 1
        self._rest = data[position:]
        if answers:
            self._transport.write(self._reply * answers)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._gone.set()


async def serve(reply_size: int) -> None:
    """Serve until the client goes."""
    gone = asyncio.Event()
    reply = reply_of(reply_size)
    server = await asyncio.get_running_loop().create_server(lambda: Echo(reply, gone), "127.0.0.1", 0)
    announce(server.sockets[0])
    await gone.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reply", type=int, required=True)
    uvloop.run(serve(parser.parse_args().reply))


if __name__ == "__main__":
    main()
