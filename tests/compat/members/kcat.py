"""A member with `kcat -G`, which commits by the clock and tells of partitions and records in text.

Its lines are stamped when they are read, a little after they were written.
"""

import re
import subprocess
import threading
from collections.abc import Iterator
from typing import IO

from .common import FETCH_WAIT_MS, METADATA_AGE_MS, Order, say, say_record, stop_requested

_COMMIT_MS = 100
_RECONNECT_MS = 500
_STOP_SECONDS = 5.0
# "... (memberid X): assigned: ..." or "...: incremental revoke of N partition(s) (memberid X, ...): ..."
_REBALANCED = re.compile(r"% Group \S+ rebalanced(?: \(memberid [^)]*\))?: (?:incremental )?(assign|revoke)")
_EVENTS = {"assign": "assigned", "revoke": "revoked"}
_PARTITION = re.compile(r"(\S+) \[(\d+)\]")


def _command(order: Order) -> list[str]:
    settings: dict[str, object] = {
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": _COMMIT_MS,
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
        "reconnect.backoff.max.ms": _RECONNECT_MS,
        "session.timeout.ms": order.session_ms,
        "heartbeat.interval.ms": order.heartbeat_ms,
    }
    if order.instance:
        settings["group.instance.id"] = order.instance
    if order.assignor:
        settings["partition.assignment.strategy"] = order.assignor
    options = [text for name, value in settings.items() for text in ("-X", f"{name}={value}")]
    topics = order.topics if order.regex is None else (f"^{order.regex}$",)
    # -E outlives a broker that is away for a moment.
    shape = ["-E", "-u", "-f", "%t %p %o %s\\n"]
    return ["kcat", "-b", order.bootstrap, *options, *shape, "-G", order.group, *topics]


def _partitions(listed: str) -> Iterator[tuple[str, int]]:
    for topic, partition in _PARTITION.findall(listed):
        yield topic, int(partition)


def _follow_rebalances(lines: IO[str]) -> None:
    for line in lines:
        if rebalanced := _REBALANCED.match(line):
            say(_EVENTS[rebalanced[1]], partitions=list(_partitions(line[rebalanced.end() :])))
        elif "Reached end of topic" not in line:
            say("trouble", error=line.strip())


def main() -> None:
    stop = stop_requested()
    kcat = subprocess.Popen(_command(Order.given()), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert kcat.stdout is not None
    assert kcat.stderr is not None

    def end() -> None:
        stop.wait()
        say("closing")
        kcat.terminate()

    threading.Thread(target=end, daemon=True).start()
    rebalances = threading.Thread(target=_follow_rebalances, args=(kcat.stderr,), daemon=True)
    rebalances.start()
    for line in kcat.stdout:
        topic, partition, offset, value = line.split(maxsplit=3)
        say_record(topic, int(partition), int(offset), value.strip().encode())
    rebalances.join(_STOP_SECONDS)
    kcat.wait(_STOP_SECONDS)


if __name__ == "__main__":
    main()
