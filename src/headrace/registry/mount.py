"""The registry as a part of a gateway."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from headrace.web.routes import Mounted

from .api.routes import Api
from .kafka_log import TOPIC, KafkaLog
from .service import Registry


def mount(
    client: Mapping[str, Any], topic: str = TOPIC, *, cluster_id: Callable[[], Awaitable[str]] | None = None
) -> Mounted:
    """Routes for the root of a gateway, and what follows the log while they are served.

    `client` are librdkafka's settings, with credentials of the gateway itself: its user must be able to create, read
    and write the topic.
    """
    log = KafkaLog(client, topic)
    registry = Registry(log)

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        async with log.connected(), registry.running():
            yield

    return Mounted(routes=(Api(registry, cluster_id=cluster_id).routes(),), life=life())
