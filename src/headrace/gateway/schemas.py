"""The schema registry on the gateway's port."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.registry.api.routes import Api
from headrace.registry.judging import Workers
from headrace.registry.service import Registry
from headrace.registry.topic_log import TopicLog
from headrace.schema_log.records import TOPIC
from headrace.web.routes import Mounted

from .app import Services
from .subject_rights import SubjectRights


def mount_registry(services: Services) -> Mounted:
    """The registry's routes, and what follows its log while they are served.

    The gateway reads and writes that log as its own user, who must be able to create the topic. Callers must be users
    of the brokers, and may do with subjects what they may do with topics.
    """
    judge = Workers()
    registry = services.registry = Registry(TopicLog(services.own, TOPIC), judge)

    async def cluster_id() -> str:
        cluster = services.own().cluster
        await cluster.metadata([])
        return str(cluster.cluster_id or "")

    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        async with judge.running(), registry.running():
            yield

    has_logins = services.settings.mechanism is not None
    rights = services.subject_rights = SubjectRights(services.clients) if has_logins else None
    api = Api(registry, cluster_id=cluster_id, rights=rights)
    return Mounted(routes=(api.routes(),), life=life())
