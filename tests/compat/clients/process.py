"""Clients of other runtimes: a driver process that reads one JSON command per line and answers with one.

A command is `{"verb": ..., ...}`, an answer `{"ok": ...}` or `{"error": "..."}`. A record travels as
`{"partition", "offset", "timestamp", "key", "value", "headers"}` with its bytes in base64.
"""

import dataclasses
import json
import os
import queue
import subprocess
import threading
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from ..model import (
    TIMEOUT_SECONDS,
    Ability,
    Advertised,
    ClientDriver,
    Membership,
    Pending,
    Position,
    Record,
    Sending,
    Span,
    Transaction,
)

_STOP_SECONDS = 5.0
_JOIN_GROUP = 11


class DriverProcess:
    """A running driver; `ask` gives its answer to one command."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **environment},
                text=True,
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, verb: str, **arguments: Any) -> Any:
        """The value the driver answers; its error, its end and its silence all raise RuntimeError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=2 * TIMEOUT_SECONDS)
        except (queue.Empty, BrokenPipeError) as error:
            raise RuntimeError(f"no answer to {verb}: {self._last_words()}") from error
        if not line:
            raise RuntimeError(f"the driver ended at {verb}: {self._last_words()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-300:]

    def close(self) -> None:
        """End the process: its input closes first, then it is killed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class ProcessDriver(ClientDriver):
    """The verbs, each handed to a driver process."""

    def __init__(
        self,
        bootstrap: str,
        advertised: Advertised,
        command: Sequence[str],
        log: Path,
        membership: Membership,
    ) -> None:
        super().__init__(bootstrap, advertised)
        self._membership = membership
        self._driver = DriverProcess([*command, bootstrap], log, membership.environment)

    def close(self) -> None:
        self._driver.close()

    def membership(self) -> Membership:
        return self._membership

    def version(self) -> str:
        return str(self._driver.ask("version"))

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        self._driver.ask("create_topic", topic=topic, partitions=partitions, config=dict(config))

    def list_topics(self) -> set[str]:
        return set(self._driver.ask("list_topics"))

    def partition_count(self, topic: str) -> int:
        return int(self._driver.ask("partition_count", topic=topic))

    def topic_config(self, topic: str) -> dict[str, str]:
        return dict(self._driver.ask("topic_config", topic=topic))

    def alter_config(self, topic: str, config: Mapping[str, str]) -> None:
        self._driver.ask("alter_config", topic=topic, config=dict(config))

    def delete_topic(self, topic: str) -> None:
        self._driver.ask("delete_topic", topic=topic)

    def produce(self, topic: str, records: Sequence[Record], sending: Sending) -> list[Position] | None:
        answer = self._driver.ask(
            "produce",
            topic=topic,
            records=[_to_json(record) for record in records],
            codec=sending.codec.value,
            acks=sending.acks,
            idempotent=sending.idempotent,
        )
        return None if answer is None else [(int(partition), int(offset)) for partition, offset in answer]

    def consume(self, topic: str, spans: Sequence[Span], *, committed: bool = False) -> list[Record]:
        wanted = [[span.partition, span.start, span.end, span.count] for span in spans]
        answer = self._driver.ask("consume", topic=topic, spans=wanted, committed=committed)
        return [_from_json(found) for found in answer]

    def transact(self, topic: str, records: Sequence[Record], transaction: Transaction) -> None:
        sent = [_to_json(record) for record in records]
        self._driver.ask("transact", topic=topic, records=sent, **dataclasses.asdict(transaction))

    def offset_at(self, topic: str, partition: int, timestamp: int) -> int | None:
        answer = self._driver.ask("offset_at", topic=topic, partition=partition, timestamp=timestamp)
        return None if answer is None else int(answer)


class KafkajsDriver(ProcessDriver):
    """kafkajs on Node; it consumes in groups only, so reading waits for a broker that coordinates them."""

    name = "kafkajs"
    default_hash = "murmur2 (`DefaultPartitioner`, since 2.0)"
    missing: ClassVar = {Ability.NULL_HEADERS: "kafkajs refuses a header without a value"}

    def consume(self, topic: str, spans: Sequence[Span], *, committed: bool = False) -> list[Record]:
        if _JOIN_GROUP not in self.advertised:
            raise Pending("kafkajs consumes in groups only, and the broker does not serve JoinGroup")
        return super().consume(topic, spans, committed=committed)


class JavaDriver(ProcessDriver):
    """Apache Kafka's own client, of the version on the driver's class path."""

    name = "Java"
    default_hash = "murmur2"


def _to_json(record: Record) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }


def _from_json(found: Mapping[str, Any]) -> Record:
    return Record(
        partition=found["partition"],
        offset=int(found["offset"]),
        timestamp=int(found["timestamp"]),
        key=_bytes(found["key"]),
        value=_bytes(found["value"]),
        headers=tuple((name, _bytes(value)) for name, value in found["headers"]),
    )


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
