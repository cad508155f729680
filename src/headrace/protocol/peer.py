"""What brokers of one cluster say to each other, besides Kafka's own APIs, and what they tell anyone of their health.

Such a message has the head of a Kafka request (never a flexible one) and an API key that Kafka does not use and that
ApiVersions never tells. Its body is a length (i32), that many bytes of JSON, and bytes that JSON is not good for:

    +--------+------------------------+------------+
    | length | JSON object            | attachment |
    +--------+------------------------+------------+

The answer is a correlation id and a body alike. One that could not be given has a JSON object with `error`, the name
of one of Kafka's error codes, and `message`.
"""

import json
from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

from .errors import CodedError, ErrorCode, ProtocolViolation

FIRST_INTERNAL: Final = 20_000
VERSION: Final = 0
"""Of greetings, and of what clients ask; between brokers it follows from the feature level (`protocol.levels`)."""
_LENGTH: Final = Struct(">i")

Buffer = bytes | bytearray | memoryview


class InternalApi(IntEnum):
    """The APIs between brokers, and those of ours that are for clients."""

    HELLO = 20_000
    """Shows, both ways, that the other is a broker of this cluster: `security.hello`."""
    FORWARD = 20_001
    """A client's request that only the controller can carry out: `server.clustered.forwarding`."""
    FEED = 20_002
    """The changes of the cluster's image since a version, from the controller; waits for some if there are none."""
    RESIGN = 20_003
    """A broker is about to stop: the controller moves what it leads."""
    ALTER_ISR = 20_004
    """A leader asks the controller for other ISRs."""
    REPORT_LOGS = 20_006
    """All logs that a broker cannot serve now: the controller lets others lead them, and does not count on them."""
    BUSY = 20_007
    """A broker takes up what the feed has brought, and will ask on when it is done: it is there, and hears."""
    LOG_ENDS = 20_008
    """The controller asks how far logs reach, to elect where nobody is known to hold everything."""
    VERIFY = 20_009
    """The leader of a partition asks the coordinator of a transaction whether that is open there, or opens it."""
    DESCRIBE_HEALTH = 20_010
    """The health of the broker that is asked, as `headrace.health.HealthReport` has it; any client may ask."""
    DESCRIBE_RIGHTS = 20_011
    """What a user may do, asked by somebody else, such as a gateway: `server.handlers.rights`."""
    UPDATE_LEVEL = 20_020
    """Raises the cluster's feature level (`protocol.levels`): asked by an operator, passed on to the controller."""
    AUDIT = 20_030
    """A batch of audit events for the leader of their topic: `server.audit_topic`."""
    REPLICATE = 20_005
    """A follower asks its leader for records; a body of its own: `protocol.replicate`."""


class PeerMessage(NamedTuple):
    """A body, of a request or an answer."""

    values: Mapping[str, Any]
    attachment: Buffer = b""


def encode_message(message: PeerMessage) -> list[Buffer]:
    """The body in parts; the attachment is not copied."""
    text = json.dumps(message.values, separators=(",", ":")).encode()
    head = _LENGTH.pack(len(text)) + text
    return [head, message.attachment] if len(message.attachment) else [head]


def decode_message(body: memoryview) -> PeerMessage:
    """The message whose body this is, its attachment a view into it; `ProtocolViolation` when it is none."""
    if len(body) < _LENGTH.size:
        raise ProtocolViolation(f"a message between brokers of {len(body)} bytes")
    (size,) = _LENGTH.unpack_from(body)
    end = _LENGTH.size + size
    if size < 0 or end > len(body):
        raise ProtocolViolation(f"a length of {size} where {len(body) - _LENGTH.size} bytes are left")
    try:
        values = json.loads(bytes(body[_LENGTH.size : end]))
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation(f"a message between brokers that is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ProtocolViolation("a message between brokers that is not a JSON object")
    return PeerMessage(values, body[end:])


def failure(error: CodedError) -> PeerMessage:
    """The answer of who could not carry out a request."""
    return PeerMessage({"error": error.code.name, "message": error.message})


def checked(answer: PeerMessage) -> PeerMessage:
    """The answer, unless it is a failure: that is raised as the `CodedError` it was."""
    name = answer.values.get("error")
    if name is None:
        return answer
    code = ErrorCode.__members__.get(str(name), ErrorCode.unknown_server_error)
    raise CodedError(code, str(answer.values.get("message", "")))
