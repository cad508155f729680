"""kcat: librdkafka on the command line, one process per verb."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import ClassVar

from ..model import (
    MAX_MESSAGE_BYTES,
    TIMEOUT_SECONDS,
    Ability,
    ClientDriver,
    Headers,
    Membership,
    NotOffered,
    Position,
    Record,
    Sending,
    Span,
    Transaction,
)
from .librdkafka import require_codec

_KEY_END = "<:key:>"
_RECORD_END = "<:end:>"
_STAMP_SECONDS = 0.25
_NO_ADMIN = "kcat has no topic administration"


class KcatDriver(ClientDriver):
    """The verbs as kcat command lines."""

    name = "kcat"
    default_hash = "CRC-32 (`consistent_random`); murmur2 with `-X topic.partitioner=murmur2_random`"
    missing: ClassVar = {
        Ability.TIMESTAMPS: "kcat stamps records itself",
        Ability.MIXED_HEADERS: "kcat gives one set of headers to all records of a run",
        Ability.BINARY_HEADERS: "kcat writes and shows headers as text",
    }

    def _run(self, *arguments: str, stdin: bytes = b"", partial: bool = False) -> bytes:
        command = ["kcat", "-b", self.bootstrap, "-m", str(int(TIMEOUT_SECONDS)), *arguments]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS, check=False)
        except subprocess.TimeoutExpired as late:
            if not partial:
                raise RuntimeError(f"kcat {arguments[0]} did not end in {TIMEOUT_SECONDS:.0f} s") from late
            return late.stdout or b""
        if done.returncode != 0:
            raise RuntimeError(f"kcat exited with {done.returncode}: {done.stderr.decode(errors='replace')[-300:]}")
        return done.stdout

    def version(self) -> str:
        shown = subprocess.run(["kcat", "-V"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True)
        found = re.search(r"Version (\S+) .*librdkafka (\S+)", shown.stdout)
        return f"{found[1]} (librdkafka {found[2]})" if found else "unknown"

    def membership(self) -> Membership:
        return Membership(command=(sys.executable, "-m", "tests.compat.members.kcat"), stamp_seconds=_STAMP_SECONDS)

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        raise NotOffered(_NO_ADMIN)

    def alter_config(self, topic: str, config: Mapping[str, str]) -> None:
        raise NotOffered(_NO_ADMIN)

    def delete_topic(self, topic: str) -> None:
        raise NotOffered(_NO_ADMIN)

    def topic_config(self, topic: str) -> dict[str, str]:
        raise NotOffered("kcat does not show settings")

    def list_topics(self) -> set[str]:
        return {entry["topic"] for entry in json.loads(self._run("-L", "-J"))["topics"]}

    def partition_count(self, topic: str) -> int:
        (entry,) = json.loads(self._run("-L", "-J", "-t", topic))["topics"]
        if "error" in entry:
            raise RuntimeError(entry["error"])
        return sum(1 for partition in entry["partitions"] if partition["leader"] >= 0)

    def produce(self, topic: str, records: Sequence[Record], sending: Sending) -> list[Position] | None:
        require_codec(self.advertised, sending)
        settings = {
            "topic.acks": str(sending.acks),
            "enable.idempotence": str(sending.idempotent).lower(),
            "topic.partitioner": "murmur2_random",
            "message.max.bytes": str(MAX_MESSAGE_BYTES),
            "linger.ms": "50",
        }
        options = [text for name, value in settings.items() for text in ("-X", f"{name}={value}")]
        for (partition, headers, nulls), run in groupby(records, key=_same_run):
            shape = ["-p", str(partition)] if partition is not None else []
            for name, header in headers:
                shape += ["-H", name if header is None else f"{name}={header.decode()}"]
            if nulls:
                shape.append("-Z")
            framed = _RECORD_END.encode().join(_framed(record) for record in run)
            delimiters = ["-K", _KEY_END, "-D", _RECORD_END]
            self._run("-P", "-t", topic, "-z", sending.codec.value, *options, *shape, *delimiters, stdin=framed)
        return None

    def consume(self, topic: str, spans: Sequence[Span], *, committed: bool = False) -> list[Record]:
        isolation = "read_committed" if committed else "read_uncommitted"
        return [record for span in spans for record in self._read(topic, span, isolation)]

    def transact(self, topic: str, records: Sequence[Record], transaction: Transaction) -> None:
        raise NotOffered("kcat writes in no transactions")

    def _read(self, topic: str, span: Span, isolation: str) -> Iterator[Record]:
        count = str(span.count)
        limit = f"fetch.message.max.bytes={MAX_MESSAGE_BYTES}"
        shape = [
            "-p",
            str(span.partition),
            "-o",
            str(span.start),
            "-c",
            count,
            "-X",
            limit,
            "-X",
            f"isolation.level={isolation}",
        ]
        output = self._run("-q", "-u", "-C", "-t", topic, *shape, "-f", "%p %o %T %K %S %h\n%k%s", partial=True)
        return _parse(output)

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        answer = self._run("-Q", "-t", f"{topic}:{partition}:{timestamp}").decode()
        offset = int(answer.rsplit(" ", 1)[1])
        return offset if offset >= 0 else None


def _same_run(record: Record) -> tuple[int | None, Headers, bool]:
    return record.partition, record.headers, record.value is None


def _framed(record: Record) -> bytes:
    prefix = b"" if record.key is None else record.key + _KEY_END.encode()
    return prefix + (record.value or b"")


def _parse(output: bytes) -> Iterator[Record]:
    position = 0
    while position < len(output):
        line_end = output.index(b"\n", position)
        partition, offset, timestamp, key_size, value_size, headers = output[position:line_end].split(b" ", 5)
        key_end = line_end + 1 + max(0, int(key_size))
        position = key_end + max(0, int(value_size))
        yield Record(
            partition=int(partition),
            offset=int(offset),
            timestamp=int(timestamp),
            key=output[line_end + 1 : key_end] if int(key_size) >= 0 else None,
            value=output[key_end:position] if int(value_size) >= 0 else None,
            headers=tuple(_headers(headers)),
        )


def _headers(shown: bytes) -> Iterator[tuple[str, bytes | None]]:
    for pair in shown.split(b",") if shown else ():
        name, _, value = pair.partition(b"=")
        yield name.decode(), None if value == b"NULL" else value
