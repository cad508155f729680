"""The control socket of a node: how `headrace cluster restart` asks its supervisor.

A Unix socket that only the node's user can open. A client sends one line of JSON and gets one back:

    {"do": "describe"}               the node and its workers
    {"do": "restart", "broker": 3}   stop this worker in order, start it again; answered once it is ready
    {"error": "…"}                   the answer to what cannot be done
"""

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from ..console import Failure

SOCKET_NAME: Final = "node.sock"
LONGEST_LINE: Final = 1 << 20
_PROBE_SECONDS: Final = 2.0
_LONGEST_PATH: Final = 100
"""Bytes; a kernel takes 104 to 108."""

Answer = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class ControlError(Exception):
    """What a node answers to a request that it cannot carry out."""


@asynccontextmanager
async def control_socket(path: Path, answer: Answer) -> AsyncIterator[None]:
    """Serve requests at a path until the block ends; a `Failure` where another node does already."""
    _refuse_unusable(path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _serve(reader, writer, answer)
        except (OSError, asyncio.CancelledError):
            pass  # the client has gone, or the node ends
        finally:
            writer.close()

    before = os.umask(0o177)
    try:
        server = await asyncio.start_unix_server(serve, path, limit=LONGEST_LINE)
    finally:
        os.umask(before)
    try:
        yield
    finally:
        server.close()
        with suppress(OSError):
            path.unlink()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
    line = await reader.readline()
    try:
        asked = json.loads(line)
        if not isinstance(asked, dict):
            raise ControlError("a request is a JSON object")
        answered = await answer(asked)
    except (ControlError, ValueError) as error:
        answered = {"error": str(error)}
    writer.write(json.dumps(answered).encode() + b"\n")
    await writer.drain()


def _refuse_unusable(path: Path) -> None:
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise Failure(f"the path of the control socket is too long ({path}); choose a short one with --control")
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise Failure(f"{path} is there and is no socket; choose another path with --control")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            path.unlink()  # of a node that was killed
            return
    raise Failure(f"another node runs with this control socket ({path}); stop it, or choose --data and --control")


def ask(path: Path, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What the node at a control socket answers; a `Failure` in words where it does not, or cannot."""
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(seconds)
        try:
            link.connect(os.fspath(path))
            link.sendall(json.dumps(request).encode() + b"\n")
            with link.makefile("rb") as lines:
                answer = json.loads(lines.readline(LONGEST_LINE))
        except TimeoutError:
            raise Failure(f"the node at {path} did not answer within {seconds:g} s") from None
        except ValueError:
            raise Failure(f"the node at {path} went away before it answered") from None
        except OSError as error:
            raise Failure(f"no node answers at {path}: {error.strerror or error}") from error
    if "error" in answer:
        raise Failure(f"the node at {path}: {answer['error']}")
    return dict(answer)
