"""From a frame to its handler and back.

Produce and Fetch get the frame itself and may answer later, while others go on. Every other request is checked by
the guard, decoded, and runs alone on its connection: what it changes, the next request sees.

Errors are caught here and nowhere else: a `CodedError` becomes an answer, a `ProtocolViolation` closes the
connection, anything else is a defect of ours: logged, answered with UNKNOWN_SERVER_ERROR, never a silent hang.
"""

from asyncio import AbstractEventLoop, Task
from collections.abc import Awaitable, Callable, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

import structlog
from kio.index import load_request_schema
from kio.serial import entity_reader

from headrace.protocol.api import SUPPORTED, ApiKey, Versions, response_header_is_flexible
from headrace.protocol.encode import blank_response, encode_response
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.guard import Walk, check_request
from headrace.protocol.schema import request_shape

from .authentication import Authenticator
from .connection import Connection, Slot
from .context import Context, RequestInfo

log = structlog.get_logger(__name__)

Answer = Mapping[str, Any] | bytes | bytearray
"""A response's values, or its body in bytes where a handler keeps it encoded."""
Handler = Callable[[Context, Any, RequestInfo], Awaitable[Answer]]
_SASL: Final = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_HEAD: Final = Struct(">hhih")
_HEAD_WITHOUT_CLIENT: Final = Struct(">hhi")
_RESPONSE_HEAD: Final = Struct(">ii")
_LENGTH: Final = Struct(">i")
_UNSUPPORTED: Final = Struct(">iih")


class Request(NamedTuple):
    """A request whose body is still bytes: `frame` from `body` on."""

    info: RequestInfo
    correlation_id: int
    frame: memoryview
    body: int
    slot: Slot


RawHandler = Callable[[Request], None]


class Dispatcher:
    """Routes frames; owns the tasks of the requests that run."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        context: Context,
        handlers: Mapping[ApiKey, Handler],
        raw_handlers: Mapping[ApiKey, RawHandler],
        unsupported_api_versions: Callable[[], bytes],
        authenticator: Authenticator | None = None,
    ) -> None:
        self._loop = loop
        self._context = context
        self._handlers = handlers
        self._raw = raw_handlers
        self._unsupported_api_versions = unsupported_api_versions
        self._authenticator = authenticator
        self._flexible: dict[tuple[int, int], bool] = {}
        self._tasks: set[Task[None]] = set()

    @property
    def tasks(self) -> set[Task[None]]:
        """The requests that run now."""
        return self._tasks

    def serve(self, connection: Connection, frame: memoryview) -> None:
        """Answer one frame, now or later."""
        if not connection.is_known and self._take_bare_token(connection, frame):
            return
        if len(frame) < _HEAD_WITHOUT_CLIENT.size:
            raise ProtocolViolation(f"a request of {len(frame)} bytes")
        api_key, version, correlation_id = _HEAD_WITHOUT_CLIENT.unpack_from(frame)
        if not connection.is_known:
            assert self._authenticator is not None
            self._authenticator.check(connection, api_key)
        versions = SUPPORTED.get(api_key)
        if versions is None or not versions.min <= version <= versions.max:
            self._refuse_version(connection, api_key, version, correlation_id, versions)
            return
        client_id, body = self._read_header(frame, api_key, version)
        info = RequestInfo(api_key, version, client_id, connection.principal, connection.peer)
        raw = self._raw.get(ApiKey(api_key))
        request = Request(info, correlation_id, frame, body, connection.open_slot())
        if raw is not None:
            self._serve_raw(raw, request)
        elif api_key in _SASL:
            self._serve_sasl(connection, request)
        else:
            self._serve_decoded(connection, request)

    def _serve_raw(self, handler: RawHandler, request: Request) -> None:
        try:
            handler(request)
        except ProtocolViolation:
            raise
        except Exception:
            log.exception("request failed", api=ApiKey(request.info.api_key).name, version=request.info.version)
            raise ProtocolViolation("the request could not be answered") from None

    def _serve_decoded(self, connection: Connection, request: Request) -> None:
        entity = decode(request)
        connection.hold()
        task = self._loop.create_task(self._run(connection, request, entity))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_bare_token(self, connection: Connection, frame: memoryview) -> bool:
        assert self._authenticator is not None
        if not self._authenticator.takes_bare_token(connection):
            return False
        self._authenticator.take_bare_token(connection, bytes(frame))
        return True

    def _serve_sasl(self, connection: Connection, request: Request) -> None:
        entity = decode(request)
        if connection.is_known and self._authenticator is not None:
            raise ProtocolViolation("the client has authenticated already")
        if self._authenticator is None:
            values = blank_response(request.info.api_key, request.info.version, ErrorCode.illegal_sasl_state.value)
        elif request.info.api_key == ApiKey.SASL_HANDSHAKE:
            values = self._authenticator.handshake(connection, entity.mechanism, request.info.version)
        else:
            values = self._authenticator.authenticate(connection, entity.auth_bytes)
        request.slot.answer([frame_response(request.info, request.correlation_id, values)])

    async def _run(self, connection: Connection, request: Request, entity: Any) -> None:
        info = request.info
        try:
            answer = await self._handlers[ApiKey(info.api_key)](self._context, entity, info)
            frame = frame_response(info, request.correlation_id, answer)
        except CodedError as error:
            values = blank_response(info.api_key, info.version, error.code.value) | {"error_message": error.message}
            frame = frame_response(info, request.correlation_id, values)
        except Exception:
            log.exception("request failed", api=ApiKey(info.api_key).name, version=info.version, client=info.client_id)
            values = blank_response(info.api_key, info.version, ErrorCode.unknown_server_error.value)
            frame = frame_response(info, request.correlation_id, values)
        if not connection.is_closed:
            request.slot.answer([frame])
            connection.release()

    def _read_header(self, frame: memoryview, api_key: int, version: int) -> tuple[str | None, int]:
        if len(frame) < _HEAD.size:
            raise ProtocolViolation("a request header that ends too early")
        size = _HEAD.unpack_from(frame)[3]
        position = _HEAD.size + max(size, 0)
        if position > len(frame):
            raise ProtocolViolation(f"a client id of {size} bytes in a frame of {len(frame)}")
        try:
            client_id = None if size < 0 else str(frame[_HEAD.size : position], "utf-8")
        except UnicodeDecodeError:
            raise ProtocolViolation("a client id that is not UTF-8") from None
        flexible = self._flexible.get((api_key, version))
        if flexible is None:
            flexible = self._flexible[(api_key, version)] = request_shape(api_key, version).flexible
        return client_id, skip_tags(frame, position) if flexible else position

    def _refuse_version(
        self, connection: Connection, api_key: int, version: int, correlation_id: int, versions: Versions | None
    ) -> None:
        log.info("unsupported version", api=api_key, version=version, supported=versions, peer=connection.peer)
        if api_key == ApiKey.API_VERSIONS:
            body = self._unsupported_api_versions()
            answer = _RESPONSE_HEAD.pack(4 + len(body), correlation_id) + body
        else:
            answer = _UNSUPPORTED.pack(6, correlation_id, ErrorCode.unsupported_version.value)
        connection.open_slot().answer([answer])


def decode(request: Request) -> Any:
    """The request as kio's entity of its version, with every length in it known to be within the frame."""
    info = request.info
    body = check_request(info.api_key, info.version, request.frame[request.body :].toreadonly())
    try:
        entity, _ = entity_reader(load_request_schema(info.api_key, info.version))(body, 0)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the native decoder is not an Exception
        raise ProtocolViolation(f"a request that does not decode: {error}") from error
    return entity


def skip_tags(frame: memoryview, position: int) -> int:
    """The position after the tagged fields of a request header."""
    if position >= len(frame):
        raise ProtocolViolation("a request header that ends too early")
    if frame[position] == 0:
        return position + 1
    return _skip_some_tags(frame, position)


def _skip_some_tags(frame: memoryview, position: int) -> int:
    walk = Walk(frame)
    count, position = walk.uvarint(position)
    walk.count(position, count, 2)
    for _ in range(count):
        _, position = walk.uvarint(position)
        size, position = walk.uvarint(position)
        position = walk.advance(position, size)
    return position


def frame_response(info: RequestInfo, correlation_id: int, answer: Answer) -> bytearray:
    """A whole response frame from what a handler answered."""
    body = encode_response(info.api_key, info.version, answer) if isinstance(answer, Mapping) else answer
    head = response_head(info, correlation_id)
    _LENGTH.pack_into(head, 0, len(head) - 4 + len(body))
    head += body
    return head


def response_head(info: RequestInfo, correlation_id: int) -> bytearray:
    """The first bytes of a response frame; its length, at 0, is for the caller to fill in."""
    head = bytearray(_RESPONSE_HEAD.pack(0, correlation_id))
    if response_header_is_flexible(info.api_key, info.version):
        head.append(0)
    return head
