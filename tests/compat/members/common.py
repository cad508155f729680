"""What the programs share: their order, their log, and how they learn that they should stop.

The lines of a log, each with `event` and `at` (nanoseconds of the monotonic clock, one for the whole machine):
`assigned`, `revoked` and `lost` with `partitions`; `record` with its place and `value`, before it is committed;
`trouble` with an `error` that the client told and the member outlived; `closing` before the consumer is closed.
"""

import json
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

POLL_SECONDS = 0.1
FETCH_WAIT_MS = 100
METADATA_AGE_MS = 1000
POLL_INTERVAL_MS = 30_000
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How to join: by names or by an expression (without its anchors), in one of the two protocols."""

    bootstrap: str
    group: str
    topics: tuple[str, ...] = ()
    regex: str | None = None
    protocol: str = "classic"
    instance: str | None = None
    assignor: str | None = None
    session_ms: int = 6000
    heartbeat_ms: int = 1000

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def given(cls) -> "Order":
        """The order on the command line."""
        return cls(**json.loads(sys.argv[1]))


def say(event: str, **fields: Any) -> None:
    """Write one line of the log."""
    with _lock:
        print(json.dumps({"event": event, **fields, "at": time.monotonic_ns()}), flush=True)


def say_partitions(event: str, partitions: Iterable[Any]) -> None:
    """An `assigned`, `revoked` or `lost` of partitions as any of the libraries names them."""
    say(event, partitions=[[one.topic, one.partition] for one in partitions])


def say_record(topic: str, partition: int, offset: int, value: bytes | None) -> None:
    """A record was processed."""
    say("record", topic=topic, partition=partition, offset=offset, value=(value or b"").decode())


def stop_requested() -> threading.Event:
    """Set once standard input ends."""
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    return stop
