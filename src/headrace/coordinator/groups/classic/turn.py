"""What a classic group decides in one turn, and the answers it gives."""

from collections.abc import Hashable, Mapping
from typing import Any, Final

from headrace.coordinator.runtime.decision import Alarm, Effect, Reply, Write
from headrace.protocol.errors import ErrorCode

JOIN_ALARM: Final = "join"
SYNC_ALARM: Final = "sync"


def session_alarm(member_id: str) -> Hashable:
    """The alarm that rings when a member was silent for its session timeout."""
    return ("session", member_id)


class Turn:
    """Collects the effects of one event at one time."""

    __slots__ = ("effects", "now_ms")

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.effects: list[Effect] = []

    def reply(self, token: object | None, values: Mapping[str, Any]) -> None:
        if token is not None:
            self.effects.append(Reply(token, values))

    def write(self, key: bytes, value: bytes | None) -> None:
        self.effects.append(Write(key, value))

    def wake(self, name: Hashable, after_ms: int) -> None:
        self.effects.append(Alarm(name, self.now_ms + after_ms))

    def forget(self, name: Hashable) -> None:
        self.effects.append(Alarm(name, None))


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
