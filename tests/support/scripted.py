"""A broker that answers what a test tells it to, for what a sound broker rarely or never does."""

import socket
import threading
from collections.abc import Callable, Mapping
from struct import pack, unpack
from types import TracebackType
from typing import Any, NamedTuple, Self

from kio.index import load_request_schema
from kio.serial import entity_reader

from headrace.protocol.api import ApiKey, response_header_is_flexible
from headrace.protocol.encode import encode_response
from headrace.protocol.schema import request_shape

from .wire import receive_exactly


class Asked(NamedTuple):
    """One request as it came in."""

    api_key: int
    version: int
    body: bytes

    @property
    def entity(self) -> Any:
        return entity_reader(load_request_schema(self.api_key, self.version))(self.body, 0)[0]


Reply = Mapping[str, Any] | bytes | None
"""The values of a response, its whole body, or None to close the connection."""


class ScriptedBroker:
    """Listens on a free port. `answer` is called for each request, in the order of one connection.

    ApiVersions is answered from `served` unless `answer` is told to (`answers_versions`).
    """

    def __init__(
        self,
        answer: Callable[[Asked], Reply],
        served: Mapping[int, tuple[int, int]] | None = None,
        *,
        answers_versions: bool = False,
        wrap: Callable[[socket.socket], socket.socket] = lambda sock: sock,
    ) -> None:
        self._answer = answer
        self._served = served or {}
        self._answers_versions = answers_versions
        self._wrap = wrap
        self.asked: list[Asked] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._is_stopping = False
        self._defects: list[Exception] = []
        """What went wrong in the script itself, raised at the end."""

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_stopping = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            _shut(sock)
        for thread in self._threads:
            thread.join(10)
        if self._defects:
            raise self._defects[0]

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_stopping:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.add(sock)
            self._start(self._serve, sock)

    def _serve(self, raw: socket.socket) -> None:
        try:
            with raw, self._wrap(raw) as sock:
                while self._serve_one(sock):
                    pass
        except OSError:
            pass
        except Exception as defect:
            self._defects.append(defect)
        finally:
            self._open.discard(raw)

    def _serve_one(self, sock: socket.socket) -> bool:
        (length,) = unpack(">i", receive_exactly(sock, 4))
        frame = receive_exactly(sock, length)
        api_key, version, correlation_id, client_size = unpack(">hhih", frame[:10])
        start = 10 + client_size + int(_is_flexible(api_key, version))
        asked = Asked(api_key, version, frame[start:])
        self.asked.append(asked)
        if api_key == ApiKey.API_VERSIONS and not self._answers_versions:
            reply: Reply = self._versions()
        else:
            reply = self._answer(asked)
        if reply is None:
            return False
        body = bytes(reply) if isinstance(reply, bytes) else bytes(encode_response(api_key, version, reply))
        tags = b"\0" if _is_flexible(api_key, version) and response_header_is_flexible(api_key, version) else b""
        head = pack(">i", correlation_id) + tags
        sock.sendall(pack(">i", len(head) + len(body)) + head + body)
        return True

    def _versions(self) -> dict[str, Any]:
        served = {ApiKey.API_VERSIONS: (0, 3), **self._served}
        keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in served.items()]
        return {"error_code": 0, "api_keys": keys, "throttle_time": 0}


def _is_flexible(api_key: int, version: int) -> bool:
    try:
        return request_shape(api_key, version).flexible
    except Exception:
        return False


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
