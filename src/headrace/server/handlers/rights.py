"""DescribeRights (API 20011, version 0): what a user may do, asked about it by somebody else.

-   Who works for users that are not there asks it, as a gateway that delivers to their subscriptions: whether they may
    still do what they were once allowed. Where there are ACLs it takes DESCRIBE on the cluster, as DescribeAcls does;
    where there are none everybody may do everything.
-   Request and answer are messages of `protocol.peer`. The request has `principal` (`User:alice`) and `rights`, each an
    operation, a kind of resource and a name, by Kafka's numbers; the answer has `allowed`, a truth value for each. The
    host that ACLs name is that of who asks.
-   Nobody tried to do anything: nothing is reported as denied.
"""

from typing import Final

from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.peer import VERSION, PeerMessage, decode_message, failure
from headrace.security.authorizer import Authorizer

from ..connection import Connection, Parts
from .authorized import check_connection
from .peer import framed_message

MOST_RIGHTS: Final = 100
LONGEST_REQUEST: Final = 64 * 1024


class RightsHandler:
    """Answers with what the authorizer says."""

    def __init__(self, authorizer: Authorizer | None) -> None:
        self._authorizer = authorizer

    def __call__(self, connection: Connection, version: int, correlation_id: int, body: memoryview) -> Parts:
        """The answer to a request. A `DescribeRights`."""
        try:
            check_connection(self._authorizer, connection, AclOperation.DESCRIBE)
            if version != VERSION:
                raise CodedError(ErrorCode.unsupported_version, f"DescribeRights has version {VERSION} alone")
            answer = PeerMessage({"allowed": self._allowed(connection.peer, body)})
        except CodedError as error:
            answer = failure(error)
        return framed_message(correlation_id, answer)

    def _allowed(self, host: str, body: memoryview) -> list[bool]:
        if len(body) > LONGEST_REQUEST:
            raise CodedError(ErrorCode.invalid_request, f"rights in {len(body)} bytes; {LONGEST_REQUEST} are let in")
        try:
            asked = decode_message(body).values
            principal, rights = str(asked["principal"]), asked["rights"]
            wanted = [(AclOperation(operation), ResourceType(kind), str(name)) for operation, kind, name in rights]
        except (KeyError, TypeError, ValueError, ProtocolViolation) as error:
            raise CodedError(ErrorCode.invalid_request, f"this does not ask about rights: {error}") from None
        if len(wanted) > MOST_RIGHTS:
            raise CodedError(ErrorCode.invalid_request, f"more than {MOST_RIGHTS} rights in one request")
        authorizer = self._authorizer
        return [authorizer is None or authorizer.would_allow(principal, host, *right) for right in wanted]
