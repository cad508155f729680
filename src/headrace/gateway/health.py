"""Probes: whether this process lives, and whether it can serve."""

import asyncio
from typing import Final

from headrace import __version__
from headrace.client.aio.retrying import Unavailable
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost, VersionNotServed
from headrace.protocol.errors import CodedError
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.routes import Reply, Routes
from headrace.web.shapes import Integer, Object, Text

from .credentials import Clients

_PROBE_SECONDS: Final = 3.0
_FRESH_SECONDS: Final = 1.0
_STATE: Final = Object({"status": Text(), "brokers": Integer()})


class Health:
    """One question to the cluster a second at most, however often we are asked."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = asyncio.Lock()
        self._asked_at = float("-inf")
        self._brokers = 0

    async def brokers(self) -> int:
        """How many brokers there are; 0 when none answers. A broker that refuses us is there."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            if loop.time() - self._asked_at > _FRESH_SECONDS:
                self._brokers = await self._count()
                self._asked_at = loop.time()
            return self._brokers

    async def _count(self) -> int:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                return len((await self._clients.own().cluster.metadata([])).brokers)
        except (AuthenticationRefused, CodedError):
            return 1
        except (ConnectionLost, Unavailable, VersionNotServed, TimeoutError):
            return 0


def health_routes(health: Health) -> Routes:
    """`/healthz` for liveness, `/readyz` and `/health` for readiness."""
    routes = Routes(tag="Health", about="For probes; never refused for their rate.")
    open_ = {"is_open": True}
    about = Object({"name": Text(), "version": Text()})

    @routes.get("/", "Say what this is.", answers={200: Reply("Name and version.", about)}, **open_)
    async def root(request: Request) -> Answer:  # noqa: ARG001
        return json_answer({"name": "headrace", "version": __version__})

    @routes.get(
        "/healthz",
        "Whether this process serves.",
        answers={200: Reply("It does.", Object({"status": Text()}))},
        **open_,
    )
    async def healthz(request: Request) -> Answer:  # noqa: ARG001
        return json_answer({"status": "ok"})

    async def readyz(request: Request) -> Answer:  # noqa: ARG001
        brokers = await health.brokers()
        status = 200 if brokers else 503
        return json_answer({"status": "ok" if brokers else "unavailable", "brokers": brokers}, status)

    answers = {200: Reply("It does.", _STATE), 503: Reply("No broker answers.", _STATE)}
    routes.add("GET", "/readyz", "Whether the cluster answers.", readyz, answers=answers, **open_)
    routes.add("GET", "/health", "The same.", readyz, answers=answers, name="health", **open_)
    return routes
