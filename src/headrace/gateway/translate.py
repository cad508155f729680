"""Kafka's error codes as HTTP problems: one table."""

from math import ceil
from typing import Final

from headrace.client.aio.retrying import Throttled, Unavailable
from headrace.client.core.codes import is_retriable
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost, VersionNotServed
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.web.problem import Problem

from .credentials import unauthorized

RETRY_SOON: Final = ((b"retry-after", b"1"),)

STATUS: Final[dict[ErrorCode, tuple[int, str]]] = {
    ErrorCode.unknown_topic_or_partition: (404, "unknown-topic"),
    ErrorCode.invalid_topic_exception: (400, "invalid-topic"),
    ErrorCode.topic_already_exists: (409, "topic-exists"),
    ErrorCode.topic_authorization_failed: (403, "topic-forbidden"),
    ErrorCode.group_authorization_failed: (403, "group-forbidden"),
    ErrorCode.cluster_authorization_failed: (403, "cluster-forbidden"),
    ErrorCode.sasl_authentication_failed: (401, "unauthenticated"),
    ErrorCode.message_too_large: (413, "message-too-large"),
    ErrorCode.record_list_too_large: (413, "message-too-large"),
    ErrorCode.invalid_partitions: (400, "invalid-partitions"),
    ErrorCode.invalid_replication_factor: (400, "invalid-replication-factor"),
    ErrorCode.invalid_replica_assignment: (400, "invalid-replication-factor"),
    ErrorCode.invalid_config: (400, "invalid-config"),
    ErrorCode.invalid_request: (400, "invalid-request"),
    ErrorCode.invalid_record: (400, "invalid-record"),
    ErrorCode.invalid_timestamp: (400, "invalid-timestamp"),
    ErrorCode.invalid_group_id: (400, "invalid-group"),
    ErrorCode.policy_violation: (403, "policy-violation"),
    ErrorCode.group_id_not_found: (404, "unknown-group"),
    ErrorCode.non_empty_group: (409, "group-has-members"),
    ErrorCode.group_subscribed_to_topic: (409, "group-has-members"),
    ErrorCode.group_max_size_reached: (409, "group-is-full"),
    ErrorCode.inconsistent_group_protocol: (409, "group-of-another-kind"),
    ErrorCode.unknown_member_id: (409, "group-has-members"),
    ErrorCode.illegal_generation: (409, "rebalanced"),
    ErrorCode.rebalance_in_progress: (409, "rebalanced"),
    ErrorCode.fenced_instance_id: (409, "rebalanced"),
    ErrorCode.offset_out_of_range: (416, "offset-out-of-range"),
    ErrorCode.offset_metadata_too_large: (400, "metadata-too-large"),
    ErrorCode.throttling_quota_exceeded: (429, "throttled"),
    ErrorCode.unsupported_version: (501, "not-served-by-brokers"),
}


def translate(error: Exception) -> Problem | None:
    """The HTTP problem for an error of the client or of brokers; None for a defect of our own."""
    if isinstance(error, Throttled):
        wait = ((b"retry-after", b"%d" % ceil(error.seconds)),)
        return Problem(
            429, error.message, code="throttled", headers=wait, more={"kafka_error": error.code.name.upper()}
        )
    if isinstance(error, CodedError):
        return coded(error.code, error.message)
    if isinstance(error, AuthenticationRefused):
        return unauthorized(f"the brokers do not take these credentials: {error}")
    if isinstance(error, Unavailable):
        unclear = (
            "; it may have been written: send it again with the same Idempotency-Key" if error.is_uncertain else ""
        )
        return Problem(503, f"the cluster does not answer: {error}{unclear}", code="unavailable", headers=RETRY_SOON)
    if isinstance(error, ConnectionLost):
        return Problem(503, f"the cluster does not answer: {error}", code="unavailable", headers=RETRY_SOON)
    if isinstance(error, VersionNotServed):
        return Problem(501, str(error), code="not-served-by-brokers")
    return None


def coded(code: ErrorCode, message: str = "") -> Problem:
    """The problem for an error code of Kafka's."""
    name = code.name.upper()
    detail = f"{message or name.replace('_', ' ').lower()}"
    if code not in STATUS and is_retriable(code):
        return Problem(503, detail, code="unavailable", headers=RETRY_SOON, more={"kafka_error": name})
    status, short = STATUS.get(code, (502, "refused-by-brokers"))
    headers = RETRY_SOON if status == 429 else ()
    return (
        unauthorized(detail)
        if status == 401
        else Problem(status, detail, code=short, headers=headers, more={"kafka_error": name})
    )
