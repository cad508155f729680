"""Holds clients to their quotas: counts what they use, tells them how long to wait, and mutes them for so long.

    quota                      what is counted                    when
    producer_byte_rate         bytes of Produce requests          as they come
    consumer_byte_rate         bytes of answers to Fetch, ShareFetch as they are sent
    request_percentage         time of the event loop             for each turn of a connection: 100 is all of it
    controller_mutation_rate   partitions made and deleted        on the controller, by the handlers of topics

As in Kafka since 2.0 the answer comes first, with the seconds in `throttle_time_ms`, and then nothing more is read from
the connection for so long. A fetch of who owes bytes already is answered without records. Other brokers are never
throttled; without quotas none of this runs.
"""

from collections.abc import Awaitable, Callable, Generator
from math import ceil
from struct import Struct
from types import coroutine
from typing import Any, Final, TypeVar

from headrace.protocol.api import ApiKey, response_header_is_flexible
from headrace.protocol.errors import CodedError
from headrace.protocol.produce import FIRST_FLEXIBLE
from headrace.protocol.schema import response_shape
from headrace.security.quotas.client_quotas import ClientQuotas, Limits

from .connection import Connection, Parts
from .context import RequestInfo
from .dispatch import Answer, RawHandler, Request, Work
from .monitoring.throttle_times import ThrottleTimes

MUTATIONS: Final = frozenset({ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS})
LEAST_FETCHED: Final = 64 * 1024
"""Bytes that one fetch may have at any rate: the rest is pause."""
_I32: Final = Struct(">i")
_THROTTLE: Final = "throttle_time"

T = TypeVar("T")


class Throttling:
    """Holds the clients of one broker to their quotas."""

    def __init__(self, quotas: ClientQuotas, now: Callable[[], float], now_ns: Callable[[], int]) -> None:
        self._quotas = quotas
        self._now = now
        self._now_ns = now_ns
        self.times = ThrottleTimes()

    def resolve(self, connection: Connection, client_id: memoryview, size: int) -> None:
        """Let a connection remember what its requests are limited to as long as they come from this client.

        `size` is that of the client id, or -1 where there is none.
        """
        if connection.peer_broker is not None or not connection.is_known:
            connection.limits = None
            return
        if connection.limited_client == client_id:
            return
        connection.limited_client = bytes(client_id)
        connection.limited_size = size
        user = connection.principal.partition(":")[2]
        connection.limits = self._quotas.limits_of(user, str(client_id, "utf-8", "replace"))

    def serve(self, request: Request, handler: RawHandler, limits: Limits) -> Parts | None:
        """Have a Produce or a fetch answered whose client may owe something."""
        api_key, version, connection = request.api_key, request.version, request.connection
        now = self._now()
        seconds = self._owed_time(limits, now)
        if api_key == ApiKey.PRODUCE:
            seconds = max(limits.produced(now), seconds)
        else:
            limits.looked_at()
        parts = handler(request)
        if seconds > 0:
            self._throttle(connection, limits, seconds)
            milliseconds = _milliseconds(seconds)
            if parts:
                _put_throttle_time(parts, api_key, version, milliseconds)
            elif parts is None and connection.latest_slot is not None:
                connection.latest_slot.before_answer = lambda late: _put_throttle_time(
                    late, api_key, version, milliseconds
                )
        return parts

    def work(self, info: RequestInfo, work: Work, limits: Limits, connection: Connection) -> Work:
        """The same for any other request, which runs alone on its connection."""
        if limits.request is None and info.api_key not in MUTATIONS:
            return work

        async def limited() -> Answer:
            clock = _Stopwatch(self._now_ns)
            try:
                answer = await clock.time(work())
            except CodedError:
                self._throttle(connection, limits, self._took(limits, clock.spent_ns))
                raise
            seconds = self._took(limits, clock.spent_ns)
            if info.api_key in MUTATIONS:
                seconds = max(seconds, _throttle_time(answer) / 1000)
            if seconds <= 0:
                return answer
            self._throttle(connection, limits, seconds)
            return _telling(answer, info, _milliseconds(seconds))

        return limited

    def owed(self, limits: Limits) -> float:
        """How long a client has to wait until it gets records again."""
        return 0.0 if limits.fetch is None else limits.fetch.pause(self._now())

    def most_fetched(self, limits: Limits) -> int:
        """The bytes that one fetch is answered with."""
        return 2**31 - 1 if limits.fetch is None else max(int(limits.fetch.burst), LEAST_FETCHED)

    def refused_fetch(self, connection: Connection, limits: Limits, seconds: float) -> int:
        """A fetch is answered without records, as bytes are owed: the milliseconds to tell."""
        self._throttle(connection, limits, seconds)
        return _milliseconds(seconds)

    def fetched(
        self, connection: Connection, limits: Limits, size: int, parts: Parts, api_key: ApiKey, version: int
    ) -> None:
        """An answer of so many bytes is about to be sent."""
        seconds = 0.0 if limits.fetch is None else limits.fetch.charge(size, self._now())
        if seconds > 0:
            self._throttle(connection, limits, seconds)
            _put_throttle_time(parts, api_key, version, _milliseconds(seconds))

    def _owed_time(self, limits: Limits, now: float) -> float:
        if limits.request is None:
            return 0.0
        return min(limits.request.pause(now), self._quotas.longest_request_pause)

    def _took(self, limits: Limits, spent_ns: int) -> float:
        if limits.request is None:
            return 0.0
        return min(limits.request.charge(spent_ns / 1e9, self._now()), self._quotas.longest_request_pause)

    def _throttle(self, connection: Connection, limits: Limits, seconds: float) -> None:
        if seconds > 0:
            connection.mute(seconds)
            self.times.add(limits.user, limits.client_id, seconds)


class _Stopwatch:
    """Times what a coroutine does itself, without what it waits for."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.spent_ns = 0

    async def time(self, work: Awaitable[T]) -> T:
        """The result of `work`."""
        return await self._drive(work.__await__())

    @coroutine
    def _drive(self, steps: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = lambda: next(steps)  # noqa: E731 - it is another one each time
        while True:
            began = self._now_ns()
            try:
                awaited = step()
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.spent_ns += self._now_ns() - began
            try:
                sent = yield awaited
            except BaseException as error:
                step = lambda error=error: steps.throw(error)  # type: ignore[misc] # noqa: E731
            else:
                step = lambda sent=sent: steps.send(sent)  # type: ignore[misc] # noqa: E731


def _milliseconds(seconds: float) -> int:
    return max(ceil(seconds * 1000), 1)


def _throttle_time(answer: Answer) -> int:
    """The throttle time in an answer of the controller, in which it comes first."""
    if isinstance(answer, (bytes, bytearray)):
        return int(_I32.unpack_from(answer)[0])
    return int(answer.get(_THROTTLE, 0))


def _telling(answer: Answer, info: RequestInfo, milliseconds: int) -> Answer:
    """The answer with a throttle time, where it has a place for one."""
    if not isinstance(answer, (bytes, bytearray)):
        return {**answer, _THROTTLE: milliseconds}
    if response_shape(info.api_key, info.version).fields[0].name != _THROTTLE:
        return answer
    telling = bytearray(answer)
    _I32.pack_into(telling, 0, milliseconds)
    return telling


def _put_throttle_time(parts: Parts, api_key: int, version: int, milliseconds: int) -> None:
    """Write the throttle time into the frame of an answer to Produce or a fetch, unless it tells of a longer one."""
    frame = parts[0]
    assert isinstance(frame, (bytes, bytearray))
    if api_key == ApiKey.PRODUCE:
        at = len(frame) - _I32.size - (version >= FIRST_FLEXIBLE)
    else:
        at = 2 * _I32.size + response_header_is_flexible(api_key, version)
    if _I32.unpack_from(frame, at)[0] < milliseconds:
        parts[0] = telling = bytearray(frame)
        _I32.pack_into(telling, at, milliseconds)
