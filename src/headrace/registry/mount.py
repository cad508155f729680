"""The registry as a part of a gateway."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from headrace.client.aio.client import Client
from headrace.schema_log.records import TOPIC
from headrace.web.messages import Request
from headrace.web.routes import Mounted

from .api.routes import Api
from .service import Registry
from .topic_log import TopicLog

Admit = Callable[[Request], Awaitable[None]]
"""Lets a request pass, or raises the problem that refuses it."""


def mount(client: Callable[[], Client], admit: Admit | None = None, topic: str = TOPIC) -> Mounted:
    """Routes for the root of a gateway, and what follows the log while they are served.

    `client` gives the gateway's own client: its user must be able to create, read and write the topic.
    """
    registry = Registry(TopicLog(client, topic))

    async def cluster_id() -> str:
        cluster = client().cluster
        await cluster.metadata([])
        return str(cluster.cluster_id or "")

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        async with registry.running():
            yield

    return Mounted(routes=(Api(registry, cluster_id=cluster_id, admit=admit).routes(),), life=life())
