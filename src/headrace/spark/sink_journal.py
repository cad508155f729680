"""Where a query's decisions are kept: in memory for a batch job, which never comes back; in a topic for a stream."""

import json
from typing import Final, Protocol

from headrace.client.columnar.administration import create_topic
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.fenced import FencedLog
from headrace.client.columnar.model import TopicPartition, UnknownTopic
from headrace.client.errors import ClientError

from .sink_commit import PREFIX, CommitError, Decision, decision_from_json

_CONFIGS: Final = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": str(8 << 20)}
"""Small segments, cleaned soon: a new worker reads the whole topic once."""
_PARTITION: Final = 0
"""One partition for all queries, so that more partitions added by somebody cannot send a query to another one."""


class Journal(Protocol):
    """What the commands of `sink_commit` ask of a journal."""

    def look(self) -> tuple[str | None, Decision | None]: ...

    def take_over(self, run: str) -> Decision | None: ...

    def record(self, decision: Decision) -> None: ...

    def claim(self) -> None: ...


class JobJournal:
    """Of a batch job: nobody but its one driver ever asks."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._last: Decision | None = None

    def look(self) -> tuple[str | None, Decision | None]:
        return self._run, self._last

    def take_over(self, run: str) -> Decision | None:
        self._run = run
        return self._last

    def record(self, decision: Decision) -> None:
        self._last = decision

    def claim(self) -> None:
        pass


class TopicJournal:
    """Of a query: its decisions have its id as their key; a second key has the run that has the journal."""

    def __init__(self, cluster: Cluster, topic: str, query: str) -> None:
        self._log = FencedLog(cluster, TopicPartition(topic, _PARTITION), f"{PREFIX}-{query}")
        self._topic = topic
        self._decision_key = query.encode()
        self._owner_key = f"{query}.owner".encode()
        self._owner: str | None = None
        self._taken_by: str | None = None
        """The run in whose name this object took the journal over."""
        self._last: Decision | None = None

    def look(self) -> tuple[str | None, Decision | None]:
        """The run that has the journal, and the last decision."""
        for key, value in self._log.read():
            if key == self._decision_key:
                self._last = None if value is None else self._decision(value)
            elif key == self._owner_key:
                self._owner = None if value is None else str(json.loads(value)["run"])
        return self._owner, self._last

    def take_over(self, run: str) -> Decision | None:
        """The last decision, which nobody else can change from now on.

        `CommitError` when the journal was taken from this run, since whoever did that started later.
        """
        if self._taken_by == run:
            owner, last = self.look()
            if owner != run:
                raise _superseded()
            if self._log.is_ours:
                return last
        self._log.take_over()
        self._owner = self._taken_by = run
        self.claim()
        return self.look()[1]

    def record(self, decision: Decision) -> None:
        """Write a decision, on all replicas that count."""
        self._append(self._decision_key, decision.to_json())

    def claim(self) -> None:
        """`CommitError` when another run has the journal."""
        self._append(self._owner_key, json.dumps({"run": self._owner}).encode())

    def _append(self, key: bytes, value: bytes) -> None:
        try:
            self._log.append(key, value)
        except ClientError as error:
            if error.code != "PRODUCER_FENCED":
                raise
            raise _superseded() from error

    def _decision(self, value: bytes) -> Decision:
        try:
            return decision_from_json(value)
        except CommitError as error:
            key = self._decision_key.decode()
            raise CommitError(f"topic '{self._topic}', key {key}: {error.message}") from error


def require_journal(cluster: Cluster, topic: str) -> None:
    """Make the topic of decisions unless it is there; `ClientError` says how somebody else can."""
    try:
        cluster.describe([topic])
    except UnknownTopic:
        try:
            create_topic(cluster, topic, partitions=1, configs=_CONFIGS)
        except ClientError as error:
            raise ClientError(
                f"the sink needs a topic for its decisions and cannot make it: {error.message}. Make it with one "
                f"partition and cleanup.policy=compact, or write with delivery=at-least-once",
                error.code,
            ) from error
        cluster.describe([topic], max_age=0.0)


def _superseded() -> CommitError:
    return CommitError(
        "this query was started a second time, and the other one has taken over: one checkpoint is for one query"
    )
