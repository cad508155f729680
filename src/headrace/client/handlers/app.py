"""Applications: which function handles which topics, and how."""

import inspect
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from ..consumer import Start
from ..formats import Format, format_of
from ..messages import Message
from ..producer import Settings
from ..replying import CORRELATION, ERROR, is_late, reply_place
from .calling import as_coroutine
from .outbox import PLAIN, Outbox, OutgoingRecord
from .retry import ONCE, Retry, dead_letter_topic, delay_topic

F = TypeVar("F", bound=Callable[..., Any])
Delivery = Literal["at-most-once", "at-least-once", "exactly-once"]
Call = Callable[[Message[Any]], Awaitable[Sequence[OutgoingRecord]]]
log: Final = logging.getLogger("headrace.handlers")
_LONGEST_WINDOW_SECONDS: Final = 30 * 86_400.0
_WEEK_MS: Final = 7 * 86_400_000
_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z")
_NOTHING: Final[Sequence[OutgoingRecord]] = ()


class OwnTopic(NamedTuple):
    """How a topic is made that a subscription needs."""

    like: str
    """The topic that has as many partitions."""
    keep_ms: int
    """How long its messages are kept; -1 for ever: dead letters wait for somebody to look at them."""


@dataclass(frozen=True, kw_only=True)
class Subscription:
    """A handler and the topics that it is for."""

    topics: tuple[str, ...]
    group: str
    handler: Callable[..., Any]
    format: Format[Any]
    call: Call
    """Calls the handler with one message; what it sends."""
    retry: Retry
    dead_letter: bool | str
    delivery: Delivery
    concurrency: int
    pending: int
    start: Start
    answers: bool = False
    """Whether somebody waits for what it sends."""
    deduplicate_ms: int | None = None
    """Within which time messages with one id count as one."""

    def delay_topics(self, delay: float) -> dict[str, str]:
        """The topics in which messages wait so long, and those from which they come."""
        return {delay_topic(topic, self.group, delay): topic for topic in self.topics}

    def own_topics(self) -> dict[str, OwnTopic]:
        """Topics that belong to this subscription alone."""
        found: dict[str, OwnTopic] = {}
        for delay in self.retry.delays:
            keep_ms = max(_WEEK_MS, int(2000 * delay))
            found |= {own: OwnTopic(topic, keep_ms) for own, topic in self.delay_topics(delay).items()}
        if self.dead_letter is True:
            found |= {dead_letter_topic(topic, self.group): OwnTopic(topic, -1) for topic in self.topics}
        elif self.dead_letter:
            found[str(self.dead_letter)] = OwnTopic(self.topics[0], -1)
        return found


class App:
    """Handlers that are run together: by `headrace worker run module:app`, `Worker(app)`, or `TestClient(app)`.

    `lifespan` is an asynchronous context manager around the run, or a generator with one `yield` that becomes one, for
    what handlers share (connections, caches).
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        settings: Settings | None = None,
        lifespan: Callable[[], AbstractAsyncContextManager[Any] | AsyncIterator[Any]] = nullcontext,
    ) -> None:
        self.bootstrap = bootstrap
        self.settings = settings
        self.lifespan: Callable[[], AbstractAsyncContextManager[Any]] = _context_manager(lifespan)
        self.subscriptions: list[Subscription] = []

    def subscribe(
        self,
        *topics: str,
        group: str,
        value: type[Any] | Format[Any] | None = None,
        retry: Retry = ONCE,
        dead_letter: bool | str = False,
        delivery: Delivery = "at-least-once",
        concurrency: int = 1,
        publish: str | None = None,
        pending: int = 1000,
        start: Start = "earliest",
        deduplicate: timedelta | float | None = None,
    ) -> Callable[[F], F]:
        """Have a function called for each message of these topics.

        Its first parameter takes the value, of the annotated type or format `value`, or with the annotation
        `Message[T]` the message; `T | None` is None for a message that marks its key as deleted, which is an error for
        other types. A second one with the annotation `Outbox` sends messages. What the function returns is sent to the
        topic `publish`, under the key of the message.

        A message counts as handled, by `delivery`: before the function is called; when it has returned and what it sent
        is acknowledged; or in the same transaction with what it sent. Up to `concurrency` messages are handled at a
        time, those of one key in their order; with 1 all of them. At most `pending` are taken from the brokers ahead.

        A function that raises is called again as `retry` says. After that `dead_letter` puts the message into
        `<topic>.<group>.dead-letter` or a topic of that name; without, the worker stops with HandlerFailed.

        With `deduplicate` (seconds, or a timedelta) a message is left out if one of its partition had the same id
        (`message_id`) within that time before it.
        """
        deduplicate_ms = _window_ms(deduplicate)
        _check(topics, delivery, retry, concurrency, pending)
        _check_own_topics(topics, group, retry, dead_letter)

        def register(handler: F) -> F:
            parameters = _parameters(handler)
            self.subscriptions.append(
                Subscription(
                    topics=topics,
                    group=group,
                    handler=handler,
                    format=format_of(parameters.kind if value is None else value),
                    call=_caller(handler, parameters, publish),
                    retry=retry,
                    dead_letter=dead_letter,
                    delivery=delivery,
                    concurrency=concurrency,
                    pending=pending,
                    start=start,
                    deduplicate_ms=deduplicate_ms,
                )
            )
            return handler

        return register

    def serve(
        self,
        topic: str,
        *,
        group: str | None = None,
        value: type[Any] | Format[Any] | None = None,
        concurrency: int = 100,
    ) -> Callable[[F], F]:
        """Have a function answer the requests of a topic, for callers with `Rpc` or any that send Spring's headers.

        What it returns is the reply, as what it raises is. Every member of the group, `<topic>.servers` unless given,
        answers some of the requests; one that dies leaves its own to the others. Requests that nobody waits for any
        more are left out.
        """

        def register(handler: F) -> F:
            parameters = _parameters(handler)
            if parameters.has_outbox:
                raise TypeError("a function that serves requests returns its answer: it has no Outbox")
            self.subscriptions.append(
                Subscription(
                    topics=(topic,),
                    group=group or f"{topic}.servers",
                    handler=handler,
                    format=format_of(parameters.kind if value is None else value),
                    call=_answering(handler, parameters),
                    retry=ONCE,
                    dead_letter=False,
                    delivery="at-least-once",
                    concurrency=concurrency,
                    pending=1000,
                    start="earliest",
                    answers=True,
                )
            )
            return handler

        return register


def _window_ms(deduplicate: timedelta | float | None) -> int | None:
    if deduplicate is None:
        return None
    seconds = deduplicate.total_seconds() if isinstance(deduplicate, timedelta) else deduplicate
    if not 0 < seconds <= _LONGEST_WINDOW_SECONDS:
        raise ValueError(f"deduplicate={deduplicate!r} must be a time above 0 and up to 30 days")
    return int(seconds * 1000)


def _context_manager(lifespan: Callable[[], Any]) -> Callable[[], AbstractAsyncContextManager[Any]]:
    if inspect.isasyncgenfunction(lifespan):
        return asynccontextmanager(lifespan)
    if not callable(lifespan):
        raise TypeError(
            "lifespan is a function that returns an asynchronous context manager, such as one made by "
            "contextlib.asynccontextmanager"
        )
    return lifespan


def _check(topics: Sequence[str], delivery: str, retry: Retry, concurrency: int, pending: int) -> None:
    if not topics or not all(topics):
        raise ValueError("subscribe needs at least one topic, each with a name")
    if delivery not in get_args(Delivery):
        raise ValueError(f"delivery={delivery!r} is none of {', '.join(get_args(Delivery))}")
    if delivery == "at-most-once" and (retry.in_place > 1 or retry.delays):
        raise ValueError("a message that is handled at most once is not tried again: leave retry out")
    if concurrency < 1 or pending < 1:
        raise ValueError("concurrency and pending are at least 1")


def _check_own_topics(topics: Sequence[str], group: str, retry: Retry, dead_letter: bool | str) -> None:
    """Topics of delays and dead letters have names that are made of the topic's and the group's."""
    if not group:
        raise ValueError("the group has no name")
    own = [delay_topic(topic, group, delay) for topic in topics for delay in retry.delays]
    own += [dead_letter_topic(topic, group) for topic in topics] if dead_letter is True else []
    own += [dead_letter] if isinstance(dead_letter, str) else []
    for name in own:
        if not _TOPIC_NAME.match(name):
            raise ValueError(
                f"retries and dead letters need a topic '{name}', which cannot be: names have 1 to 249 of a-z A-Z 0-9 "
                "_ - and dots. Name the group otherwise, or a topic by dead_letter=NAME"
            )


class _Parameters(NamedTuple):
    """What a handler is called with."""

    wants_message: bool
    """Whether it is the message rather than its value."""
    kind: Any
    """The type of the value."""
    takes_deleted: bool
    """Whether the value is None where the message marks its key as deleted."""
    has_outbox: bool

    def first(self, message: Message[Any]) -> Any:
        """What the first parameter gets of a message."""
        if self.wants_message:
            return message
        return None if self.takes_deleted and message.data is None else message.value


def _parameters(handler: Callable[..., Any]) -> _Parameters:
    parameters = list(inspect.signature(handler).parameters.values())
    name = getattr(handler, "__name__", "the handler")
    hints = get_type_hints(handler)
    if not 1 <= len(parameters) <= 2 or (len(parameters) == 2 and hints.get(parameters[1].name) is not Outbox):
        raise TypeError(
            f"{name} takes a value or Message and, if it sends messages, an Outbox: (order: Order, out: Outbox)"
        )
    kind = hints.get(parameters[0].name, bytes)
    wants_message = kind is Message or get_origin(kind) is Message
    if wants_message:
        kind = next(iter(get_args(kind)), bytes)
    takes_deleted = type(None) in get_args(kind)
    others = [each for each in get_args(kind) if each is not type(None)]
    if takes_deleted and others in ([bytes], [str]):  # in JSON, None is also `null`
        kind = others[0]
    return _Parameters(wants_message, kind, takes_deleted, len(parameters) == 2)


def _caller(handler: Callable[..., Any], parameters: _Parameters, publish: str | None) -> Call:
    handler = as_coroutine(handler)
    first, has_outbox = parameters.first, parameters.has_outbox

    async def call(message: Message[Any]) -> Sequence[OutgoingRecord]:
        await handler(first(message))
        return _NOTHING

    async def sending(message: Message[Any]) -> Sequence[OutgoingRecord]:
        out = Outbox()
        given = first(message)
        result = await (handler(given, out) if has_outbox else handler(given))
        if publish is not None and result is not None:
            out.send(publish, result, key=message.key)
        return out.records

    return sending if has_outbox or publish is not None else call


def _answering(handler: Callable[..., Any], parameters: _Parameters) -> Call:
    handler = as_coroutine(handler)

    async def call(message: Message[Any]) -> Sequence[OutgoingRecord]:
        if is_late(message):
            return _NOTHING
        try:
            data = PLAIN.encode(await handler(parameters.first(message)), message.topic)
        except Exception as error:
            return answer(message, None, error)
        return answer(message, data)

    return call


def answer(message: Message[Any], data: bytes | None, error: BaseException | None = None) -> Sequence[OutgoingRecord]:
    """The reply to a request, or the news of an error; nothing where no reply is wanted."""
    headers = [(CORRELATION, dict(message.headers).get(CORRELATION))]
    if error is not None:
        log.warning("%s is answered with an error: %s: %s", message, type(error).__name__, error)
        headers.append((ERROR, f"{type(error).__name__}: {error}".encode(errors="replace")))
    place = reply_place(message)
    return _NOTHING if place is None else [OutgoingRecord(place[0], data, message.key, headers, place[1])]
