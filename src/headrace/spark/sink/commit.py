"""How a batch of the sink becomes visible exactly once: who decides, when, and what a crash at any point leaves behind.

Each attempt of a task writes in a Kafka transaction of its own and leaves it open. The driver, with the report of one
attempt of every task in its hands, first writes its decision to a journal (a compacted topic, one key per query) and
then commits those transactions; every other transaction of the query is aborted. What makes this safe:

1. Transactional ids hold query, run and a slot that an attempt has for itself (see `slots`). No two runs, and no
   two attempts, can end each other's transaction by accident; only a driver, carrying out a decision, and the broker's
   timeout end them.
2. No transaction is committed before the decision that lists it is in the journal.
3. The journal has one writer. A driver takes it over before it reads it, and from then on whatever an earlier driver
   still writes counts for nothing, by the order of the log. A driver reads back what it wrote before it acts on it.
   So the decision that it read stays the last word, and none acts on one that does not count.
4. A task asks the journal before it writes: a batch that was decided is not written again.
5. A decided transaction is ended by its producer id and epoch, and an epoch has one transaction only. Committing twice
   is committing once; of a commit and an abort the first wins and the other one is told.

What remains is time: an open transaction is aborted by the broker after `transaction.timeout.ms`. Before the decision
its records, which stay in the log, are copied into another one, so that a batch may take as long as it likes. If it
happens between the decision and the commit (the driver died in that moment, or the cluster was out of reach, for longer
than the timeout), either nothing of the batch was committed, and the decision is revoked, or a part of it was: then the
batch is torn, and the query says so and stops.

No input or output here: the functions yield what to do and are sent what came of it.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Any, Final, NamedTuple

from headrace.client.columnar.model import Range
from headrace.client.columnar.transaction import PreparedTransaction
from headrace.client.errors import ClientError

PREFIX: Final = "headrace-sink"
_BATCHES_APART: Final = 2
_COPIES: Final = 4
"""Looks at the transactions of a batch before it is decided."""


class CommitError(ClientError):
    """A batch could not be committed; the message says what is visible of it and what to do."""


class Prepared(NamedTuple):
    """An open transaction that holds rows of a task: the run, the task's number, the end of its transactional id,
    and the producer."""

    run: str
    partition: int
    suffix: str
    producer_id: int
    epoch: int


def suffix_of(slot: str, batch: int) -> str:
    """The end of a transactional id. Batches that follow each other differ in it: what is left open by one is told
    from what the next one has begun."""
    return f"{slot}-{batch % _BATCHES_APART}"


def transactional_id(query: str, run: str, suffix: str) -> str:
    """The name an attempt writes under: nobody else has it, and later batches of the run use it again."""
    return f"{id_prefix(query)}{run}-{suffix}"


def id_prefix(query: str) -> str:
    """What the transactional ids of all tasks of a query start with."""
    return f"{PREFIX}-{query}-"


def is_of_batch(name: str, query: str, run: str, batch: int) -> bool:
    """Whether an attempt of this batch of the run may have this name, and none of the batch after it."""
    return name.startswith(transactional_id(query, run, "")) and name.endswith(suffix_of("", batch))


class Part(NamedTuple):
    """A transaction, and where its records are; None where that is not known of all."""

    prepared: Prepared
    ranges: tuple[Range, ...] | None = None


class Report(NamedTuple):
    """What an attempt of a task did. Without `parts` it wrote nothing: no rows, or the batch was decided already."""

    query: str
    run: str
    batch: int
    parts: tuple[Part, ...] = ()
    found_decided: bool = False
    was_retried: bool = False
    """Whether there was an attempt before this one."""


class DecisionState(StrEnum):
    """How far a decision is carried out."""

    COMMITTING = "committing"
    COMMITTED = "committed"
    REVOKED = "revoked"
    """Nothing of the batch is visible (or all of it may be written again): the next run writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDecision:
    """The last word on a query: its latest decided batch, the run that wrote it, and the transactions to commit."""

    batch: int
    run: str
    state: DecisionState
    transactions: tuple[Prepared, ...] = ()

    def ended(self, state: DecisionState) -> "CommitDecision":
        return replace(self, state=state, transactions=())

    def fields(self) -> dict[str, Any]:
        """What a record in the journal has of it."""
        return {
            "batch": self.batch,
            "run": self.run,
            "state": self.state.value,
            "transactions": [one[1:] for one in self.transactions],
        }


def decision_of(fields: Mapping[str, Any]) -> CommitDecision:
    """The decision of a record; `CommitError` when somebody else wrote it."""
    try:
        run = str(fields["run"])
        return CommitDecision(
            batch=int(fields["batch"]),
            run=run,
            state=DecisionState(fields["state"]),
            transactions=tuple(_prepared_of(run, entry) for entry in fields["transactions"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise not_a_decision(error) from error


def _prepared_of(run: str, entry: Sequence[Any]) -> Prepared:
    """Before there were slots, ids ended with the numbers of the task and of its attempt."""
    partition, suffix, producer_id, epoch = entry
    name = suffix if isinstance(suffix, str) else f"{partition}-{suffix}"
    return Prepared(run, int(partition), name, int(producer_id), int(epoch))


def not_a_decision(error: Exception) -> CommitError:
    return CommitError(f"the record is not a decision of this sink: {error}")


class Duty(Enum):
    """What a task has to do with its rows."""

    WRITE = "write"
    SKIP = "skip"


def duty(last: CommitDecision | None, batch: int) -> Duty:
    """What a task of `batch` does; `CommitError` where the checkpoint is older than the sink's journal."""
    if last is None or last.batch < batch:
        return Duty.WRITE
    if last.batch > batch:
        raise behind(last, batch)
    return Duty.WRITE if last.state is DecisionState.REVOKED else Duty.SKIP


class SinkOutcome(Enum):
    """Where a transaction stands."""

    OPEN = "open"
    COMMITTED = "committed"
    LOST = "lost"
    """Aborted: by the broker after its timeout, or by a driver."""


class CommitVerdict(Enum):
    """What can still be done with a decided batch."""

    COMMIT = "commit"
    ABORT = "abort"
    TORN = "torn"


def verdict(outcomes: Iterable[SinkOutcome]) -> CommitVerdict:
    """All of a batch is committed, or nothing; torn where neither can be had any more."""
    found = set(outcomes)
    if SinkOutcome.LOST not in found:
        return CommitVerdict.COMMIT
    return CommitVerdict.TORN if SinkOutcome.COMMITTED in found else CommitVerdict.ABORT


class Look(NamedTuple):
    """Answer: the run that last took the journal over, and the last decision; None where there was none yet."""


class TakeOver(NamedTuple):
    """Shut every earlier driver out of the journal, in the name of a run; answer: the last decision, or None."""

    run: str


class RecordDecision(NamedTuple):
    """Write a decision to the journal, durably; fails when another driver took the journal over."""

    decision: CommitDecision


class Claim(NamedTuple):
    """Fail when another driver took the journal over."""


class Inspect(NamedTuple):
    """Answer: the outcome of each transaction."""

    transactions: Sequence[Prepared]


class End(NamedTuple):
    """Commit or abort each transaction; answer: the outcome of each, none of them `OPEN`."""

    transactions: Sequence[Prepared]
    commit: bool


class ListOpen(NamedTuple):
    """Answer: the transactional ids of the query's open transactions."""


class Fence(NamedTuple):
    """Abort the open transactions of these ids, and shut out whoever still writes in them."""

    transactional_ids: Sequence[str]


class Identify(NamedTuple):
    """Answer: which transactions are open under these ids."""

    transactional_ids: Sequence[str]


class Copy(NamedTuple):
    """Write the records of a transaction that was aborted again; answer: the parts that have them."""

    batch: int
    part: Part


class Drop(NamedTuple):
    """Abort these transactions, and no others that the same ids may have by now."""

    transactions: Sequence[PreparedTransaction]


Command = Look | TakeOver | RecordDecision | Claim | Inspect | End | ListOpen | Fence | Identify | Drop | Copy
Steps = Generator[Command, Any, None]


def commit_steps(batch: int, reports: Sequence[Report], *, rewrite_torn: bool = False) -> Steps:
    """Make the batch of these reports visible, once, whatever earlier runs did with it."""
    own = _prepared(reports)
    last = yield TakeOver(reports[0].run)
    if last is not None and last.state is DecisionState.COMMITTING:
        last = yield from _carry_out(last, (yield Inspect(last.transactions)), rewrite_torn)
    if last is not None and last.batch > batch:
        yield End(own, commit=False)
        raise behind(last, batch)
    if last is not None and last.batch == batch and last.state is DecisionState.COMMITTED:
        yield End(own, commit=False)
    else:
        yield from _decide(batch, reports, own, rewrite_torn)


def abort_steps(reports: Sequence[Report]) -> Steps:
    """Undo what the tasks wrote, except what was decided: that is finished by the next run.

    Spark calls this also when `commit` itself failed, so the decision may be there, or still on its way. A journal that
    another run has is left to it: whatever this run had under way there is refused.

    A job has no next run, and its journal died with the process that committed. But nothing is committed that was not
    decided: where one of its transactions is, the others are committed, too.
    """
    query, run = reports[0].query, reports[0].run
    owner, last = yield Look()
    is_ours = owner == run
    if is_ours:
        last = yield TakeOver(run)
    decided = last.transactions if last is not None and last.state is DecisionState.COMMITTING else ()
    own = [one for one in _prepared(reports) if one not in decided]
    was_decided = is_ours and last is None and SinkOutcome.COMMITTED in (yield Inspect(own))
    outcomes = yield End(own, commit=was_decided)
    if was_decided and SinkOutcome.LOST in outcomes:
        raise torn(
            CommitDecision(batch=reports[0].batch, run=run, state=DecisionState.COMMITTING, transactions=tuple(own)),
            outcomes,
        )
    if is_ours:
        yield from sweep_steps(keep={transactional_id(query, one.run, one.suffix) for one in decided})


def _decide(batch: int, reports: Sequence[Report], own: Sequence[Prepared], rewrite_torn: bool) -> Steps:
    if any(report.found_decided for report in reports):
        yield End(own, commit=False)
        raise revoked(batch)
    if not own:
        return
    parts = yield from _all_open(batch, [part for report in reports for part in report.parts])
    own = tuple(part.prepared for part in parts)
    decision = CommitDecision(batch=batch, run=reports[0].run, state=DecisionState.COMMITTING, transactions=own)
    yield RecordDecision(decision)
    ended = yield from _carry_out(decision, [SinkOutcome.OPEN] * len(own), rewrite_torn)
    if ended.state is DecisionState.REVOKED:
        raise revoked(batch)


def _all_open(batch: int, parts: list[Part]) -> Generator[Command, Any, list[Part]]:
    """The parts of a batch, all of them open: those that the cluster aborted, because the batch took longer than a
    transaction may, are written again.

    Nothing of the batch is decided, so nobody has committed them. Copying is fast beside what tasks may do, but while
    it goes on others may be aborted.
    """
    for _ in range(_COPIES):
        outcomes = yield Inspect([part.prepared for part in parts])
        lost = [part for part, outcome in zip(parts, outcomes, strict=True) if outcome is not SinkOutcome.OPEN]
        if not lost:
            return parts
        parts = [part for part in parts if part not in lost]
        if any(part.ranges is None for part in lost):
            break
        for part in lost:
            parts += yield Copy(batch, part)
    yield End([part.prepared for part in parts], commit=False)
    raise expired(batch, [part.prepared for part in lost])


def _carry_out(
    decision: CommitDecision, outcomes: Sequence[SinkOutcome], rewrite_torn: bool
) -> Generator[Command, Any, CommitDecision]:
    """A torn batch is committed as far as it can be: fewer rows are missing then."""
    outcomes = yield End(decision.transactions, commit=verdict(outcomes) is not CommitVerdict.ABORT)
    found = verdict(outcomes)
    if found is CommitVerdict.TORN and not rewrite_torn:
        raise torn(decision, outcomes)
    ended = decision.ended(DecisionState.COMMITTED if found is CommitVerdict.COMMIT else DecisionState.REVOKED)
    yield RecordDecision(ended)
    return ended


def sweep_steps(keep: set[str]) -> Steps:
    """Abort the query's transactions that nobody will end: of attempts that lost, and of runs that died.

    The claim stands between looking and ending, so that a driver whose time is over ends nobody's transactions.
    """
    stale = [one for one in (yield ListOpen()) if one not in keep]
    if stale:
        yield Claim()
        yield Fence(stale)


def tidy_steps(query: str, run: str, batch: int) -> Steps:
    """Abort what attempts of a batch that is committed left open, while the next batch may be under way.

    Attempts that lost may begin to write when their batch is long committed. The claim stands between looking and
    ending: what was open before it was begun before any later batch but the next one could. Only that very transaction
    is ended then, however long it takes: by that time the id may have the next but one.
    """
    stale = [name for name in (yield ListOpen()) if is_of_batch(name, query, run, batch)]
    if stale:
        found = yield Identify(stale)
        yield Claim()
        yield Drop(found)


def _prepared(reports: Sequence[Report]) -> list[Prepared]:
    return [part.prepared for report in reports for part in report.parts]


def behind(last: CommitDecision, batch: int) -> CommitError:
    return CommitError(
        f"batch {batch} was to be written, but batch {last.batch} of this query is written already: the checkpoint is "
        "older than the topic. Start from the newest checkpoint, or from an empty one to write everything again"
    )


def expired(batch: int, lost: Sequence[Prepared]) -> CommitError:
    return CommitError(
        f"batch {batch} cannot be committed: the transactions of its tasks {_tasks(lost)} were aborted by the cluster "
        "before all tasks were done, and could not be written again in time. Nothing of the batch is visible; start "
        "again to have it written. Raise kafka.transaction.timeout.ms (and the brokers' transaction.max.timeout.ms), "
        "or make batches smaller"
    )


def not_there(batch: int, lost: Prepared) -> CommitError:
    return CommitError(
        f"batch {batch} cannot be committed: it took longer than transaction.timeout.ms, so the cluster aborted the "
        f"transactions of its task {lost.partition}, and their records are no longer in the log to be written again "
        "(retention, or cleanup.policy=compact). Nothing of the batch is visible; start again to have it written. "
        "Raise kafka.transaction.timeout.ms (and the brokers' transaction.max.timeout.ms), or make batches smaller"
    )


def unfinished(error: ClientError) -> CommitError:
    return CommitError(
        f"the batch is decided, and could not be committed: {error}. What was committed of it stays visible, and "
        "the cluster aborts the rest after transaction.timeout.ms. A stream, or a write with the same txnAppId and "
        "txnVersion, that is started before that commits the rest; any other write is to be compared with its topic "
        "before it is repeated",
        error.code,
    )


def revoked(batch: int) -> CommitError:
    return CommitError(
        f"batch {batch} was decided, but the cluster aborted its transactions before they were committed; start "
        "the query again to have it written"
    )


def torn(decision: CommitDecision, outcomes: Sequence[SinkOutcome]) -> CommitError:
    pairs = list(zip(decision.transactions, outcomes, strict=True))
    lost = [one for one, outcome in pairs if outcome is SinkOutcome.LOST]
    return CommitError(
        f"batch {decision.batch} is torn: the rows of its tasks {_tasks(lost)} are missing, because the cluster "
        f"aborted their transactions (transaction.timeout.ms) before a driver came back to commit them; the rows of "
        f"the other {len(pairs) - len(lost)} are visible. A stream writes the whole batch again, with the visible rows "
        "twice, when it is started with the option tornBatch=rewrite"
    )


def _tasks(transactions: Sequence[Prepared]) -> str:
    numbers = sorted({one.partition for one in transactions})
    shown = ", ".join(map(str, numbers[:10]))
    return shown if len(numbers) <= 10 else f"{shown} and {len(numbers) - 10} more"
