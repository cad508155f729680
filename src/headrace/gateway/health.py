"""Probes: whether this process lives, and whether it can serve."""

import asyncio
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from headrace import __version__
from headrace.client.aio.retrying import Unavailable
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost, VersionNotServed
from headrace.protocol.errors import CodedError
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.routes import Reply, Routes

from .credentials import Clients

_PROBE_SECONDS: Final = 2.5
_FRESH_SECONDS: Final = 1.0


class About(Struct):
    """What this is."""

    name: Annotated[str, Meta(examples=["headrace"])]
    version: Annotated[str, Meta(examples=["1.0"])]


class Alive(Struct):
    """This process serves."""

    status: Annotated[str, Meta(examples=["ok"])]


class Readiness(Struct, omit_defaults=True):
    """Whether the cluster can serve."""

    status: Annotated[str, Meta(examples=["ok"])]
    brokers: Annotated[int, Meta(description="How many answer.", examples=[3])]
    problems: Annotated[tuple[str, ...], Meta(description="What keeps brokers from serving.")] = ()


class State(NamedTuple):
    """Of the cluster, as the gateway sees it."""

    brokers: int = 0
    """How many there are; 0 when none answers. A broker that refuses us is there."""
    is_ready: bool = False
    problems: tuple[str, ...] = ()
    """What keeps brokers from serving, by their own account."""

    def shown(self) -> Readiness:
        return Readiness("ok" if self.is_ready else "unavailable", self.brokers, self.problems)


_ALIVE: Final = json_answer(Alive("ok"))


class GatewayHealth:
    """How many brokers answer, asked at most once a second."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._lock = asyncio.Lock()
        self._asked_at = float("-inf")
        self._state = State()

    async def state(self) -> State:
        """Ready while one broker can serve, or brokers answer that do not say how they are."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            if loop.time() - self._asked_at > _FRESH_SECONDS:
                self._state = await self._look()
                self._asked_at = loop.time()
            return self._state

    async def _look(self) -> State:
        own = self._clients.own().cluster
        brokers, reports = await asyncio.gather(self._count(), own.health(_PROBE_SECONDS))
        problems = [f"broker {r.broker_id}: {p.title}" for r in reports for p in r.problems if p.keeps_from_ready]
        is_ready = brokers > 0 and (not reports or any(report.ready for report in reports))
        return State(brokers, is_ready, tuple(sorted(problems)))

    async def _count(self) -> int:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                return len((await self._clients.own().cluster.metadata([])).brokers)
        except (AuthenticationRefused, CodedError):
            return 1
        except (ConnectionLost, Unavailable, VersionNotServed, TimeoutError):
            return 0


def health_routes(health: GatewayHealth) -> Routes:
    """`/healthz` for liveness, `/readyz` and `/health` for readiness."""
    routes = Routes(tag="Health", about="For probes; never refused for their rate.")
    open_ = {"is_open": True}

    @routes.get("/", "Say what this is.", answers={200: Reply("Name and version.", About)}, **open_)
    async def root(request: Request) -> Answer:
        return json_answer(About("headrace", __version__))

    @routes.get(
        "/healthz",
        "Whether this process serves.",
        answers={200: Reply("It does.", Alive)},
        is_hot=True,
        **open_,
    )
    async def healthz(request: Request) -> Answer:
        return _ALIVE

    async def readyz(request: Request) -> Answer:
        state = await health.state()
        return json_answer(state.shown(), 200 if state.is_ready else 503)

    answers = {200: Reply("It can.", Readiness), 503: Reply("No broker answers, or none can serve.", Readiness)}
    routes.add("GET", "/readyz", "Whether the cluster can serve.", readyz, answers=answers, **open_)
    routes.add("GET", "/health", "The same.", readyz, answers=answers, name="health", **open_)
    return routes
