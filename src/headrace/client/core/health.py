"""DescribeHealth: how a broker is, by its own account. Brokers that know no such API close the connection."""

from typing import Final

from headrace.health import HealthReport, NotAReport
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.peer import Buffer, InternalApi, PeerMessage, checked, decode_message, encode_message

DESCRIBE_HEALTH: Final = int(InternalApi.DESCRIBE_HEALTH)
VERSION: Final = 0
"""The version to ask in."""


def describe_health_request() -> list[Buffer]:
    """The body of the request."""
    return encode_message(PeerMessage({}))


def read_health(body: memoryview) -> HealthReport:
    """The report in the body of an answer; `CodedError` where it was refused, `ProtocolViolation` where it is none."""
    try:
        return HealthReport.from_json(dict(checked(decode_message(body)).values))
    except NotAReport as error:
        raise ProtocolViolation(str(error)) from error
