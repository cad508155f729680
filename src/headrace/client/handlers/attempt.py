"""One message and its handler: called, again after a pause, and what comes of it as records to send."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Final

from ..errors import REGISTRY_UNREACHABLE, ClientError, Undecodable
from ..formats import Format
from ..messages import Message
from ..tracing import handling, is_traced
from .app import Subscription, answer
from .calling import in_thread
from .outbox import OutgoingRecord
from .retry import Origin, dead_letter, dead_letter_topic, delayed

log: Final = logging.getLogger("headrace.handlers")
_UNTRACED: Final = nullcontext()
_REGISTRY_SECONDS: Final = 1.0
_REFUSALS: Final = frozenset({"_UNKNOWN_PARTITION", "_INVALID_ARG", "TOPIC_EXCEPTION"})
_BATCH_BYTES: Final = 1_000_000
"""What librdkafka puts into one batch; a larger record has one to itself."""
_HOPELESS: Final = frozenset(
    {"_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_OR_PART", "TOPIC_AUTHORIZATION_FAILED", "MSG_SIZE_TOO_LARGE"}
    | {"INVALID_RECORD", "_INVALID_DIFFERENT_RECORD", "INVALID_TIMESTAMP"}
)


class HandlerFailed(ClientError):
    """A handler has failed for good at a message that nothing was said of: neither delays nor dead letters are left."""

    def __init__(self, message: Message[object], group: str, attempts: int, error: BaseException) -> None:
        super().__init__(
            f"group '{group}' failed at {message} after {attempts} attempt{'s' * (attempts != 1)}: "
            f"{type(error).__name__}: {error}; it was not committed. dead_letter=True puts such messages aside",
            "HANDLER_FAILED",
        )
        self.failed = message


class Attempts:
    """Calls the handler of a subscription."""

    def __init__(
        self,
        subscription: Subscription,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
        *,
        waits_for_schemas: bool = True,
        is_ending: Callable[[], bool] = lambda: True,
    ) -> None:
        self._subscription = subscription
        self._is_ending = is_ending
        """Whether who cancels a handler wants all of them to end."""
        self._waits_for_schemas = waits_for_schemas and type(subscription.format).is_ready is not Format.is_ready
        self._call = subscription.call
        self._sleep = sleep
        self._clock = clock
        self._delay_topics = {
            topic for delay in subscription.retry.delays for topic in subscription.delay_topics(delay)
        }
        self._is_traced = is_traced()

    async def handle(self, message: Message[object]) -> Sequence[OutgoingRecord]:
        """What is to be sent before the message counts as handled; HandlerFailed where it cannot be."""
        if message.is_expired(self._clock):
            log.info("%s has expired", message)
            return ()
        if self._waits_for_schemas and message.data is not None:
            await self._wait_for_schema(message, message.data)
        with handling(message) if self._is_traced else _UNTRACED:
            try:
                return await self._call(message)
            except Exception as error:
                return await self._again(message, error)
            except asyncio.CancelledError as error:
                return await self._again(message, self._cancelled(error))

    def _cancelled(self, error: asyncio.CancelledError) -> Exception:
        """A handler that cancels its own task, or has it cancelled, has failed as any other."""
        task = asyncio.current_task()
        if task is None or self._is_ending():
            raise error
        while task.cancelling():
            task.uncancel()
        failure = RuntimeError("the handler's task was cancelled")
        failure.__cause__ = error
        return failure

    async def _wait_for_schema(self, message: Message[object], data: bytes) -> None:
        """Decode where that may take long elsewhere than in the event loop. That no registry answers is not the
        message's fault: it costs no attempt."""
        while not self._subscription.format.is_ready(data):
            try:
                await in_thread(getattr, message, "value")
            except Exception as error:
                if getattr(error, "code", "") != REGISTRY_UNREACHABLE:
                    return  # whatever it is, the handler's attempt comes to it, too
                log.warning("%s waits for its schema: %s", message, error)
                await self._sleep(_REGISTRY_SECONDS)

    def _origin(self, message: Message[object]) -> Origin:
        """What handlers copy into other topics, or anybody writes into headers, is not believed."""
        return Origin.delayed(message) if message.topic in self._delay_topics else Origin.first(message)

    async def refused(self, message: Message[object], error: BaseException) -> Sequence[OutgoingRecord]:
        """What is to be sent instead where the brokers refuse what the handler sends; HandlerFailed if nothing is."""
        if self._subscription.answers:
            return answer(message, None, error)
        origin = self._origin(message)
        return self._dead_letter(message, origin, origin.attempts + 1, error)

    async def _again(self, message: Message[object], error: Exception) -> Sequence[OutgoingRecord]:
        retry = self._subscription.retry
        origin = self._origin(message)
        attempts = origin.attempts + 1
        while _may_help(error, retry.on) and (pause := retry.pause(attempts)) is not None:
            log.info("%s failed at attempt %d: %s: %s", message, attempts, type(error).__name__, error)
            await self._sleep(pause)
            attempts += 1
            try:
                return await self._call(message)
            except Exception as again:
                error = again
            except asyncio.CancelledError as again:
                error = self._cancelled(again)
        return self._put_aside(message, origin, attempts, error)

    def _put_aside(
        self, message: Message[object], origin: Origin, attempts: int, error: Exception
    ) -> Sequence[OutgoingRecord]:
        subscription = self._subscription
        delay = subscription.retry.delay(attempts) if _may_help(error, subscription.retry.on) else None
        if delay is not None:
            log.warning("%s is tried again in %g s: %s: %s", message, delay, type(error).__name__, error)
            return [delayed(message, origin, attempts, subscription.group, delay, self._clock())]
        return self._dead_letter(message, origin, attempts, error)

    def _dead_letter(
        self, message: Message[object], origin: Origin, attempts: int, error: BaseException
    ) -> Sequence[OutgoingRecord]:
        subscription = self._subscription
        if not subscription.dead_letter:
            raise HandlerFailed(message, subscription.group, attempts, error) from error
        topic = (
            subscription.dead_letter
            if isinstance(subscription.dead_letter, str)
            else dead_letter_topic(origin.topic, subscription.group)
        )
        log.error("%s is a dead letter after %d attempts", message, attempts, exc_info=error)
        return [dead_letter(message, origin, attempts, subscription.group, topic, error)]


def is_refusal(error: BaseException, record: OutgoingRecord) -> bool:
    """Whether a record was not sent because of what it is itself, and never will be. What brokers say of a batch may be
    because of another record in it."""
    code = getattr(error, "code", "")
    is_alone = len(record.value or b"") > _BATCH_BYTES
    return isinstance(error, TypeError | ValueError) or code in _REFUSALS or (code == "MSG_SIZE_TOO_LARGE" and is_alone)


def is_hopeless(error: BaseException) -> bool:
    """Whether sending again does not help before somebody has mended something."""
    return getattr(error, "code", "") in _HOPELESS


def _may_help(error: Exception, retried: tuple[type[Exception], ...]) -> bool:
    return isinstance(error, retried) and not isinstance(error, Undecodable)
