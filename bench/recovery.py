"""Recovery after kill -9, as a client sees it: from the start of the broker until the first and the last partition tell
their ends (ListOffsets), and the longest that a client waited for an answer meanwhile.

-   Many logs: `BENCH_RECOVERY_PARTITIONS` of them, one record in each.
-   Long tails: `BENCH_RECOVERY_GIB` in all of batches of 300 bytes, in eight logs, none of which was synced: the broker
    that is killed writes no recovery points, so that every byte has to be read and checked.
"""

import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from .frames import MIB, NEVER, batch_of, legacy, produce_frame, produce_reply_size, request_frame
from .load import Load, Pump, ask, repeated
from .model import Aim, BenchError, Figure, Of, Sample, Work
from .setting import Server, Setting

PARTITIONS: Final = int(os.environ.get("BENCH_RECOVERY_PARTITIONS", "10000"))
GIBIBYTES: Final = float(os.environ.get("BENCH_RECOVERY_GIB", "4"))
"""Less of both for those who only try whether it works."""
_LONG_LOGS: Final = 8
_VALUE_BYTES: Final = 230
_OF_A_TOPIC: Final = 1_000
_WINDOW: Final = 500
_POLL_SECONDS: Final = 0.02
_LONGEST_SECONDS: Final = 1_200.0
_RELAXED: Final = {"flush.messages": NEVER}
_NO_CHECKPOINT: Final = {"log.flush.offset.checkpoint.interval.ms": str(2**31 - 1)}
_I32: Final = Struct(">i")
_ASKED: Final = Struct(">iq")
_LATEST: Final = -1
_TOLD: Final = Struct(">ihqq")


class Logs(NamedTuple):
    """Topics, how many partitions each has, and where all of them end."""

    topics: list[str]
    partitions: int
    end: int


def many_logs(setting: Setting) -> Sample:
    per_topic = min(_OF_A_TOPIC, PARTITIONS)
    logs = Logs([f"many-{number}" for number in range(PARTITIONS // per_topic)], per_topic, 1)
    return _recover(setting, logs)


def long_tails(setting: Setting) -> Sample:
    size = len(batch_of(1, _VALUE_BYTES).data)
    logs = Logs(
        [f"long-{number}" for number in range(_LONG_LOGS)], 1, int(GIBIBYTES * 1024 * MIB) // _LONG_LOGS // size
    )
    return _recover(setting, logs)


def _recover(setting: Setting, logs: Logs) -> Sample:
    with setting.directory() as data:
        with setting.running(setting.broker_command(data, _NO_CHECKPOINT), data) as server:
            for topic in logs.topics:
                server.create_topic(topic, _RELAXED, logs.partitions)
                for partition in range(logs.partitions):
                    _fill(server, topic, partition, logs.end)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        return _serve_again(setting, data, logs)


def _fill(server: Server, topic: str, partition: int, count: int) -> None:
    frame = produce_frame(topic, batch_of(1, _VALUE_BYTES), partition=partition)
    with server.connect() as sock:
        ask(sock, frame)
        if count > 1:
            load = Load(
                block=repeated(frame),
                frame_size=len(frame),
                reply_size=produce_reply_size(topic),
                window=_WINDOW,
                most_frames=count - 1,
            )
            Pump(sock, load).run(_LONGEST_SECONDS, server.cpu_seconds)


def _serve_again(setting: Setting, data: Path, logs: Logs) -> Sample:
    began = time.perf_counter()
    with setting.running(setting.broker_command(data), data) as server, server.connect() as sock:
        left = {(topic, partition) for topic in logs.topics for partition in range(logs.partitions)}
        sample: Sample = {"wait": 0.0}
        while left:
            asked = time.perf_counter()
            ends = _ends(sock, left)
            now = time.perf_counter()
            sample["wait"] = max(sample["wait"], (now - asked) * 1000)
            if any(end != logs.end for end in ends.values()):
                raise BenchError(f"a log ends at {min(ends.values())}, {logs.end} were acknowledged")
            left -= ends.keys()
            if ends:
                sample.setdefault("first", now - began)
            if now - began > _LONGEST_SECONDS:
                raise BenchError(f"{len(left)} partitions were not served after {_LONGEST_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)
        return sample | {"last": time.perf_counter() - began}


def _ends(sock: socket.socket, asked: set[tuple[str, int]]) -> Mapping[tuple[str, int], int]:
    """Where those partitions end that are served."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in asked:
        by_topic.setdefault(topic, []).append(partition)
    body = _I32.pack(-1) + _I32.pack(len(by_topic))
    for topic, partitions in by_topic.items():
        body += legacy(topic) + _I32.pack(len(partitions))
        body += b"".join(_ASKED.pack(partition, _LATEST) for partition in partitions)
    reply = ask(sock, request_frame(2, 1, body, flexible=False))
    at, ends = 12, dict[tuple[str, int], int]()
    for _ in range(len(by_topic)):
        size = int.from_bytes(reply[at : at + 2], "big")
        topic = reply[at + 2 : at + 2 + size].decode()
        (count,) = _I32.unpack_from(reply, at + 2 + size)
        at += 6 + size
        for partition, code, _, offset in _TOLD.iter_unpack(reply[at : at + count * _TOLD.size]):
            if not code:
                ends[topic, partition] = offset
        at += count * _TOLD.size
    return ends


_FIGURES: Final = (
    Figure(key="first", label="first partition served", unit="s", aim=Aim(of=Of.VALUE, bound=10, at_least=False)),
    Figure(key="last", label="last partition served", unit="s"),
    Figure(key="wait", label="longest wait for an answer meanwhile", unit="ms"),
)


def works() -> list[Work]:
    return [
        Work(
            name="recovery-many",
            title=f"recovery after kill -9 of {PARTITIONS:,} partitions",
            against="",
            figures=_FIGURES,
            broker=many_logs,
            rounds=1,
        ),
        Work(
            name="recovery",
            title=f"recovery after kill -9 of {GIBIBYTES:g} GiB of unsynced small batches in {_LONG_LOGS} logs",
            against="",
            figures=_FIGURES,
            broker=long_tails,
            rounds=1,
        ),
    ]
