"""DescribeRights: what another user may do. Brokers that know no such API close the connection."""

from collections.abc import Sequence
from typing import Final

from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.peer import Buffer, InternalApi, PeerMessage, checked, decode_message, encode_message

DESCRIBE_RIGHTS: Final = int(InternalApi.DESCRIBE_RIGHTS)

Right = tuple[AclOperation, ResourceType, str]
"""What to do, and with the resource of which kind and name."""


def describe_rights_request(principal: str, rights: Sequence[Right]) -> list[Buffer]:
    """The body of the request."""
    asked = [(int(operation), int(kind), name) for operation, kind, name in rights]
    return encode_message(PeerMessage({"principal": principal, "rights": asked}))


def read_rights(body: memoryview, rights: Sequence[Right]) -> list[Right]:
    """Those of the rights that the user has not; `CodedError` where that is not told."""
    allowed = checked(decode_message(body)).values.get("allowed")
    if not isinstance(allowed, list) or len(allowed) != len(rights):
        raise ProtocolViolation("an answer to DescribeRights that does not tell of each")
    return [right for right, is_allowed in zip(rights, allowed, strict=True) if is_allowed is not True]
