"""Calling functions over topics: requests go to the topic that a service reads, replies come to one of ours.

A caller is in no group: it reads one partition of the reply topic from its end on, so that no rebalance can take a
reply from it. A service is a group of `App.serve` functions; a request whose server dies is answered by the next.
"""

import asyncio
import random
import secrets
import time
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from .asynchronous import AsyncAdmin, AsyncConsumer, AsyncProducer
from .errors import ClientError, ClusterUnreachable
from .formats import Raw, format_of
from .messages import Headers, Message, header_pairs
from .producer import Key, Settings, log
from .replying import CORRELATION, NoReply, answer_in, request_headers

T = TypeVar("T")
DEFAULT_REPLIES: Final = "headrace.replies"
_PARTITIONS: Final = 8
_RETENTION: Final = {"retention.ms": "3600000"}
_POLL_SECONDS: Final = 1.0


class Rpc:
    """Calls functions that other programs serve.

    async with Rpc("127.0.0.1:9092") as rpc:
        price = await rpc.call("pricing", {"item": 7}, reply=Price, timeout=2.0)

    Any number of tasks may call at the same time.
    """

    def __init__(
        self, bootstrap: str | None = None, *, reply_topic: str = DEFAULT_REPLIES, settings: Settings | None = None
    ) -> None:
        self._bootstrap = bootstrap
        self._settings = settings
        self._reply_topic = reply_topic
        self._partition = 0
        self._waiting: dict[bytes, asyncio.Future[Message[bytes]]] = {}
        self._reading: asyncio.Task[None] | None = None

    @overload
    async def call(
        self, topic: str, value: Any = None, *, timeout: float, key: Key = None, headers: Headers | None = None
    ) -> Any: ...

    @overload
    async def call(
        self,
        topic: str,
        value: Any = None,
        *,
        reply: type[T],
        timeout: float,
        key: Key = None,
        headers: Headers | None = None,
    ) -> T: ...

    async def call(
        self,
        topic: str,
        value: Any = None,
        *,
        reply: Any = Any,
        timeout: float,
        key: Key = None,
        headers: Headers | None = None,
    ) -> Any:
        """What the function that serves a topic returns, as a value of type `reply`.

        NoReply when nothing comes in time, RemoteError when the function raised, Undecodable for a reply of another
        type.
        """
        if self._reading is None:
            raise RuntimeError("an Rpc is used in an `async with` block")
        if self._reading.done():
            raise ClusterUnreachable("replies are not read any more", "_STATE") from self._reading.exception()
        correlation = secrets.token_bytes(16)
        answer: asyncio.Future[Message[bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = answer
        where = request_headers(correlation, self._reply_topic, self._partition, time.time() + timeout)
        try:
            async with asyncio.timeout(timeout):
                await self._producer.deliver(topic, value, key=key, headers=[*header_pairs(headers), *where])
                found = await answer
        except TimeoutError:
            raise NoReply(f"no reply from '{topic}' within {timeout:g} s") from None
        finally:
            del self._waiting[correlation]
        return answer_in(Message(found.record, format_of(reply)))

    async def __aenter__(self) -> Self:
        await self._make_topic()
        consumer = AsyncConsumer(
            self._reply_topic,
            group=None,
            value=Raw(),
            start="latest",
            bootstrap=self._bootstrap,
            settings=self._settings,
        )
        await consumer.start()
        partitions = await consumer.assignment()
        topic, self._partition = random.choice(partitions)
        await consumer.pause([each for each in partitions if each != (topic, self._partition)])
        self._producer = AsyncProducer(self._bootstrap, settings={"linger.ms": 0, **(self._settings or {})})
        self._reading = asyncio.create_task(self._read(consumer))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._producer.__aexit__(kind, error, trace)

    async def _make_topic(self) -> None:
        admin = AsyncAdmin(self._bootstrap, settings=self._settings)
        failure = (await admin.create_topics([self._reply_topic], _PARTITIONS, configs=_RETENTION))[self._reply_topic]
        if failure is not None and failure.code != "TOPIC_ALREADY_EXISTS":
            raise failure

    async def _read(self, consumer: AsyncConsumer[bytes]) -> None:
        try:
            while True:
                for message in await consumer.receive_many(None, _POLL_SECONDS):
                    answer = self._waiting.get(dict(message.headers).get(CORRELATION) or b"")
                    if answer is not None and not answer.done():
                        answer.set_result(message)
        except ClientError as error:
            log.error("replies cannot be read: %s", error)
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(error)
            raise
        finally:
            await consumer.close()
