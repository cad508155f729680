"""What a handler sends."""

import time
from datetime import datetime
from typing import Any, NamedTuple

from ..delays.lanes import Delay, due_time
from ..formats import Plain
from ..messages import Headers, header_pairs

PLAIN = Plain()


class OutgoingRecord(NamedTuple):
    """A record on its way."""

    topic: str
    value: bytes | None
    key: str | bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int = -1
    due_ms: int | None = None
    """When it is to be delivered, in ms since 1970; None for now."""


class Outbox:
    """Messages that count only if the handler succeeds: they are sent when it has returned.

    With `delivery="exactly-once"` they are seen if, and only if, the message that led to them counts as handled.
    """

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []

    def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        deliver_after: Delay | None = None,
        deliver_at: datetime | None = None,
    ) -> None:
        """Send a message when the handler has returned; values as `Producer` takes them without a format. With
        `deliver_after` or `deliver_at` it waits in the cluster until then."""
        data = None if value is None else PLAIN.encode(value, topic)
        due_ms = due_time(deliver_after, deliver_at, time.time_ns() // 1_000_000)
        self.records.append(OutgoingRecord(topic, data, key, header_pairs(headers), due_ms=due_ms))
