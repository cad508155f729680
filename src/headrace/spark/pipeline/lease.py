"""One runner for a checkpoint that several hosts can reach: a lease, kept in a topic.

The runner that holds the lease writes a record every few seconds. Another one that wants it looks on: it is refused
with the first new record, and takes over after so many seconds without one. Only the order of the log and each
runner's own monotonic clock count, so clocks of hosts need not agree. The holder stops writing before anybody may take
over, when its records get no answer.

A record is one of two kinds. A claim names the claim that it follows, and counts if that is still the last one: of two
runners that claim at once, the first wins. A heartbeat names the claim it belongs to, and counts unless a later claim
does. Each runner has a key of its own, so that compaction never lets what does not count replace what does.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import Enum
from hashlib import sha256
from typing import Any, Final, Protocol

from headrace.client.columnar.administration import TopicNotMade, require_compacted_topic
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.fenced import Entry, FencedLog
from headrace.client.columnar.model import TopicPartition
from headrace.client.errors import ClientError

from .failures import PipelineFailed, RunsElsewhere
from .paths import PipelinePaths, is_remote
from .reach import Outage
from .session import SparkTarget

TOPIC: Final = "__headrace_pipeline_runners"
HEARTBEAT_SECONDS: Final = 5.0
DOUBT_SECONDS: Final = 20.0
"""After so long without an answer to a heartbeat the holder stops its queries until there is one."""
LEASE_SECONDS: Final = 30.0
"""After so long without a heartbeat another runner takes over; longer than `DOUBT_SECONDS`."""
_AGAIN_SECONDS: Final = 1.0
"""The pause after a heartbeat without an answer."""
_LOOK_SECONDS: Final = 0.5
_NO_CLAIM: Final = -1
_SEGMENT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Who holds a lease, or wants it."""

    id: str
    host: str
    process: int
    since: str
    """When it started, by its own clock: for people alone."""

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, since {self.since}"


def this_runner(name: str | None = None) -> Runner:
    """This process, under a name that nobody else has."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Runner(id=name or uuid.uuid4().hex, host=socket.gethostname(), process=os.getpid(), since=now)


class LeaseState:
    """What the records of one lease say, taken one after the other in the order of the log."""

    def __init__(self, checkpoint: str) -> None:
        self._prefix = sha256(checkpoint.rstrip("/").encode()).hexdigest()[:32].encode() + b"."
        self.claim = _NO_CLAIM
        self.holder: Runner | None = None
        self.records = 0
        """How many records of the holder were seen."""
        self.keys: set[bytes] = set()

    def key_of(self, runner: Runner) -> bytes:
        return self._prefix + runner.id.encode()

    def claimed_by(self, runner: Runner) -> bytes:
        """The record that takes the lease as it stands now."""
        return _text({**asdict(runner), "after": self.claim})

    def beat_of(self, runner: Runner, claim: int) -> bytes:
        """The record that keeps a lease which was taken at an offset."""
        return _text({**asdict(runner), "claim": claim})

    def take(self, entry: Entry) -> None:
        """Take the next record in."""
        if not entry.key.startswith(self._prefix):
            return
        if entry.value is None:
            self._forget(entry.key)
            return
        self.keys.add(entry.key)
        fields: dict[str, Any] = json.loads(entry.value)
        claim = fields.pop("claim", None)
        after = fields.pop("after", None)
        if not (claim_counts(after, self.claim) if claim is None else beat_counts(claim, entry.offset, self.claim)):
            return
        self.claim = entry.offset if claim is None else claim
        self.holder = Runner(**fields)
        self.records += 1

    def _forget(self, key: bytes) -> None:
        self.keys.discard(key)
        if self.holder is not None and key == self.key_of(self.holder):
            self.holder = None


def claim_counts(after: int, newest: int) -> bool:
    """Whether a claim counts that was made when `after` was the last one: nobody may have come between."""
    return after == newest


def beat_counts(claim: int, offset: int, newest: int) -> bool:
    """Whether a heartbeat under a claim counts; a claim behind it is of a topic that was deleted."""
    return newest <= claim <= offset


def _text(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


class LeaseLog(Protocol):
    """What is used of `FencedLog`."""

    @property
    def is_ours(self) -> bool: ...

    def take_over(self) -> None: ...

    def append(self, key: bytes, value: bytes | None) -> list[Entry]: ...

    def read(self) -> list[Entry]: ...


class Standing(Enum):
    """How a runner stands to its lease."""

    HELD = "held"
    DOUBTFUL = "doubtful"
    """Nobody has answered for so long that another runner may soon take over."""
    LOST = "lost"


class Lease:
    """The lease of a checkpoint, as one runner sees it."""

    def __init__(
        self,
        log: LeaseLog,
        checkpoint: str,
        runner: Runner,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._log = log
        self._checkpoint = checkpoint
        self._runner = runner
        self._clock = clock
        self._sleep = sleep
        self._state = LeaseState(checkpoint)
        self._claim = _NO_CLAIM
        self._confirmed_at = 0.0
        """The last heartbeat that counts was sent then, or later."""
        self._is_lost = False
        self._problem = ""
        self._lock = threading.Lock()

    def acquire(self, waits: Callable[[Runner], None] = lambda _: None, dead: Collection[str] = ()) -> None:
        """Take the lease; RunsElsewhere if somebody else has it. `waits` is told of a holder that may be dead, but for
        those that are known to be `dead`, by their ids.
        """
        self._take(self._log.read())
        if self._state.holder is not None and self._state.holder.id not in dead:
            self._outwait(self._state.holder, waits)
        sent = self._clock()
        self._claim = self._append(self._state.claimed_by(self._runner))
        if not self.is_ours():
            self._append(None)
            raise self._refusal()
        self._confirmed_at = sent
        for key in sorted(self._state.keys - {self._state.key_of(self._runner)}):
            self._take(self._log.append(key, None))
        self.beat()

    def beat(self) -> float:
        """Keep the lease, or learn that it is lost; how many seconds to wait before the next time."""
        with self._lock:
            return self._beat()

    def _beat(self) -> float:
        sent = self._clock()
        try:
            if not self._log.is_ours:
                self._take(self._log.read())
            if self.is_ours():
                self._append(self._state.beat_of(self._runner, self._claim))
        except ClientError as error:
            self._problem = error.message
            return _AGAIN_SECONDS
        if self.is_ours():
            self._confirmed_at = sent
        else:
            self._is_lost = True
        return HEARTBEAT_SECONDS

    def release(self) -> None:
        """Let the next runner begin at once. What fails here only makes it wait."""
        if self._is_lost:
            return
        try:
            self._append(None)
        except ClientError:
            return

    def is_ours(self) -> bool:
        """Whether no claim of somebody else counts, as far as the log was read."""
        return self._state.claim == self._claim

    @property
    def standing(self) -> Standing:
        if self._is_lost:
            return Standing.LOST
        silent = self._clock() - self._confirmed_at
        return Standing.DOUBTFUL if silent > DOUBT_SECONDS else Standing.HELD

    def explain(self) -> None:
        """RunsElsewhere when another runner has taken over, asked anew: what failed may have failed by that."""
        self.beat()
        self.require()

    @property
    def is_held(self) -> bool:
        return self.standing is Standing.HELD

    @property
    def outage(self) -> Outage | None:
        """Why queries must rest, if they must."""
        if self.standing is not Standing.DOUBTFUL:
            return None
        since = time.time() - (self._clock() - self._confirmed_at)
        words = f"no broker confirms that this is the only runner: {self._problem}"
        return Outage(words, since, must_rest=True)

    def require(self) -> None:
        """RunsElsewhere when another runner has taken over."""
        if self._is_lost:
            raise RunsElsewhere(
                f"another runner has taken over the checkpoint {self._checkpoint}"
                f" ({self._state.holder or 'which has ended since'}); this one stops"
            )

    def _outwait(self, holder: Runner, waits: Callable[[Runner], None]) -> None:
        """Return when a holder is silent for so long that it has stopped, or has released the lease."""
        began, seen = self._clock(), self._state.records
        waits(holder)
        while self._clock() - began < LEASE_SECONDS:
            self._sleep(_LOOK_SECONDS)
            self._take(self._log.read())
            if self._state.holder is None:
                return
            if self._state.records != seen:
                raise self._refusal()

    def _append(self, value: bytes | None) -> int:
        if not self._log.is_ours:
            self._log.take_over()
        entries = self._log.append(self._state.key_of(self._runner), value)
        self._take(entries)
        return entries[-1].offset

    def _take(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._state.take(entry)

    def _refusal(self) -> RunsElsewhere:
        holder = f" ({self._state.holder})" if self._state.holder is not None else ""
        return RunsElsewhere(
            f"the pipeline runs already{holder} with the checkpoint {self._checkpoint}; stop it first, or give another "
            "--checkpoint"
        )


def is_lease_needed(paths: PipelinePaths, spark: SparkTarget) -> bool:
    """Whether runners on other hosts can reach the checkpoint, so that a lock of this machine is not enough."""
    return is_remote(paths.checkpoints) or not spark.is_local


class Leases:
    """Several leases that a runner holds, as one."""

    def __init__(self, leases: Sequence[Lease]) -> None:
        self._leases = leases

    @property
    def is_held(self) -> bool:
        return all(one.is_held for one in self._leases)

    @property
    def outage(self) -> Outage | None:
        """Why queries must rest, if they must."""
        return next((outage for one in self._leases if (outage := one.outage) is not None), None)

    def require(self) -> None:
        """RunsElsewhere when another runner has taken one of them over."""
        for one in self._leases:
            one.require()

    def explain(self) -> None:
        """The same, asked anew."""
        for one in self._leases:
            one.explain()


@contextmanager
def held_lease(
    cluster: Cluster,
    checkpoint: str,
    waits: Callable[[Runner], None],
    runner_id: str | None = None,
    dead: Collection[str] = (),
) -> Iterator[Lease]:
    """Hold the lease of a checkpoint, or of another name, for the length of the block; RunsElsewhere if somebody else
    does. It is taken from the `dead` at once.
    """
    require_lease_topic(cluster)
    runner = this_runner(runner_id)
    # The name is this lease's own: the order of the log decides, and no heartbeat is refused for another reason.
    name = f"{TOPIC}-{uuid.uuid4().hex}"
    lease = Lease(FencedLog(cluster, TopicPartition(TOPIC, 0), name), checkpoint, runner)
    lease.acquire(waits, dead)
    over = threading.Event()
    thread = threading.Thread(target=_beat, args=(lease, over), name="headrace-lease", daemon=True)
    thread.start()
    try:
        yield lease
    finally:
        over.set()
        thread.join()
        lease.release()


def _beat(lease: Lease, over: threading.Event) -> None:
    pause = HEARTBEAT_SECONDS
    while lease.standing is not Standing.LOST and not over.wait(pause):
        pause = lease.beat()


def require_lease_topic(cluster: Cluster) -> None:
    """Return when the topic of leases is there; it is made now if it is not."""
    try:
        require_compacted_topic(cluster, TOPIC, segment_bytes=_SEGMENT_BYTES)
    except TopicNotMade as error:
        raise PipelineFailed(
            f"a checkpoint that other hosts can reach needs the topic {TOPIC}, which cannot be made: "
            f"{error.message}. Make it with one partition and cleanup.policy=compact"
        ) from error
