"""Messages that are delivered later: accepted from callers, and moved by this gateway.

They wait in a topic beside the one that they go to (`headrace.client.delays`). A caller writes there as itself, so the
brokers decide, and must have the right to write to the target, too. The gateway moves them as its own user, in a thread
that begins once there is something to move.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog

from headrace.client.aio import admin, once
from headrace.client.aio.client import Client
from headrace.client.aio.retrying import Unavailable
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost
from headrace.client.delays.lanes import LANES, checked_due, lane_for, lanes_settings, lanes_topic, with_delay
from headrace.client.errors import ClientError
from headrace.protocol.delayed import target_of
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.records import Record
from headrace.web.problem import Problem, bad_request

from .credentials import Clients
from .names import require_not_internal
from .publishing import MessageToPublish, now_ms
from .topic_routes import wait_until_known
from .translate import coded

log = structlog.get_logger(__name__)

_LOOK_SECONDS: Final = 5.0
_CHEAP: Final = 100
_STOP_SECONDS: Final = 10.0
_TROUBLE: Final = (ConnectionLost, Unavailable, AuthenticationRefused, CodedError, ProtocolViolation)


class Delays:
    """Accepts messages for later, and has them moved while it `runs`."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._settings = clients.settings.mover
        self._expects = asyncio.Event()
        """Set when messages were accepted: they are looked for at once."""

    def due(self, after_ms: int | None, at_ms: int | None) -> int | None:
        """When a message is due; None for now."""
        if after_ms is not None and at_ms is not None:
            raise bad_request("X-Deliver-After-Ms and X-Deliver-At exclude each other; give one")
        now = now_ms()
        due = now + after_ms if after_ms is not None else at_ms
        if due is None or due <= now:
            return None
        try:
            return checked_due(due, now)
        except ClientError as error:
            raise bad_request(error.message) from None

    async def accept(
        self,
        client: Client,
        topic: str,
        messages: Sequence[MessageToPublish],
        due_ms: int,
        acks: int,
        key: str | None,
    ) -> None:
        """Write messages to where they wait, all or none."""
        require_not_internal(topic)
        view = await client.cluster.topic(topic)
        for message in messages:
            if message.partition is not None and message.partition >= view.partitions:
                raise Problem(
                    404,
                    f"topic '{topic}' has partitions 0 to {view.partitions - 1}, not {message.partition}",
                    code="unknown-partition",
                )
        if not await admin.may_write(client.cluster, topic):
            raise coded(ErrorCode.topic_authorization_failed, f"not allowed to write to topic '{topic}'")
        name = await self._lanes(client, topic)
        records = [
            each.record._replace(
                headers=tuple(with_delay(each.record.headers, due_ms, -1 if each.partition is None else each.partition))
            )
            for each in messages
        ]
        if key is None:
            await client.producer.send(name, lane_for(due_ms - now_ms()), records, acks)
        else:
            await self._once(client, name, messages, records, key)
        self._expects.set()

    async def _once(
        self, client: Client, name: str, messages: Sequence[MessageToPublish], records: Sequence[Record], key: str
    ) -> None:
        """Under an idempotency key: into the first lane, from which they are moved on, whenever they are sent again."""
        plain = [each.record for each in messages]
        identity = once.identity(client.cluster.cluster_id, client.principal, name, key, plain)
        try:
            await client.producer.send_once(name, 0, records, identity)
        except CodedError as error:
            if error.code in once.USED_FOR_ANOTHER:
                detail = "this Idempotency-Key was used for another body; take a new key for a new message"
                raise Problem(422, detail, code="idempotency-key-reused") from error
            raise

    async def _lanes(self, client: Client, topic: str) -> str:
        """Where messages of a topic wait: made in the gateway's own name for the first of them."""
        try:
            name = lanes_topic(topic)
        except ClientError as error:
            raise bad_request(error.message, "invalid-topic") from None
        if client.cluster.known(name) is not None:
            return name
        try:
            await client.cluster.topic(name)
        except CodedError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
            await self._make(topic, name)
            await wait_until_known(client.cluster, name)
        return name

    async def _make(self, topic: str, name: str) -> None:
        cluster = self._clients.own().cluster
        own = [each for each in await admin.describe_configs(cluster, topic) if int(each.config_source) == admin.OWN]
        most = next((each.value for each in own if each.name == "max.message.bytes"), None)
        try:
            await admin.create_topic(cluster, name, partitions=LANES, configs=lanes_settings(most))
        except CodedError as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise

    # Moving

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        """Have messages moved whose time has come, where this gateway may."""
        if self._settings is None:
            yield
            return
        stop = threading.Event()
        task = asyncio.ensure_future(self._run(dict(self._settings), stop))
        try:
            yield
        finally:
            stop.set()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, settings: dict[str, str], stop: threading.Event) -> None:
        await self._first()
        from headrace.client.delays.mover import Mover  # late: librdkafka takes memory

        bootstrap = ",".join(str(each) for each in self._clients.settings.bootstrap)
        thread = threading.Thread(
            target=Mover(bootstrap, settings).run, args=(stop,), name="headrace-mover", daemon=True
        )
        thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            stop.set()
            await asyncio.to_thread(thread.join, _STOP_SECONDS)

    async def _first(self) -> None:
        """Wait until there is a topic in which messages wait; the more seldom asked for the longer that takes."""
        loop = asyncio.get_running_loop()
        while True:
            self._expects.clear()
            began = loop.time()
            try:
                answer = await self._clients.own().cluster.metadata(None)
                if any(target_of(topic.name) is not None for topic in answer.topics):
                    return
            except _TROUBLE as error:
                log.debug("topics could not be listed", reason=str(error))
            pause = max(_LOOK_SECONDS, _CHEAP * (loop.time() - began))
            try:
                async with asyncio.timeout(pause):
                    await self._expects.wait()
            except TimeoutError:
                pass
