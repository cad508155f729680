"""Where a query's decisions are kept: in memory for a batch job, which never comes back; in a topic for a stream."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

from headrace.client.columnar.administration import TopicNotMade, require_compacted_topic
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.fenced import Entry, FencedLog
from headrace.client.columnar.model import TopicPartition
from headrace.client.errors import ClientError

from .commit import PREFIX, CommitDecision, CommitError, decision_of, not_a_decision

T = TypeVar("T")

_SEGMENT_BYTES: Final = 8 << 20
"""Small segments, cleaned soon: a new worker reads the whole topic once."""
_PARTITION: Final = 0
"""One partition for all queries, so that more partitions added by somebody cannot send a query to another one."""
_FIRST_VERSION: Final = 1
_VERSION: Final = 2
_RUNS_KEPT: Final = 20
"""Runs that are remembered to have lost the journal: as many may come back from a long sleep."""
NO_CLAIM: Final = -1


class Journal(Protocol):
    """What the commands of `commit` ask of a journal."""

    def look(self) -> tuple[str | None, CommitDecision | None]: ...

    def take_over(self, run: str) -> CommitDecision | None: ...

    def record(self, decision: CommitDecision) -> None: ...

    def claim(self) -> None: ...

    def keep_alive(self) -> None: ...


class JobJournal:
    """Of a batch job: nobody but its one driver ever asks."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._last: CommitDecision | None = None

    def look(self) -> tuple[str | None, CommitDecision | None]:
        return self._run, self._last

    def take_over(self, run: str) -> CommitDecision | None:
        self._run = run
        return self._last

    def record(self, decision: CommitDecision) -> None:
        self._last = decision

    def claim(self) -> None:
        pass

    def keep_alive(self) -> None:
        pass


class TopicJournal:
    """Of a query, in one partition that all queries share. What counts is the order of the log.

    A driver takes the journal over by a record, its claim. All that it writes later names the offset of that claim, and
    a record whose claim is older than another one before it counts for nothing, for whoever reads it. So a driver that
    was replaced cannot decide, however long it was away and whatever the brokers have forgotten meanwhile; and since a
    record is read back with all before it, the driver knows before it acts. As long as brokers remember who had the
    journal before, they refuse what it writes, which is only sooner.

    Each run has a key of its own: what does not count must not take the place of what does when the log is compacted.
    """

    def __init__(self, cluster: Cluster, topic: str, query: str) -> None:
        self._log = FencedLog(cluster, TopicPartition(topic, _PARTITION), f"{PREFIX}-{query}")
        self._topic = topic
        self._state = JournalState(query)
        self._run: str | None = None
        self._claim = NO_CLAIM
        """The run in whose name this object took the journal over, and where in the log it did."""

    def look(self) -> tuple[str | None, CommitDecision | None]:
        """The run that has the journal, and the last decision."""
        self._take(self._log.read())
        return self._state.owner, self._state.last

    def take_over(self, run: str) -> CommitDecision | None:
        """The last decision, which nobody else can change from now on.

        `CommitError` when the journal was taken from this run, since whoever did that started later. Another process
        of the same run may have had it meanwhile: Spark lets any that waits for work commit.
        """
        self.look()
        if run in self._state.before or (self._run == run and self._state.owner != run):
            raise _superseded()
        if self._run != run or self._state.claim != self._claim or not self._log.is_ours:
            self._log.take_over()
            self._run = run
            self._claim = self._append(self._key(run), self._state.claimed_by(run))
            self._require_ownership()
            self._move_here()
        return self._state.last

    def record(self, decision: CommitDecision) -> None:
        """Write a decision, durably; `CommitError` when it does not count, so that nobody may act on it."""
        self._write(decision)

    def _write(self, last: CommitDecision | None) -> None:
        assert self._run is not None, "take_over comes first"
        self._append(self._key(self._run), self._state.with_last(self._claim, last))
        self._require_ownership()

    def claim(self) -> None:
        """`CommitError` when another run has the journal."""
        self.look()
        self._require_ownership()

    def keep_alive(self) -> None:
        """Have brokers go on refusing whoever had the journal before."""
        if self._log.is_ours:
            self._fenced(self._log.keep_alive)

    def _move_here(self) -> None:
        """Have all that is known under the key of this run, and then forget the others.

        Also that nothing is decided: what once did not count must not look as if it did when the claim before it is
        forgotten.
        """
        self._write(self._state.last)
        for key in sorted(self._state.keys - {self._key(self._run or "")}):
            self._append(key, None)

    def _require_ownership(self) -> None:
        if self._state.claim != self._claim:
            raise _superseded()

    def _append(self, key: bytes, value: bytes | None) -> int:
        """The offset of the record; all before it is read."""
        entries = self._fenced(lambda: self._log.append(key, value))
        self._take(entries)
        return entries[-1].offset

    def _fenced(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except ClientError as error:
            if error.code != "PRODUCER_FENCED":
                raise
            raise _superseded() from error

    def _take(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            try:
                self._state.take(entry)
            except CommitError as error:
                raise CommitError(f"topic '{self._topic}', key {entry.key.decode()}: {error.message}") from error

    def _key(self, run: str) -> bytes:
        return self._state.key_of(run)


class JournalState:
    """What the records of a query say, taken one after the other in the order of the log."""

    def __init__(self, query: str) -> None:
        self._decision_key = query.encode()
        self._owner_key = f"{query}.owner".encode()
        """Keys of the first version of the journal, which has no claims: all that it says comes before the first."""
        self._prefix = f"{query}.".encode()
        self.claim = NO_CLAIM
        self.owner: str | None = None
        self.before: tuple[str, ...] = ()
        """Runs that had the journal, and lost it."""
        self.last: CommitDecision | None = None
        self.keys: set[bytes] = set()
        """Keys of runs that have a record."""

    def key_of(self, run: str) -> bytes:
        return self._prefix + run.encode()

    def claimed_by(self, run: str) -> bytes:
        """The record by which a run takes the journal over."""
        lost = () if self.owner in (None, run) else (self.owner,)
        before = [one for one in (*self.before, *lost) if one != run][-_RUNS_KEPT:]
        return _text({"version": _VERSION, "run": run, "before": before})

    def with_last(self, claim: int, last: CommitDecision | None) -> bytes:
        """The record of the last decision, written by whoever claimed the journal there."""
        fields: dict[str, Any] = {"version": _VERSION, "run": self.owner, "before": self.before, "claim": claim}
        return _text(fields | {"decision": None if last is None else last.fields()})

    def take(self, entry: Entry) -> None:
        """Take the next record in; `CommitError` for one that this package does not understand."""
        if entry.key in (self._decision_key, self._owner_key):
            self._take_first_version(entry)
        elif entry.key.startswith(self._prefix):
            if entry.value is None:
                self.keys.discard(entry.key)
                return
            self.keys.add(entry.key)
            self._take_claimed(entry.offset, _fields(entry.value, _VERSION))

    def _take_claimed(self, offset: int, fields: Mapping[str, Any]) -> None:
        claim = fields.get("claim", offset)
        if not counts(claim, offset, self.claim):
            return
        self.claim, self.owner, self.before = claim, fields["run"], tuple(fields["before"])
        if "decision" in fields:
            self.last = None if fields["decision"] is None else decision_of(fields["decision"])

    def _take_first_version(self, entry: Entry) -> None:
        if self.claim != NO_CLAIM:
            return
        if entry.key == self._owner_key:
            self.owner = None if entry.value is None else str(json.loads(entry.value)["run"])
        else:
            self.last = None if entry.value is None else decision_of(_fields(entry.value, _FIRST_VERSION))


def counts(claim: int, offset: int, newest: int) -> bool:
    """Whether a record at an offset, written under a claim, counts where the newest claim before it is another one.

    A claim that lies behind its record is of a topic that was deleted, and is not of this one.
    """
    return newest <= claim <= offset


def _text(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _fields(text: bytes, version: int) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(text)
        if fields["version"] != version:
            raise CommitError(f"the record has version {fields['version']}, this package knows {version}")
    except (ValueError, KeyError, TypeError) as error:
        raise not_a_decision(error) from error
    return fields


def require_journal(cluster: Cluster, topic: str) -> None:
    """Make the topic of decisions unless it is there; `ClientError` says how somebody else can."""
    try:
        require_compacted_topic(cluster, topic, segment_bytes=_SEGMENT_BYTES)
    except TopicNotMade as error:
        raise ClientError(
            f"the sink needs a topic for its decisions and cannot make it: {error.message}. Make it with one "
            f"partition and cleanup.policy=compact, or write with delivery=at-least-once",
            error.code,
        ) from error


def _superseded() -> CommitError:
    return CommitError(
        "this query was started a second time, and the other one has taken over: one checkpoint is for one query"
    )
