"""What callers may do with subjects: what the brokers let them do with the topic that a subject belongs to.

`orders-value` and `orders-key` belong to the topic `orders`, any other subject to the topic of its name, in every
context. To read a schema takes Describe, to register one Write, to delete Delete, to change settings AlterConfigs.
Where there is no such topic, who may create it may do all of these. Settings of everything, and subjects that no topic
can have the name of, are the cluster's: Describe, Alter, AlterConfigs.
"""

from collections.abc import Collection, Iterable
from time import monotonic
from typing import Final
from weakref import WeakKeyDictionary

from headrace.client.aio.admin import cluster_operations, create_topic, topic_operations
from headrace.client.aio.client import Client
from headrace.protocol.acl import AclOperation
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.registry.api.rights import Action
from headrace.schema_log.names import split
from headrace.web.messages import Request

from .credentials import Clients
from .names import is_topic_name

KNOWN_SECONDS: Final = 5.0
"""How long an answer of the brokers counts."""
_MOST_KNOWN: Final = 10_000
_SUFFIXES: Final = ("-key", "-value")
_OF_TOPIC: Final = {
    Action.READ: AclOperation.DESCRIBE,
    Action.WRITE: AclOperation.WRITE,
    Action.DELETE: AclOperation.DELETE,
    Action.CONFIGURE: AclOperation.ALTER_CONFIGS,
}
_OF_CLUSTER: Final = {
    Action.READ: AclOperation.DESCRIBE,
    Action.WRITE: AclOperation.ALTER,
    Action.DELETE: AclOperation.ALTER,
    Action.CONFIGURE: AclOperation.ALTER_CONFIGS,
}
_DENIED: Final = (ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed)
_CLUSTER: Final = ""
Operations = Collection[AclOperation]


class SubjectRights:
    """Asks the brokers in the caller's name."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._known: WeakKeyDictionary[Client, dict[str, tuple[Operations, float]]] = WeakKeyDictionary()

    async def admit(self, request: Request) -> None:
        await self._clients.proved(request)

    async def may(self, request: Request, action: Action, subject: str) -> bool:
        return await self.client_may(self._clients.of(request), action, subject)

    async def client_may(self, client: Client, action: Action, subject: str) -> bool:
        """The same for the user of a client."""
        topic = _topic_of(subject)
        wanted = _OF_CLUSTER[action] if topic == _CLUSTER else _OF_TOPIC[action]
        return wanted in (await self._allowed(client, [topic], creates=action is not Action.READ))[topic]

    async def readable(self, request: Request, subjects: Collection[str]) -> Collection[str]:
        return await self.client_reads(self._clients.of(request), subjects)

    async def client_reads(self, client: Client, subjects: Collection[str]) -> Collection[str]:
        """Those of some subjects that the user of a client may read."""
        allowed = await self._allowed(client, {_topic_of(subject) for subject in subjects})
        return [subject for subject in subjects if AclOperation.DESCRIBE in allowed[_topic_of(subject)]]

    async def _allowed(self, client: Client, topics: Iterable[str], *, creates: bool = False) -> dict[str, Operations]:
        """What the client's user may do with topics, or the cluster; with `creates` also with those to be made."""
        known = self._known.setdefault(client, {})
        now = monotonic()
        found = {topic: known[topic][0] for topic in topics if topic in known and now < known[topic][1]}
        missing = [topic for topic in topics if topic not in found]
        if missing:
            asked = await _ask(client, missing)
            if len(known) + len(asked) > _MOST_KNOWN:
                known.clear()
            known.update({topic: (operations, now + KNOWN_SECONDS) for topic, operations in asked.items()})
            found |= asked
        for topic in topics:
            if creates and found[topic] is _ABSENT:
                found[topic] = list(AclOperation) if await _may_create(client, topic) else _ABSENT
        return found


_ABSENT: Final = (AclOperation.DESCRIBE,)
"""A topic that is not there, and that the user might be shown."""


async def _ask(client: Client, topics: Iterable[str]) -> dict[str, Operations]:
    found: dict[str, Operations] = {}
    named = [topic for topic in topics if topic != _CLUSTER]
    if named:
        for topic, operations in (await topic_operations(client.cluster, named)).items():
            found[topic] = _ABSENT if operations is None else operations
    if len(named) < len(list(topics)):
        found[_CLUSTER] = await cluster_operations(client.cluster)
    return found


async def _may_create(client: Client, topic: str) -> bool:
    try:
        await create_topic(client.cluster, topic, validate_only=True)
    except CodedError as error:
        return error.code not in _DENIED
    return True


def _topic_of(subject: str) -> str:
    """The topic that a subject belongs to; nothing where it is the cluster's."""
    name = split(subject)[1]
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and len(name) > len(suffix):
            name = name.removesuffix(suffix)
            break
    return name if is_topic_name(name) else _CLUSTER
