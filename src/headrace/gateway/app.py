"""The gateway: routes, clients and what runs beside them, put together."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from headrace import __version__
from headrace.client.aio.client import Client
from headrace.registry.service import Registry
from headrace.web.application import Application
from headrace.web.guard import Guard
from headrace.web.measured import HttpCounts
from headrace.web.openapi import documented
from headrace.web.routes import Mounted, Routes
from headrace.web.server import Listen, serve

from .consumer_routes import consumer_routes
from .consumers import Consumer, Consumers
from .credentials import Clients
from .delays import Delays
from .group_routes import group_routes
from .health import GatewayHealth, health_routes
from .metrics import metrics_routes
from .problems import CODES
from .publish_routes import publish_routes
from .publishing import Publisher
from .push.manager import Manager
from .push.routes import push_routes
from .queue_routes import queue_routes
from .queues import QueueMember
from .read_routes import read_routes
from .request_reply import ReplyDesk, request_routes
from .rest_proxy.consuming import ProxyConsumers
from .rest_proxy.describing import ProxyMetadata
from .rest_proxy.instances import Instance
from .rest_proxy.operations import V2, V3
from .rest_proxy.producing import ProxyProducer
from .rest_proxy.v3.acls import AclResources
from .rest_proxy.v3.clusters import ClusterResources
from .rest_proxy.v3.configs import ConfigResources
from .rest_proxy.v3.groups import GroupResources
from .rest_proxy.v3.records import RecordResources
from .rest_proxy.v3.topics import TopicResources
from .rest_proxy.values import Values
from .settings import Settings
from .streaming import stream_routes
from .subject_rights import SubjectRights
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
        self.consumers: Consumers[Consumer] = Consumers()
        self.queues: Consumers[QueueMember] = Consumers()
        """Members of share groups."""
        self.instances: Consumers[Instance] = Consumers()
        """Consumers of REST Proxy's API."""
        self.push = Manager(self.clients)
        self.delays = Delays(self.clients)
        self.desk = ReplyDesk()
        self.registry: Registry | None = None
        """The schema registry, where one is served here."""
        self.subject_rights: SubjectRights | None = None
        """Who may do what with its subjects; without it everybody may do everything."""

    def own(self) -> Client:
        """The gateway's own client."""
        return self.clients.own()


Mount = Callable[[Services], Mounted]
"""How another package brings its part; called before the event loop runs."""


def make_application(settings: Settings, guard: Guard | None = None, mounts: Sequence[Mount] = ()) -> Application:
    """The ASGI application of a gateway."""
    services = Services(settings)
    if guard is not None:
        guard.user_of = services.clients.user_of
    parts = [mount(services) for mount in mounts]
    counts = HttpCounts()
    routes = [*_own_routes(services, counts), *(routes for part in parts for routes in part.routes)]
    shown = documented(routes, title="Headrace", version=__version__, about=ABOUT, codes=CODES)

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(services.clients.close)
            stack.push_async_callback(services.desk.close)
            stack.push_async_callback(services.consumers.close)
            stack.push_async_callback(services.instances.close)
            stack.push_async_callback(services.queues.close)
            await stack.enter_async_context(services.push.runs())
            await stack.enter_async_context(services.delays.runs())
            for part in parts:
                await stack.enter_async_context(part.life)
            yield

    return Application([*routes, shown], guard=guard, translate=translate, life=life(), counts=counts)


def _own_routes(services: Services, counts: HttpCounts) -> list[Routes]:
    clients = services.clients
    publisher, health = Publisher(), GatewayHealth(clients)
    values = Values(services.registry, services.subject_rights)
    proxy = ProxyProducer(clients, publisher, values)
    return [
        publish_routes(clients, publisher, proxy, services.delays),
        read_routes(clients),
        topic_routes(clients),
        group_routes(clients),
        consumer_routes(clients, services.consumers),
        queue_routes(clients, services.queues),
        stream_routes(clients),
        request_routes(clients, publisher, services.desk),
        push_routes(clients, services.push),
        cluster_routes(clients),
        _proxy_routes(services, proxy, values),
        _proxy_v3_routes(services, publisher, values),
        health_routes(health),
        *([metrics_routes(counts, health)] if services.settings.metrics else []),
    ]


def _proxy_routes(services: Services, producer: ProxyProducer, values: Values) -> Routes:
    """REST Proxy's v2."""
    routes = V2.routes(
        "REST Proxy v2",
        "The API of Confluent's REST Proxy, with its own types, bodies and refusals. A path may end with a slash.",
    )
    ProxyMetadata(services.clients).add_to(routes)
    producer.add_partition_route(routes)
    ProxyConsumers(services.clients, services.instances, values).add_to(routes)
    return routes


def _proxy_v3_routes(services: Services, publisher: Publisher, values: Values) -> Routes:
    """REST Proxy's v3."""
    routes = V3.routes("REST Proxy v3", "The cluster's resources as Confluent's REST Proxy has them in v3.")
    clients = services.clients
    for resources in (
        ClusterResources(clients),
        TopicResources(clients),
        ConfigResources(clients),
        AclResources(clients),
        GroupResources(clients),
        RecordResources(clients, publisher, values),
    ):
        resources.add_to(routes)
    return routes


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
