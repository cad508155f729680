"""The answers of a classic group, and the names of its timers."""

from collections.abc import Hashable
from typing import Any, Final

from headrace.protocol.errors import ErrorCode

JOIN_TIMER: Final = "join"
SYNC_TIMER: Final = "sync"


def session_timer(member_id: str) -> Hashable:
    """The timer that expires when a member was silent for its session timeout."""
    return ("session", member_id)


def join_refused(code: ErrorCode, member_id: str = "") -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "error_code": code,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": None,
        "leader": "",
        "member_id": member_id,
        "members": (),
    }


def sync_answer(
    code: ErrorCode, assignment: bytes = b"", protocol_type: str | None = None, protocol_name: str | None = None
) -> dict[str, Any]:
    return {
        "throttle_time": 0,
        "error_code": code,
        "protocol_type": protocol_type,
        "protocol_name": protocol_name,
        "assignment": assignment,
    }


def heartbeat_answer(code: ErrorCode) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": code}
