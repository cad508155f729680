"""The decisions of the sink, one by one; `tests/property/test_sink_commit.py` plays them all against bad luck."""

import json
from typing import Any

import pytest

from headrace.client.columnar.model import Range
from headrace.client.columnar.prepared import Description
from headrace.client.columnar.transaction import PreparedTransaction
from headrace.spark.sink.commit import (
    Claim,
    CommitDecision,
    CommitError,
    CommitVerdict,
    Copy,
    DecisionState,
    Drop,
    Duty,
    End,
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
    decision_of,
    duty,
    id_prefix,
    is_of_batch,
    suffix_of,
    tidy_steps,
    transactional_id,
    verdict,
)
from headrace.spark.sink.driver import SWEEP_SECONDS, is_sweep_due, outcome_of

OPEN, COMMITTED, LOST = SinkOutcome.OPEN, SinkOutcome.COMMITTED, SinkOutcome.LOST
ONE = Prepared("r2", 0, "s-1", 10, 3)
TWO = Prepared("r2", 1, "t-1", 11, 3)
OLD = Prepared("r1", 0, "s-1", 5, 0)
REPORTS = [Report("q", "r2", 7, (Part(ONE),)), Report("q", "r2", 7, (Part(TWO),))]
DECIDED = CommitDecision(batch=7, run="r1", state=DecisionState.COMMITTING, transactions=(OLD,))


def decision(batch: int, state: DecisionState = DecisionState.COMMITTED) -> CommitDecision:
    return CommitDecision(batch=batch, run="r1", state=state)


def played(steps: Steps, *answers: object) -> list[object]:
    """The commands given, with these answers to them; the last one is not answered."""
    commands: list[object] = [next(steps)]
    for answer in answers:
        try:
            commands.append(steps.send(answer))
        except StopIteration:
            commands.append(None)
    return commands


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, Duty.WRITE),
        (decision(6), Duty.WRITE),
        (decision(6, DecisionState.COMMITTING), Duty.WRITE),
        (decision(7), Duty.SKIP),
        (DECIDED, Duty.SKIP),
        (decision(7, DecisionState.REVOKED), Duty.WRITE),
    ],
)
def test_a_task_writes_unless_its_batch_is_decided(last: CommitDecision | None, expected: Duty) -> None:
    assert duty(last, 7) is expected


def test_a_checkpoint_older_than_the_topic_is_refused() -> None:
    with pytest.raises(CommitError, match="batch 7 was to be written, but batch 8"):
        duty(decision(8), 7)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([OPEN, OPEN], CommitVerdict.COMMIT),
        ([OPEN, COMMITTED], CommitVerdict.COMMIT),
        ([COMMITTED], CommitVerdict.COMMIT),
        ([OPEN, LOST], CommitVerdict.ABORT),
        ([LOST, LOST], CommitVerdict.ABORT),
        ([COMMITTED, LOST], CommitVerdict.TORN),
        ([COMMITTED, OPEN, LOST], CommitVerdict.TORN),
    ],
)
def test_a_batch_is_committed_whole_or_not_at_all(outcomes: list[SinkOutcome], expected: CommitVerdict) -> None:
    assert verdict(outcomes) is expected


def test_a_batch_is_decided_before_it_is_committed() -> None:
    last = decision(6)
    committing = CommitDecision(batch=7, run="r2", state=DecisionState.COMMITTING, transactions=(ONE, TWO))
    assert played(commit_steps(7, REPORTS), last, [OPEN, OPEN], None, [COMMITTED, COMMITTED], None) == [
        TakeOver("r2"),
        Inspect([ONE, TWO]),
        RecordDecision(committing),
        End((ONE, TWO), commit=True),
        RecordDecision(committing.ended(DecisionState.COMMITTED)),
        None,
    ]


def test_a_run_that_died_between_decision_and_commit_is_finished_by_the_next() -> None:
    skipped = [Report("q", "r2", 7, found_decided=True)]
    assert played(commit_steps(7, skipped), DECIDED, [OPEN], [COMMITTED], None, []) == [
        TakeOver("r2"),
        Inspect((OLD,)),
        End((OLD,), commit=True),
        RecordDecision(DECIDED.ended(DecisionState.COMMITTED)),
        End([], commit=False),
        None,
    ]


def test_a_batch_that_was_written_again_although_decided_is_aborted() -> None:
    assert played(commit_steps(7, REPORTS), decision(7), [LOST, LOST]) == [
        TakeOver("r2"),
        End([ONE, TWO], commit=False),
        None,
    ]


def test_a_decision_whose_transactions_are_all_lost_is_revoked_and_the_batch_written_anew() -> None:
    steps = commit_steps(7, [Report("q", "r2", 7, found_decided=True)])
    assert played(steps, DECIDED, [LOST], [LOST])[-1] == RecordDecision(DECIDED.ended(DecisionState.REVOKED))
    assert steps.send(None) == End([], commit=False)
    with pytest.raises(CommitError, match="start the query again"):
        steps.send([])


def test_a_transaction_that_ended_too_early_fails_the_batch_before_it_is_decided() -> None:
    steps = commit_steps(7, REPORTS)
    assert played(steps, None, [OPEN, LOST])[-1] == End([ONE], commit=False)
    with pytest.raises(CommitError, match=r"tasks 1 were aborted .* kafka.transaction.timeout.ms"):
        steps.send([LOST])


def test_a_transaction_that_ended_too_early_is_copied_before_the_batch_is_decided() -> None:
    kept, lost = Part(ONE, ()), Part(TWO, (Range("t", 0, 5, 9),))
    copy, later = Part(TWO._replace(suffix="u-1"), lost.ranges), Part(ONE._replace(suffix="v-1"), ())
    steps = commit_steps(7, [Report("q", "r2", 7, (kept, lost))])
    inspected = [Inspect([ONE, copy.prepared]), Copy(7, kept), Inspect([copy.prepared, later.prepared])]
    decided = CommitDecision(
        batch=7, run="r2", state=DecisionState.COMMITTING, transactions=(copy.prepared, later.prepared)
    )
    answers = [None, [OPEN, LOST], (copy,), [LOST, OPEN], (later,), [OPEN, OPEN]]
    assert played(steps, *answers)[2:] == [Copy(7, lost), *inspected, RecordDecision(decided)]


def test_a_batch_whose_transactions_end_faster_than_they_are_copied_fails_before_it_is_decided() -> None:
    part = Part(ONE, ())
    steps = commit_steps(7, [Report("q", "r2", 7, (part,))])
    assert played(steps, None, *[[LOST], (part,)] * 4)[-1] == End([ONE], commit=False)
    with pytest.raises(CommitError, match="could not be written again in time"):
        steps.send([LOST])


def test_a_torn_batch_stops_the_query_and_says_what_is_missing() -> None:
    steps = commit_steps(7, REPORTS)
    played(steps, None, [OPEN, OPEN], None)
    with pytest.raises(CommitError, match=r"batch 7 is torn: the rows of its tasks 1 are missing.*tornBatch=rewrite"):
        steps.send([COMMITTED, LOST])


def test_a_torn_batch_is_written_again_where_that_is_wanted() -> None:
    torn = CommitDecision(
        batch=7, run="r1", state=DecisionState.COMMITTING, transactions=(OLD, OLD._replace(partition=1))
    )
    steps = commit_steps(7, [Report("q", "r2", 7, found_decided=True)], rewrite_torn=True)
    commands = played(steps, torn, [COMMITTED, LOST], [COMMITTED, LOST])
    assert commands[-1] == RecordDecision(torn.ended(DecisionState.REVOKED))


def test_an_empty_batch_decides_nothing() -> None:
    assert played(commit_steps(7, [Report("q", "r2", 7)]), decision(6)) == [TakeOver("r2"), None]


def test_an_abort_spares_what_was_decided() -> None:
    mine = CommitDecision(batch=7, run="r2", state=DecisionState.COMMITTING, transactions=(ONE,))
    commands = played(abort_steps(REPORTS), ("r2", mine), mine, [LOST], [transactional_id("q", "r2", "s-1")])
    assert commands == [Look(), TakeOver("r2"), End([TWO], commit=False), ListOpen(), None]


def test_an_abort_of_a_job_finishes_a_commit_that_was_cut_off() -> None:
    own = [ONE, TWO]
    answers: list[Any] = [("r2", None), None, [COMMITTED, OPEN], [COMMITTED, COMMITTED], []]
    begin = [Look(), TakeOver("r2"), Inspect(own)]
    assert played(abort_steps(REPORTS), *answers) == [*begin, End(own, commit=True), ListOpen(), None]


def test_an_abort_of_a_job_undoes_what_was_not_committed() -> None:
    own = [ONE, TWO]
    answers: list[Any] = [("r2", None), None, [OPEN, OPEN], [LOST, LOST], []]
    begin = [Look(), TakeOver("r2"), Inspect(own)]
    assert played(abort_steps(REPORTS), *answers) == [*begin, End(own, commit=False), ListOpen(), None]


def test_an_abort_of_a_job_that_is_torn_says_what_is_missing() -> None:
    steps = abort_steps(REPORTS)
    played(steps, ("r2", None), None, [COMMITTED, OPEN])
    with pytest.raises(CommitError, match="batch 7 is torn: the rows of its tasks 1 are missing"):
        steps.send([COMMITTED, LOST])


def test_an_abort_leaves_the_journal_to_a_run_that_took_it() -> None:
    assert played(abort_steps(REPORTS), ("r3", None), [LOST, LOST]) == [Look(), End([ONE, TWO], commit=False), None]


def test_a_decision_is_read_as_it_was_written() -> None:
    written = CommitDecision(batch=7, run="r2", state=DecisionState.COMMITTING, transactions=(ONE, TWO))
    assert decision_of(json.loads(json.dumps(written.fields()))) == written


def test_a_decision_of_a_time_without_slots_has_its_ids() -> None:
    fields = {"batch": 7, "run": "r1", "state": "committing", "transactions": [[3, 1, 10, 2]]}
    assert decision_of(fields).transactions == (Prepared("r1", 3, "3-1", 10, 2),)


@pytest.mark.parametrize("fields", [{}, [], {"batch": 1, "run": "r", "state": "?", "transactions": []}])
def test_what_is_not_a_decision_is_refused(fields: Any) -> None:
    with pytest.raises(CommitError, match="not a decision"):
        decision_of(fields)


def test_transactional_ids_of_a_query_share_their_beginning() -> None:
    assert transactional_id("q", "r", "s-1").startswith(id_prefix("q"))
    assert not transactional_id("q2", "r", "s-1").startswith(id_prefix("q"))


def test_ids_of_a_batch_are_told_from_those_of_the_next_one_and_of_other_runs() -> None:
    name = transactional_id("q", "r2", suffix_of("s", 7))
    assert is_of_batch(name, "q", "r2", 7)
    assert not is_of_batch(name, "q", "r2", 8)
    assert not is_of_batch(name, "q", "r1", 7)


def test_what_a_committed_batch_left_open_is_ended_and_nothing_else() -> None:
    late, following, other = (
        transactional_id("q", run, suffix_of("s", batch)) for run, batch in (("r2", 7), ("r2", 8), ("r1", 7))
    )
    found = [PreparedTransaction(late, 10, 3, True)]
    assert played(tidy_steps("q", "r2", 7), [late, following, other], found, None, None) == [
        ListOpen(),
        Identify([late]),
        Claim(),
        Drop(found),
        None,
    ]
    assert played(tidy_steps("q", "r2", 7), [following, other]) == [ListOpen(), None]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (None, LOST),
        (Description("Ongoing", 10, 3), OPEN),
        (Description("PrepareCommit", 10, 3), COMMITTED),
        (Description("CompleteCommit", 10, 3), COMMITTED),
        (Description("CompleteAbort", 10, 3), LOST),
        (Description("Ongoing", 10, 4), LOST),
        (Description("Ongoing", 12, 3), LOST),
    ],
)
def test_a_transaction_stands_where_its_coordinator_says(found: Description | None, expected: SinkOutcome) -> None:
    assert outcome_of(found, ONE) is expected


def test_leftovers_are_looked_for_after_a_retry_and_now_and_then() -> None:
    assert is_sweep_due(REPORTS, SWEEP_SECONDS)
    assert not is_sweep_due(REPORTS, 0)
    assert is_sweep_due([Report("q", "r2", 7, (Part(ONE),), was_retried=True)], 0)
