"""The schema registry on the gateway's port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.registry.api.routes import Api
from headrace.registry.service import Registry
from headrace.registry.topic_log import TopicLog
from headrace.schema_log.records import TOPIC
from headrace.web.messages import Request
from headrace.web.routes import Mounted

from .app import Services


def mount_registry(services: Services) -> Mounted:
    """The registry's routes, and what follows its log while they are served.

    The gateway reads and writes that log as its own user, who must be able to create the topic. Callers must be users
    of the brokers.
    """
    registry = Registry(TopicLog(services.own, TOPIC))

    async def admit(request: Request) -> None:
        await services.clients.proved(request)

    async def cluster_id() -> str:
        cluster = services.own().cluster
        await cluster.metadata([])
        return str(cluster.cluster_id or "")

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        async with registry.running():
            yield

    return Mounted(routes=(Api(registry, cluster_id=cluster_id, admit=admit).routes(),), life=life())
