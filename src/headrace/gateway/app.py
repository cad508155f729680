"""The gateway: routes, clients and what runs beside them, put together."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from headrace import __version__
from headrace.client.aio.client import Client
from headrace.web.application import Application
from headrace.web.guard import Guard
from headrace.web.measured import HttpCounts
from headrace.web.openapi import documented
from headrace.web.routes import Mounted, Routes
from headrace.web.server import Listen, serve

from .consumer_routes import consumer_routes
from .consumers import Consumers
from .credentials import Clients
from .group_routes import group_routes
from .health import GatewayHealth, health_routes
from .metrics import metrics_routes
from .publish_routes import publish_routes
from .publishing import Publisher
from .push.manager import Manager
from .push.routes import push_routes
from .read_routes import read_routes
from .request_reply import ReplyDesk, request_routes
from .settings import Settings
from .streaming import stream_routes
from .topic_routes import cluster_routes, topic_routes
from .translate import translate

ABOUT = (
    "Services without a Kafka client publish, read and administer over HTTP. Credentials are the brokers': basic or "
    "bearer ones are handed on, and the brokers decide. Errors are problems as RFC 9457 has them."
)


class Services:
    """What the routes are built on: settings, clients of users, the gateway's own client."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clients = Clients(settings)
        """Clients of callers; `clients.of(request)`."""
        self.consumers = Consumers()
        self.push = Manager(self.clients)
        self.desk = ReplyDesk()

    def own(self) -> Client:
        """The gateway's own client."""
        return self.clients.own()


Mount = Callable[[Services], Mounted]
"""How another package brings its part; called before the event loop runs."""


def make_application(settings: Settings, guard: Guard | None = None, mounts: Sequence[Mount] = ()) -> Application:
    """The ASGI application of a gateway."""
    services = Services(settings)
    parts = [mount(services) for mount in mounts]
    counts = HttpCounts()
    routes = [*_own_routes(services, counts), *(routes for part in parts for routes in part.routes)]
    shown = documented(routes, title="Headrace", version=__version__, about=ABOUT)

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(services.clients.close)
            stack.push_async_callback(services.desk.close)
            stack.push_async_callback(services.consumers.close)
            await stack.enter_async_context(services.push.runs())
            for part in parts:
                await stack.enter_async_context(part.life)
            yield

    return Application([*routes, shown], guard=guard, translate=translate, life=life(), counts=counts)


def _own_routes(services: Services, counts: HttpCounts) -> list[Routes]:
    clients = services.clients
    publisher, health = Publisher(), GatewayHealth(clients)
    return [
        publish_routes(clients, publisher),
        read_routes(clients),
        topic_routes(clients),
        group_routes(clients),
        consumer_routes(clients, services.consumers),
        stream_routes(clients),
        request_routes(clients, publisher, services.desk),
        push_routes(clients, services.push),
        cluster_routes(clients),
        health_routes(health),
        *([metrics_routes(counts, health)] if services.settings.metrics else []),
    ]


def run_gateway(
    settings: Settings,
    listen: Listen,
    on_ready: Callable[[str, int], None],
    guard: Guard | None = None,
    mounts: Sequence[Mount] = (),
    on_stop: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. OSError if the address cannot be bound."""
    return serve(make_application(settings, guard, mounts), listen, on_ready, on_stop)
