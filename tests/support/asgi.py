"""Asks an ASGI application as a server would, without one."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.gateway.app import Mount, make_application
from headrace.gateway.settings import Settings
from headrace.net.address import Address
from headrace.web.application import Application
from headrace.web.guard import Guard


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Asker:
    """Requests to one application, all in one process."""

    def __init__(self, application: Application) -> None:
        self.application = application

    async def __call__(
        self,
        method: str,
        target: str,
        body: bytes | str | dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """The whole answer. A dictionary is sent as JSON."""
        given = {"host": "localhost", **(headers or {})}
        if isinstance(body, dict):
            given.setdefault("content-type", "application/json")
            body = json.dumps(body)
        data = body.encode() if isinstance(body, str) else body or b""
        parts: list[Any] = []
        gone = asyncio.Event()
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await gone.wait()
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": data, "more_body": False}

        async def send(message: Any) -> None:
            parts.append(message)

        await self.application(scope_of(method, target, given), receive, send)
        head = parts[0]
        found = {name.decode(): value.decode("latin-1") for name, value in head["headers"]}
        return Reply(head["status"], found, b"".join(part.get("body", b"") for part in parts[1:]))


def scope_of(method: str, target: str, headers: Mapping[str, str], kind: str = "http") -> dict[str, Any]:
    path, _, query = target.partition("?")
    return {
        "type": kind,
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
    }


def conversation(
    bootstrap: str,
    talk: Callable[[Asker], Awaitable[None]],
    mounts: Sequence[Mount] = (),
    *,
    guard: Guard | None = None,
    **settings: Any,
) -> None:
    """Run `talk` with a gateway to the cluster at an address; nothing may be left running afterwards."""

    async def main() -> None:
        host, _, port = bootstrap.rpartition(":")
        served = Settings(bootstrap=(Address(host, int(port)),), **settings)
        application = make_application(served, guard, mounts)
        async with living(application):
            await talk(Asker(application))
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, left

    asyncio.run(main())


class living:  # noqa: N801 - reads as a phrase
    """An application between its start and its end."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._stop = asyncio.Event()
        self._started = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        asked = 0

        async def receive() -> dict[str, Any]:
            nonlocal asked
            asked += 1
            if asked > 1:
                await self._stop.wait()
            return {"type": "lifespan"}

        async def send(message: Any) -> None:
            assert message["type"] != "lifespan.startup.failed", message
            self._started.set()

        self._task = asyncio.ensure_future(self._application({"type": "lifespan"}, receive, send))
        await self._started.wait()

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        assert self._task is not None
        await self._task
