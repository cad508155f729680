"""From a frame to its handler and back.

Produce and Fetch get the frame itself and may answer later, while others go on. Every other request is checked by
the guard, decoded, and runs alone on its connection: what it changes, the next request sees.

Errors are caught here and nowhere else: a `CodedError` becomes an answer, a `ProtocolViolation` closes the
connection, anything else is a defect of ours: logged, answered with UNKNOWN_SERVER_ERROR, never a silent hang.

What only brokers ask each other goes to the `PeerGate`; what is the controller's, through the `Forwarder`. A lone
broker has neither.
"""

from asyncio import Event, sleep
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import cache
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

import structlog
from kio.index import KioIndexError, load_request_schema
from kio.serial import entity_reader

from headrace.net.tasks import Tasks
from headrace.protocol.api import PEERS_ONLY, SUPPORTED, ApiKey, response_header_is_flexible
from headrace.protocol.encode import blank_response, encode_in_steps, encode_response, is_large
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.guard import check_request, skip_tags
from headrace.protocol.peer import FIRST_INTERNAL, InternalApi
from headrace.protocol.schema import request_shape
from headrace.protocol.stepwise import LARGE, decode_request_in_steps, discard_in_steps
from headrace.security.audit import AuditLog
from headrace.security.quotas.client_quotas import Limits
from headrace.storage.disk import StorageError

from . import audited
from .connection import Connection, Parts, Slot
from .context import Context, RequestInfo
from .monitoring.request_times import ApiTimes, RequestTimes

log = structlog.get_logger(__name__)

Answer = Mapping[str, Any] | bytes | bytearray
"""A response's values, or its body in bytes where a handler keeps it encoded."""
Handler = Callable[[Context, Any, RequestInfo], Awaitable[Answer]]
Work = Callable[[], Awaitable[Answer]]
ServePeer = Callable[[Connection, int, int, int, memoryview], Parts | None]
"""Answers what only brokers ask: connection, API key, version, correlation id, body. `PeerGate.serve`."""
DescribeRights = Callable[[Connection, int, int, memoryview], Parts]
"""Answers DescribeRights, given its connection, version, correlation id and body. `handlers.rights.RightsHandler`."""
UpdateLevel = Callable[[Slot, int, int, bytes], Coroutine[Any, Any, None]]
"""Answers UpdateLevel, given its slot, version, correlation id and body. `handlers.level.LevelHandler`."""
DescribeHealth = Callable[[Slot, int, int], Coroutine[Any, Any, None]]
"""Answers DescribeHealth, given its slot, version and correlation id. `handlers.health.HealthHandler`."""
MOST_ANSWERED: Final = 256 << 20
"""Bytes of an answer. What a million partitions are takes a fifth of it; who asks for much more wants to do harm."""
_KNOWN: Final = frozenset(int(key) for key in ApiKey)
_INTERNAL: Final = frozenset(int(key) for key in InternalApi)
_PRODUCE: Final = int(ApiKey.PRODUCE)
_SOMETIMES: Final = 15
"""One less than a power of two: the requests after which it is looked again whose they are."""
LARGE_ANSWER: Final = 256 << 10
"""Bytes of an answer that are sent by themselves."""
_NOTHING_KEPT: Final = (ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS)
"""What may be large, and whose handlers keep nothing of a request."""
_SASL: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_HEAD: Final = Struct(">hhih")
_HEAD_SIZE: Final = _HEAD.size
_ROUTED_HEAD: Final = Struct(">iih")
"""The same with API key and version in one number, by which routes are found."""
_RESPONSE_HEAD: Final = Struct(">ii")
_LENGTH: Final = Struct(">i")
_new_tuple: Final = tuple.__new__  # a third of what a NamedTuple's own constructor costs
_UNSUPPORTED: Final = Struct(">iih")


class Request(NamedTuple):
    """A request whose body is still bytes: `frame` from `body` on, valid until the handler returns."""

    api_key: int
    version: int
    correlation_id: int
    connection: Connection
    frame: memoryview
    body: int

    def info(self) -> RequestInfo:
        size = _HEAD.unpack_from(self.frame)[3]
        try:
            client_id = None if size < 0 else str(self.frame[_HEAD_SIZE : _HEAD_SIZE + size], "utf-8")
        except UnicodeDecodeError:
            raise ProtocolViolation("a client id that is not UTF-8") from None
        connection = self.connection
        return RequestInfo(
            self.api_key,
            self.version,
            client_id,
            connection.principal,
            connection.peer,
            connection.peer_broker,
            connection.number,
            by_token=connection.by_token,
            listener=connection.listener_name,
        )


RawHandler = Callable[[Request], Parts | None]
"""Answers a request whole, now (empty for a request without an answer), or None and a slot later."""


Route = tuple[int, int, bool, RawHandler | None, ApiTimes | None]
"""How requests of one API and version are served: API key, version, whether it is flexible, who takes the frame itself,
what is measured."""


class Relay(Protocol):
    """Who carries requests to the controller: `forwarding.Forwarder`."""

    def takes(self, api_key: int, entity: Any) -> bool: ...

    async def answer(self, info: RequestInfo, entity: Any, body: bytes, run_here: Work) -> Answer: ...


class Throttle(Protocol):
    """Who holds clients to their quotas: `throttling.Throttling`."""

    def resolve(self, connection: Connection, client_id: memoryview, size: int) -> None: ...

    def serve(self, request: Request, handler: RawHandler, limits: Limits) -> Parts | None: ...

    def work(self, info: RequestInfo, work: Work, limits: Limits, connection: Connection) -> Work: ...


class Dispatcher:
    """Routes frames; owns the tasks of the requests that run."""

    def __init__(
        self,
        context: Context,
        handlers: Mapping[ApiKey, Handler],
        raw_handlers: Mapping[ApiKey, RawHandler],
        unsupported_api_versions: Callable[[], bytes],
        *,
        serve_peer: ServePeer | None = None,
        relay: Relay | None = None,
        ready: Event | None = None,
        is_out_of_touch: Callable[[], bool] = lambda: False,
        describe_health: DescribeHealth | None = None,
        describe_rights: DescribeRights | None = None,
        times: RequestTimes | None = None,
        update_level: UpdateLevel | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        self._context = context
        self._handlers = {int(key): handler for key, handler in handlers.items()}
        self._raw = raw_handlers
        self._unsupported_api_versions = unsupported_api_versions
        self._serve_peer = serve_peer
        self._relay = relay
        self._ready = ready
        """Set once this broker knows its cluster: before, it would tell clients that there are no topics."""
        self._is_out_of_touch = is_out_of_touch
        """Whether this broker has lost its cluster, and may not know any longer who leads."""
        self._describe_health = describe_health
        self._describe_rights = describe_rights
        self._times = times
        """None where nobody measures."""
        self._update_level = update_level
        self._audit = audit
        """None where nothing is recorded."""
        self.throttle: Throttle | None = None
        """None as long as nobody has a quota."""
        self._routes: dict[int, Route] = {}
        self._running = Tasks()

    def serve(self, connection: Connection, frame: memoryview) -> Parts | None:
        """Answer one frame: now, or later through a slot of the connection."""
        if not connection.is_known and self._take_bare_token(connection, frame):
            return None
        size = len(frame)
        if size < _HEAD_SIZE:
            raise ProtocolViolation(f"a request of {size} bytes")
        api, correlation_id, client_size = _ROUTED_HEAD.unpack_from(frame)
        if not connection.is_known:
            assert connection.authenticator is not None
            connection.authenticator.check(connection, api >> 16)
        route = self._routes.get(api)
        body = _HEAD_SIZE + client_size if client_size > 0 else _HEAD_SIZE
        if route is None:
            api_key, version, _, _ = _HEAD.unpack_from(frame)
            route = self._find_route(api_key, version)
            if route is None:
                return self._serve_unrouted(connection, api_key, version, correlation_id, frame[body:])
            self._routes[api] = route
        if body > size:
            raise ProtocolViolation(f"a client id of {client_size} bytes in a frame of {size}")
        api_key, version, is_flexible, raw, times = route
        if connection.times is not times and times is not None:
            connection.turn_to(times)
        if is_flexible:
            body = body + 1 if body < size and frame[body] == 0 else skip_tags(frame, body)
        request = _new_tuple(Request, (api_key, version, correlation_id, connection, frame, body))
        throttle, limits = self.throttle, None
        if throttle is not None:
            # A connection is one client's. Where a proxy shares it among some, that is seen now and then.
            if client_size != connection.limited_size or not connection.requests & _SOMETIMES:
                throttle.resolve(connection, frame[_HEAD_SIZE : _HEAD_SIZE + client_size], client_size)
            limits = connection.limits
        if raw is not None:
            try:
                if throttle is None or limits is None:
                    return raw(request)
                if api_key == _PRODUCE:
                    limits.left -= size
                return raw(request) if limits.left >= 0 else throttle.serve(request, raw, limits)
            except (ProtocolViolation, StorageError):
                raise
            except Exception:
                log.exception("request failed", api=ApiKey(api_key).name, version=version)
                raise ProtocolViolation("the request could not be answered") from None
        if api_key in _SASL:
            return self._serve_sasl(request)
        if connection.peer_broker is None and api_key in PEERS_ONLY:
            values = blank_response(api_key, version, ErrorCode.cluster_authorization_failed.value)
            return [frame_response(api_key, version, correlation_id, values)]
        self._serve_decoded(request)
        return None

    def _find_route(self, api_key: int, version: int) -> Route | None:
        key = ApiKey(api_key) if api_key in _KNOWN else None
        versions = None if key is None else SUPPORTED.get(key) or PEERS_ONLY.get(key)
        if versions is None or not versions.min <= version <= versions.peers_max:
            return None
        is_flexible = request_shape(api_key, version).flexible
        return api_key, version, is_flexible, self._raw.get(ApiKey(api_key)), self._times_of(api_key)

    def _times_of(self, api_key: int) -> ApiTimes | None:
        return None if self._times is None else self._times.of(api_name(api_key))

    def _serve_decoded(self, request: Request) -> None:
        info = request.info()
        if len(request.frame) - request.body > LARGE:
            work = self._work_on_large(info, request)
        else:
            work = self._work(info, decode(request), request)
        if self.throttle is not None and request.connection.limits is not None:
            work = self.throttle.work(info, work, request.connection.limits, request.connection)
        request.connection.hold()
        slot = request.connection.open_slot()
        self._running.spawn(self._run(info, request.correlation_id, slot, work))

    async def close(self) -> None:
        """End the work on requests that are not answered yet: nobody waits for it any more."""
        await self._running.close()

    def _work(self, info: RequestInfo, entity: Any, request: Request) -> Work:
        work = self._unrecorded_work(info, entity, request)
        audit = self._audit
        if audit is None or info.peer_broker is not None or info.api_key not in audited.AUDITED:
            return work
        return self._recorded(audit, info, entity, request.connection, work)

    def _recorded(self, audit: AuditLog, info: RequestInfo, entity: Any, connection: Connection, work: Work) -> Work:
        """The same work, and an event about what came of it."""

        listener = listener_of(connection)

        async def work_and_record() -> Answer:
            try:
                answer = await work()
            except CodedError as error:
                await audited.record(audit, info, listener, entity, error)
                raise
            except BaseException:
                audited.record_unknown(audit, info, listener, entity)
                raise
            await audited.record(audit, info, listener, entity, answer)
            return answer

        return work_and_record

    def _unrecorded_work(self, info: RequestInfo, entity: Any, request: Request) -> Work:
        relay = self._relay

        def run_here() -> Awaitable[Answer]:
            return self._handlers[info.api_key](self._context, entity, info)

        if relay is None or not relay.takes(info.api_key, entity):
            return self._once_ready(info, run_here)
        body = bytes(request.frame[request.body :])
        return self._once_ready(info, lambda: relay.answer(info, entity, body, run_here))

    def _work_on_large(self, info: RequestInfo, request: Request) -> Work:
        """The frame stays as it is meanwhile: a connection that is held reads nothing."""

        async def read_and_work() -> Answer:
            in_lists = info.api_key in _NOTHING_KEPT
            entity = await decode_in_turns(info.api_key, info.version, request.frame[request.body :], in_lists=in_lists)
            try:
                return await self._work(info, entity, request)()
            finally:
                if in_lists:
                    self._running.spawn(_discard_in_turns(entity))

        return read_and_work

    def _once_ready(self, info: RequestInfo, work: Work) -> Work:
        """What a client asks waits until this broker knows its cluster. Brokers do not wait for each other."""
        ready = self._ready
        if ready is None or ready.is_set() or info.api_key == ApiKey.API_VERSIONS or info.peer_broker is not None:
            return work

        async def wait() -> Answer:
            await ready.wait()
            return await work()

        return wait

    def _take_bare_token(self, connection: Connection, frame: memoryview) -> bool:
        authenticator = connection.authenticator
        assert authenticator is not None
        if not authenticator.takes_bare_token(connection):
            return False
        authenticator.take_bare_token(connection, bytes(frame))
        return True

    def _serve_sasl(self, request: Request) -> Parts | None:
        entity = decode(request)
        connection = request.connection
        authenticator = connection.authenticator

        def answer(values: dict[str, Any]) -> Parts:
            return [frame_response(request.api_key, request.version, request.correlation_id, values)]

        if authenticator is None:
            return answer(blank_response(request.api_key, request.version, ErrorCode.illegal_sasl_state.value))
        if request.api_key == ApiKey.SASL_HANDSHAKE:
            return answer(authenticator.handshake(connection, entity.mechanism, request.version))
        if connection.is_known:
            raise ProtocolViolation("the client has authenticated already")
        authenticator.authenticate(connection, entity.auth_bytes, answer)
        return None

    async def _run(self, info: RequestInfo, correlation_id: int, slot: Slot, work: Work) -> None:
        try:
            body = await encoded_answer(info, work)
        except ProtocolViolation as error:
            log.info("connection closed", peer=slot.connection.peer, reason=str(error))
            slot.connection.close()
            return
        if not slot.connection.is_closed:
            slot.answer(_framed(info.api_key, info.version, correlation_id, body))
            slot.connection.release()
            if info.api_key == ApiKey.METADATA and info.peer_broker is None and self._is_out_of_touch():
                # A client that has no other connection would ask here for ever, and always get the same old answer.
                slot.connection.drain()

    def _serve_unrouted(
        self, connection: Connection, api_key: int, version: int, correlation_id: int, body: memoryview
    ) -> Parts | None:
        times = self._times_of(api_key)
        if times is not None and connection.times is not times:
            connection.turn_to(times)
        if api_key < FIRST_INTERNAL:
            return self._refuse_version(connection, api_key, version, correlation_id)
        if api_key == InternalApi.DESCRIBE_HEALTH and self._describe_health is not None:
            connection.hold()
            self._running.spawn(self._describe_health(connection.open_slot(), version, correlation_id))
            return None
        if api_key == InternalApi.DESCRIBE_RIGHTS and self._describe_rights is not None:
            return self._describe_rights(connection, version, correlation_id, body)
        if api_key == InternalApi.UPDATE_LEVEL and self._update_level is not None and connection.peer_broker is None:
            connection.hold()
            self._running.spawn(self._update_level(connection.open_slot(), version, correlation_id, bytes(body)))
            return None
        if self._serve_peer is None:
            raise ProtocolViolation(f"API {api_key} of a cluster, asked of a lone broker")
        return self._serve_peer(connection, api_key, version, correlation_id, body)

    def _refuse_version(self, connection: Connection, api_key: int, version: int, correlation_id: int) -> Parts:
        if api_key == ApiKey.API_VERSIONS:  # how newer clients begin: nothing is wrong
            body = self._unsupported_api_versions()
            return [_RESPONSE_HEAD.pack(4 + len(body), correlation_id) + body]
        log.info("unsupported version", api=api_key, version=version, peer=connection.peer)
        return [_unsupported(api_key, version, correlation_id)]


def listener_of(connection: Connection) -> str:
    """The name of the listener that a connection came by."""
    return connection.listener_name


def api_name(api_key: int) -> str:
    """What an API is called in metrics, as Kafka's documentation writes it: `Produce`, `JoinGroup`."""
    if api_key in _KNOWN:
        name = ApiKey(api_key).name
    elif api_key in _INTERNAL:
        name = InternalApi(api_key).name
    else:
        return "Unknown"
    return "".join(part.capitalize() for part in name.split("_"))


def _unsupported(api_key: int, version: int, correlation_id: int) -> bytes | bytearray:
    """UNSUPPORTED_VERSION in the layout that was asked for, where that is known and has a place for it.

    Elsewhere the code stands alone: an answer without a code would look like success.
    """
    code = ErrorCode.unsupported_version.value
    try:
        values = blank_response(api_key, version, code)
    except KioIndexError:
        values = {}
    if "error_code" not in values:
        return _UNSUPPORTED.pack(6, correlation_id, code)
    return frame_response(api_key, version, correlation_id, values)


@cache
def _reader(api_key: int, version: int) -> Callable[[memoryview | bytes, int], tuple[Any, int]]:
    return entity_reader(load_request_schema(api_key, version))


def decode(request: Request) -> Any:
    """The request as kio's entity of its version, with every length in it known to be within the frame."""
    return decode_body(request.api_key, request.version, request.frame[request.body :])


def decode_body(api_key: int, version: int, data: memoryview) -> Any:
    """The same from a request's body alone; `ProtocolViolation` when it is none."""
    body = check_request(api_key, version, data.toreadonly())
    try:
        entity, _ = _reader(api_key, version)(body, 0)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the native decoder is not an Exception
        raise ProtocolViolation(f"a request that does not decode: {error}") from error
    return entity


async def _discard_in_turns(entity: Any) -> None:
    for _ in discard_in_steps(entity):
        await sleep(0)


async def decode_in_turns(api_key: int, version: int, data: memoryview, *, in_lists: bool = False) -> Any:
    """The same, with turns for others in between where it is large. With `in_lists` it can be discarded in turns."""
    if len(data) <= LARGE:
        return decode_body(api_key, version, data)
    steps = decode_request_in_steps(api_key, version, data, in_lists=in_lists)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await sleep(0)


async def encoded_answer(info: RequestInfo, work: Work) -> bytes | bytearray:
    """The body of the answer: what the work gave, or the error it ended in. `ProtocolViolation` where there is none."""
    api_key, version = info.api_key, info.version
    try:
        answer = await work()
        if isinstance(answer, (bytes, bytearray)):
            return answer
        if is_large(api_key, version, answer):
            return await _encoded_in_turns(api_key, version, answer)
        return encode_response(api_key, version, answer)
    except CodedError as error:
        return _encoded_error(api_key, version, error.code.value, error.message)
    except ProtocolViolation:
        raise
    except Exception:
        log.exception("request failed", api=ApiKey(api_key).name, version=version, client=info.client_id)
        return _encoded_error(api_key, version, ErrorCode.unknown_server_error.value)


async def _encoded_in_turns(api_key: int, version: int, answer: Mapping[str, Any]) -> bytearray:
    """A large answer, with turns for others in between."""
    out = bytearray()
    for _ in encode_in_steps(api_key, version, answer, out):
        if len(out) > MOST_ANSWERED:
            raise CodedError(ErrorCode.invalid_request, "the answer would be too large; ask for less at a time")
        await sleep(0)
    return out


def _encoded_error(api_key: int, version: int, code: int, message: str | None = None) -> bytearray:
    values = blank_response(api_key, version, code)
    return encode_response(api_key, version, values if message is None else values | {"error_message": message})


def frame_response(api_key: int, version: int, correlation_id: int, answer: Answer) -> bytearray:
    """A whole response frame from what a handler answered."""
    body = answer if isinstance(answer, (bytes, bytearray)) else encode_response(api_key, version, answer)
    head = response_head(api_key, version, correlation_id)
    _LENGTH.pack_into(head, 0, len(head) - 4 + len(body))
    head += body
    return head


def _framed(api_key: int, version: int, correlation_id: int, body: bytes | bytearray) -> Parts:
    """The same from its body, which is not copied where it is large."""
    if len(body) < LARGE_ANSWER:
        return [frame_response(api_key, version, correlation_id, body)]
    head = response_head(api_key, version, correlation_id)
    _LENGTH.pack_into(head, 0, len(head) - 4 + len(body))
    return [head, body]


def response_head(api_key: int, version: int, correlation_id: int) -> bytearray:
    """The first bytes of a response frame; its length, at 0, is for the caller to fill in."""
    head = bytearray(_RESPONSE_HEAD.pack(0, correlation_id))
    if response_header_is_flexible(api_key, version):
        head.append(0)
    return head
