"""Handlers in tests, without a broker and without waiting."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeVar, overload

from confluent_kafka import Message as Record

from ..formats import Plain, format_of
from ..messages import Headers, Message, header_pairs
from ..replying import CORRELATION, answer_in, request_headers
from .app import App, Subscription
from .attempt import Attempts
from .deduplication import SeenIds, id_of
from .outbox import OutgoingRecord
from .retry import dead_letter_topic, due_seconds

V = TypeVar("V")
_REPLIES: Final = "replies"


class TestClient:
    """Topics in memory, with an application's handlers on them.

    async with TestClient(app) as client:
        await client.send("orders", Order(1))      # returns when it, and all that came of it, has been handled
        assert client.messages("invoices", Invoice)[0].value.order == 1

    Pauses between attempts in place take no time. Messages that wait in delay topics are handled by `advance`.
    A handler that fails for good raises HandlerFailed where its message was sent.
    """

    __test__ = False

    def __init__(self, app: App) -> None:
        self._app = app
        self._topics: dict[str, list[Any]] = {}
        self._now = time.time()
        self._waiting: list[tuple[Subscription, Any]] = []
        self._later: list[OutgoingRecord] = []
        """Messages that handlers have delayed."""
        self._slept = 0.0
        self._seen: dict[tuple[int, str], SeenIds] = {}
        self._stack = AsyncExitStack()

    async def send(
        self, topic: str, value: Any = None, *, key: str | bytes | None = None, headers: Headers | None = None
    ) -> None:
        """Send a message and handle it."""
        data = None if value is None else Plain().encode(value, topic)
        await self._append(OutgoingRecord(topic, data, key, header_pairs(headers)))

    async def call(self, topic: str, value: Any = None, *, reply: Any = Any) -> Any:
        """What a function of `App.serve` answers; RemoteError where it raises."""
        correlation = f"{len(self._topics.get(_REPLIES, ()))}".encode()
        await self.send(topic, value, headers=request_headers(correlation, _REPLIES, 0, None))
        for message in reversed(self.messages(_REPLIES, reply)):
            if dict(message.headers).get(CORRELATION) == correlation:
                return answer_in(message)
        raise AssertionError(f"nothing in the application serves '{topic}'")

    async def advance(self, seconds: float) -> None:
        """Let time pass, and handle the messages that become due."""
        end = self._now + seconds
        while due := sorted(each for each in self._next() if each[0] <= end):
            at, is_later, number = due[0]
            self._now = max(at, self._now)
            if is_later:
                await self._append(self._later.pop(number)._replace(due_ms=None))
            else:
                await self._handle(*self._waiting.pop(number))
        self._now = end

    def _next(self) -> Iterator[tuple[float, bool, int]]:
        """When each message that waits is due, whether it was delayed by a handler, and its place."""
        for number, (_, record) in enumerate(self._waiting):
            yield self._now + self._left(record), False, number
        for number, outgoing in enumerate(self._later):
            yield (outgoing.due_ms or 0) / 1000, True, number

    @overload
    def messages(self, topic: str) -> list[Message[bytes]]: ...

    @overload
    def messages(self, topic: str, value: type[V]) -> list[Message[V]]: ...

    def messages(self, topic: str, value: Any = bytes) -> list[Message[Any]]:
        """What is in a topic, in its order."""
        return [Message(record, format_of(value)) for record in self._topics.get(topic, ())]

    def dead_letters(self, topic: str, group: str) -> list[Message[bytes]]:
        """What a group has given up of a topic."""
        return self.messages(dead_letter_topic(topic, group))

    @property
    def slept(self) -> float:
        """Seconds that would have passed between attempts in place."""
        return self._slept

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._app.lifespan())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def _append(self, outgoing: OutgoingRecord) -> None:
        topic, value, key, headers, _, due_ms = outgoing
        if due_ms is not None and due_ms > self._now * 1000:
            self._later.append(outgoing)
            return
        log = self._topics.setdefault(topic, [])
        key = key.encode() if isinstance(key, str) else key
        timestamp = (1, int(self._now * 1000))
        record = Record(
            topic=topic, partition=0, offset=len(log), key=key, value=value, headers=headers or [], timestamp=timestamp
        )
        log.append(record)
        for subscription in self._app.subscriptions:
            if topic in subscription.topics:
                if self._is_duplicate(subscription, record):
                    continue
                await self._handle(subscription, record)
            elif any(topic in subscription.delay_topics(delay) for delay in subscription.retry.delays):
                self._waiting.append((subscription, record))

    async def _handle(self, subscription: Subscription, record: Any) -> None:
        attempts = Attempts(subscription, self._sleep, lambda: self._now, waits_for_schemas=False)
        outgoing: Sequence[OutgoingRecord] = await attempts.handle(Message(record, subscription.format))
        for one in outgoing:
            await self._append(one)

    def _is_duplicate(self, subscription: Subscription, record: Any) -> bool:
        message_id = id_of(record)
        if subscription.deduplicate_ms is None or message_id is None:
            return False
        fresh = SeenIds(subscription.deduplicate_ms, lambda: self._now)
        seen = self._seen.setdefault((id(subscription), record.topic()), fresh)
        return seen.is_duplicate(message_id, record.offset(), record.timestamp()[1])

    async def _sleep(self, seconds: float) -> None:
        self._slept += seconds

    def _left(self, record: Any) -> float:
        return due_seconds(Message(record, Plain()), lambda: self._now)
