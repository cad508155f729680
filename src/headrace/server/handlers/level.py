"""UpdateLevel (API 20020, version 0): raises the cluster's feature level, or shows what a raise would come to.

-   Any client that may use the listener may ask, on any broker; where there are ACLs it takes ALTER on the cluster. The
    controller decides. It is refused with
    FEATURE_UPDATE_FAILED where a registered broker does not speak the level, and where it is lower than the present.
-   Request and answer are messages of `protocol.peer`. The request has `to`, a level, or null for the newest that all
    brokers speak, and `dry_run`. The answer is a `cluster.feature_level.LevelUpdate`.
-   Requests of one connection run one at a time.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import structlog

from headrace.cluster.store import StoreError
from headrace.protocol.acl import AclOperation
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.peer import VERSION, PeerMessage, decode_message, failure
from headrace.security.audit import AuditedResource, AuditEvent, AuditKind, AuditLog, AuditOutcome
from headrace.security.authorizer import Authorizer

from ..connection import Slot
from .authorized import check_connection
from .peer import framed_message

LONGEST_REQUEST: Final = 4096

log = structlog.get_logger(__name__)

UpdateLevel = Callable[[int | None, bool], Awaitable[Mapping[str, Any]]]
"""Given the level (None for the newest) and whether it is a dry run; raises `CodedError` or `StoreError`."""


class LevelHandler:
    """Answers with what `update` gives."""

    def __init__(
        self, update: UpdateLevel, authorizer: Authorizer | None = None, audit: AuditLog | None = None
    ) -> None:
        self._update = update
        self._authorizer = authorizer
        self._audit = audit

    async def __call__(self, slot: Slot, version: int, correlation_id: int, body: bytes) -> None:
        """Answer a request through its slot. An `UpdateLevel` of the dispatcher."""
        try:
            check_connection(self._authorizer, slot.connection, AclOperation.ALTER)
            answer = await self._answer(version, body)
        except CodedError as error:
            answer = failure(error)
        except (StoreError, OSError) as error:
            answer = failure(CodedError(ErrorCode.not_controller, str(error)))
        except Exception:
            log.exception("feature level could not be updated")
            answer = failure(CodedError(ErrorCode.unknown_server_error))
        self._record(slot, body, answer)
        if not slot.connection.is_closed:
            slot.answer(framed_message(correlation_id, answer))
            slot.connection.release()

    def _record(self, slot: Slot, body: bytes, answer: PeerMessage) -> None:
        if self._audit is None:
            return
        connection, values = slot.connection, answer.values
        error = str(values.get("error", ""))
        resource = AuditedResource(
            type="Cluster", name="feature level", details={"level": str(values.get("after", "-"))}
        )
        self._audit.record(
            AuditEvent(
                kind=AuditKind.ADMIN,
                operation="UpdateLevel",
                outcome=AuditOutcome.FAILED if error else AuditOutcome.SUCCEEDED,
                principal=connection.principal,
                host=connection.peer,
                listener=connection.listener_name,
                resources=(resource,),
                error=error.upper(),
                message=str(values.get("message", "")) if error else "",
                is_dry_run=_is_dry_run(body),
            )
        )

    async def _answer(self, version: int, body: bytes) -> PeerMessage:
        if version != VERSION:
            raise CodedError(ErrorCode.unsupported_version, f"UpdateLevel has version {VERSION} alone")
        if len(body) > LONGEST_REQUEST:
            raise CodedError(ErrorCode.invalid_request, f"a request of {len(body)} bytes")
        try:
            values = decode_message(memoryview(body)).values
        except ProtocolViolation as error:
            raise CodedError(ErrorCode.invalid_request, str(error)) from error
        to, dry_run = values.get("to"), values.get("dry_run", False)
        if not (to is None or type(to) is int) or not isinstance(dry_run, bool):
            raise CodedError(ErrorCode.invalid_request, "'to' is a level or null, 'dry_run' true or false")
        return PeerMessage(await self._update(to, dry_run))


def _is_dry_run(body: bytes) -> bool:
    try:
        return len(body) <= LONGEST_REQUEST and decode_message(memoryview(body)).values.get("dry_run") is True
    except ProtocolViolation:
        return False
