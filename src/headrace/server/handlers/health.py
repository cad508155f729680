"""DescribeHealth (API 20010, version 0): how this broker is, by its own account.

-   Any client that may use the listener may ask, on any broker, also one that is not registered yet: that is when it
    matters. The answer is about the broker that is asked alone. Where there are ACLs it takes DESCRIBE on the cluster.
-   The body of the request is ignored. The answer is a message of `protocol.peer` whose JSON object is a
    `headrace.health.HealthReport`; of another version it is UNSUPPORTED_VERSION.
-   Requests of one connection run one at a time.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from headrace.health import HealthReport
from headrace.protocol.acl import AclOperation
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.peer import PeerMessage, failure
from headrace.security.authorizer import Authorizer

from ..connection import Slot
from .authorized import check_connection
from .peer import framed_message

VERSION: Final = 0

log = structlog.get_logger(__name__)


class HealthHandler:
    """Answers with what `report` gives."""

    def __init__(self, report: Callable[[], Awaitable[HealthReport]], authorizer: Authorizer | None = None) -> None:
        self._report = report
        self._authorizer = authorizer

    async def __call__(self, slot: Slot, version: int, correlation_id: int) -> None:
        """Answer a request through its slot. A `DescribeHealth`."""
        try:
            check_connection(self._authorizer, slot.connection, AclOperation.DESCRIBE)
            answer = await self._answer(version)
        except CodedError as error:
            answer = failure(error)
        except Exception:
            log.exception("health could not be described")
            answer = failure(CodedError(ErrorCode.unknown_server_error))
        if not slot.connection.is_closed:
            slot.answer(framed_message(correlation_id, answer))
            slot.connection.release()

    async def _answer(self, version: int) -> PeerMessage:
        if version != VERSION:
            return failure(CodedError(ErrorCode.unsupported_version, f"DescribeHealth has version {VERSION} alone"))
        return PeerMessage((await self._report()).to_json())
