"""The driver's part of an exactly-once write: carries out, against a cluster, what `commit` decides."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.prepared import (
    Description,
    Ending,
    describe_transactions,
    end_transactions,
    fence,
    open_transactions,
)
from headrace.client.columnar.retry import Patience
from headrace.client.columnar.settings import ClientSettings
from headrace.client.columnar.transaction import PreparedTransaction
from headrace.client.errors import ClientError

from .commit import (
    Claim,
    Command,
    Copy,
    Drop,
    End,
    Fence,
    Identify,
    Inspect,
    ListOpen,
    Look,
    Part,
    Prepared,
    RecordDecision,
    Report,
    SinkOutcome,
    Steps,
    TakeOver,
    abort_steps,
    commit_steps,
    id_prefix,
    sweep_steps,
    tidy_steps,
    transactional_id,
    unfinished,
)
from .journal import Journal
from .parts import PartOrigin, copy_part

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 30.0
"""How often a batch looks for transactions of runs that died, beside the first one and one that had a retried task."""
KEEP_ALIVE_SECONDS: Final = 600.0
"""How often the cluster is reminded of who has the journal."""

_ONGOING: Final = "Ongoing"
_STATES: Final = {
    _ONGOING: SinkOutcome.OPEN,
    "PrepareCommit": SinkOutcome.COMMITTED,
    "CompleteCommit": SinkOutcome.COMMITTED,
}
_COMMITS: Final = {
    Ending.DONE: SinkOutcome.COMMITTED,
    Ending.CONTRARY: SinkOutcome.LOST,
    Ending.GONE: SinkOutcome.LOST,
}
_ABORTS: Final = {
    Ending.DONE: SinkOutcome.LOST,
    Ending.CONTRARY: SinkOutcome.COMMITTED,
    Ending.GONE: SinkOutcome.LOST,
}


def outcome_of(description: Description | None, one: Prepared) -> SinkOutcome:
    """Where a transaction stands, from what the coordinator knows of its transactional id."""
    if description is None or (description.producer_id, description.epoch) != (one.producer_id, one.epoch):
        return SinkOutcome.LOST
    return _STATES.get(description.state, SinkOutcome.LOST)


def is_sweep_due(reports: Sequence[Report], since_last: float) -> bool:
    """Whether to look for transactions that nobody will end: often only where a task was tried more than once."""
    return since_last >= SWEEP_SECONDS or any(one.was_retried for one in reports)


class LongPatience(Patience):
    """For what is decided: to give up before the cluster aborts a transaction is to tear the batch.

    Says so once, when it takes longer than any other call may.
    """

    def __init__(self, settings: ClientSettings, transactions: int) -> None:
        super().__init__(settings, least=settings.seconds("transaction.timeout.ms"))
        self._transactions = transactions
        self._says_at = time.monotonic() + settings.seconds("default.api.timeout.ms")

    def pause(self, error: ClientError) -> None:
        if time.monotonic() >= self._says_at:
            self._says_at = float("inf")
            words = "%d transactions are to be committed, and will be tried until transaction.timeout.ms is over: %s"
            log.warning(words, self._transactions, error.message)
        super().pause(error)


class _Done(NamedTuple):
    run: str
    batch: int


class SinkDriver:
    """Commits and aborts the batches of one query, or the one batch of a job."""

    def __init__(self, cluster: Cluster, query: str, journal: Journal) -> None:
        self._cluster = cluster
        self._query = query
        self._journal = journal
        self._lock = threading.Lock()
        self._swept_at = -SWEEP_SECONDS
        self._kept_alive_at = time.monotonic()
        self._done: _Done | None = None
        """The batch that is committed, and no later one."""

    def commit(self, batch: int, reports: Sequence[Report], *, rewrite_torn: bool = False) -> None:
        """Make the batch visible, once."""
        with self._lock:
            self._done = None
            self._carry_out(commit_steps(batch, reports, rewrite_torn=rewrite_torn))
            self._done = _Done(reports[0].run, batch)
            if is_sweep_due(reports, time.monotonic() - self._swept_at):
                self._sweep()

    def look_after(self) -> None:
        """Between batches: end what attempts that lost left open, and stay known to the cluster.

        `CommitError` when another driver has the query.
        """
        if not self._lock.acquire(blocking=False):
            return  # a batch is just being ended
        try:
            if self._done is not None:
                self._carry_out(tidy_steps(self._query, *self._done))
            if time.monotonic() - self._kept_alive_at >= KEEP_ALIVE_SECONDS:
                self._journal.keep_alive()
                self._kept_alive_at = time.monotonic()
        finally:
            self._lock.release()

    def _sweep(self) -> None:
        """The batch is committed: what goes wrong here must not make anybody write it again."""
        try:
            self._carry_out(sweep_steps(keep=set()))
        except ClientError as error:
            log.warning("transactions of tasks that lost could not be ended, readers may wait for them: %s", error)
        else:
            self._swept_at = time.monotonic()

    def abort(self, reports: Sequence[Report]) -> None:
        """Undo what is not decided."""
        with self._lock:
            self._carry_out(abort_steps(reports))

    def _carry_out(self, steps: Steps) -> None:
        answer = None
        while True:
            try:
                command = steps.send(answer)
            except StopIteration:
                return
            answer = self._do(command)

    def _do(self, command: Command) -> Any:
        match command:
            case Look():
                return self._journal.look()
            case TakeOver(run):
                return self._journal.take_over(run)
            case RecordDecision(decision):
                return self._journal.record(decision)
            case Claim():
                return self._journal.claim()
            case Inspect(transactions):
                return self._outcomes(transactions)
            case End(transactions, commit):
                return self._end(transactions, commit)
            case ListOpen():
                return open_transactions(self._cluster, id_prefix(self._query))
            case Fence(names):
                return self._fence(names)
            case Identify(names):
                return self._open_under(names)
            case Copy(batch, part):
                return self._copy(batch, part)
            case Drop(transactions):
                return end_transactions(self._cluster, transactions, commit=False)

    def _outcomes(self, transactions: Sequence[Prepared]) -> list[SinkOutcome]:
        found = describe_transactions(self._cluster, map(self._name, transactions))
        return [outcome_of(found[self._name(one)], one) for one in transactions]

    def _end(self, transactions: Sequence[Prepared], commit: bool) -> list[SinkOutcome]:
        prepared = [PreparedTransaction(self._name(one), one.producer_id, one.epoch, True) for one in transactions]
        endings = self._committed(prepared) if commit else end_transactions(self._cluster, prepared, commit=False)
        meanings = _COMMITS if commit else _ABORTS
        return [meanings[endings[one.transactional_id]] for one in prepared]

    def _committed(self, prepared: Sequence[PreparedTransaction]) -> dict[str, Ending]:
        patience = LongPatience(self._cluster.settings, len(prepared))
        try:
            return end_transactions(self._cluster, prepared, commit=True, patience=patience)
        except ClientError as error:
            raise unfinished(error) from error

    def _copy(self, batch: int, part: Part) -> tuple[Part, ...]:
        run, partition = part.prepared.run, part.prepared.partition
        log.warning("batch %d takes longer than transaction.timeout.ms: rows of task %d are copied", batch, partition)
        origin = PartOrigin(self._query, run, batch, partition, reuses_ids=False)
        return copy_part(self._cluster, origin, part)

    def _open_under(self, names: Sequence[str]) -> list[PreparedTransaction]:
        found = describe_transactions(self._cluster, names).items()
        return [
            PreparedTransaction(name, one.producer_id, one.epoch, True)
            for name, one in found
            if one is not None and one.state == _ONGOING
        ]

    def _fence(self, names: Sequence[str]) -> None:
        for name in names:
            fence(self._cluster, name)

    def _name(self, one: Prepared) -> str:
        return transactional_id(self._query, one.run, one.suffix)
