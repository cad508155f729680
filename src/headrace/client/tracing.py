"""Trace context in headers, for programs that use OpenTelemetry: those that have imported it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

HeaderPairs = list[tuple[str, bytes | None]]


def is_traced() -> bool:
    """Whether the program uses OpenTelemetry."""
    return "opentelemetry.propagate" in sys.modules or "opentelemetry.trace" in sys.modules


def with_context(headers: HeaderPairs) -> HeaderPairs:
    """The headers, and those that say which span they were sent in."""
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return [*headers, *((name, text.encode()) for name, text in carrier.items())] if carrier else headers


@contextmanager
def handling(message: Any) -> Iterator[None]:
    """A span around the handling of a message, as a child of the one that it was sent in."""
    from opentelemetry import propagate, trace

    carrier = {name: data.decode(errors="replace") for name, data in message.headers if data is not None}
    attributes = {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.topic,
        "messaging.destination.partition.id": str(message.partition),
        "messaging.kafka.offset": message.offset,
    }
    with trace.get_tracer("headrace.client").start_as_current_span(
        f"process {message.topic}",
        context=propagate.extract(carrier),
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
    ):
        yield
