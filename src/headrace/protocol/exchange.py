"""The heads of requests and answers, as who asks writes and reads them: clients, and brokers towards each other.

A request is a length (i32), the API's key and version (i16 each), a correlation id (i32), the client's id, and from
each API's first flexible version on tagged fields; its body follows. The answer is a length, the same correlation id,
perhaps tagged fields, and a body. What only brokers say to each other (`protocol.peer`) never has tagged fields.
"""

from struct import Struct
from typing import Final

from .api import response_header_is_flexible
from .errors import ProtocolViolation
from .guard import skip_tags
from .peer import FIRST_INTERNAL
from .schema import request_shape

LARGEST_ANSWER: Final = 1 << 30
"""Bytes of one answer that is believed: a length beyond it is not Kafka's. Memory is taken as bytes arrive."""
_LENGTH_SIZE: Final = 4
_HEAD: Final = Struct(">ihhih")
_CORRELATION_ID: Final = Struct(">i")
_LARGEST_CORRELATION_ID: Final = 0x7FFFFFFF


def next_correlation_id(last: int) -> int:
    """The id of the request after `last`."""
    return (last + 1) & _LARGEST_CORRELATION_ID


def framed_head(api_key: int, version: int, correlation_id: int, client_id: bytes | None, body_size: int) -> bytes:
    """The head of a request, with the length of all of it in front."""
    tail = client_id or b""
    if api_key < FIRST_INTERNAL and request_shape(api_key, version).flexible:
        tail += b"\0"
    length = _HEAD.size - _LENGTH_SIZE + len(tail) + body_size
    id_size = -1 if client_id is None else len(client_id)
    return _HEAD.pack(length, api_key, version, correlation_id, id_size) + tail


def request_head(api_key: int, version: int, correlation_id: int, client_id: bytes | None) -> bytes:
    """The head of a request, for a link that puts the length in front by itself."""
    return framed_head(api_key, version, correlation_id, client_id, 0)[_LENGTH_SIZE:]


def answer_body(answer: memoryview, api_key: int, version: int) -> memoryview:
    """What follows the head of an answer that is given from after its correlation id on."""
    if api_key >= FIRST_INTERNAL or not response_header_is_flexible(api_key, version):
        return answer
    has_none = len(answer) > 0 and not answer[0]
    return answer[1:] if has_none else answer[skip_tags(answer, 0) :]


def matching_body(answer: memoryview, correlation_id: int, api_key: int, version: int) -> memoryview:
    """The body of an answer, given without its length, to the request of that id; `ProtocolViolation` for another."""
    if len(answer) < _CORRELATION_ID.size or _CORRELATION_ID.unpack_from(answer)[0] != correlation_id:
        raise ProtocolViolation(f"an answer that is not the one to request {correlation_id}")
    return answer_body(answer[_CORRELATION_ID.size :], api_key, version)
