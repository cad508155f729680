"""The checker finds each kind of violation in a history that has it, and nothing in one that does not."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.checker.history import History, read
from tests.support.checker.violations import TRANSACTIONS_TOPIC, violations

TOPIC = "t"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def history() -> History:
    return History(Clock())


def sent(history: History, offset: int | None, *values: str, **more: object) -> None:
    operation = history.send("p", TOPIC, 0, values, **more)  # type: ignore[arg-type]
    if offset is not None:
        operation.ok(offset=offset)


def held(*values: str, start: int = 0) -> list[tuple[int, str, str | None]]:
    return [(offset, value, None) for offset, value in enumerate(values, start)]


def kinds(history: History) -> set[str]:
    return {violation.partition(":")[0] for violation in violations(history.events)}


def test_a_history_in_which_everything_is_as_told_has_no_violation(history: History, tmp_path: Path) -> None:
    sent(history, 0, "a", "b", stream="s")
    sent(history, None, "c")
    history.saw("r", TOPIC, 0, 0, held("a", "b"))
    history.final(TOPIC, 0, held("a", "b", "c"))
    assert violations(history.events) == []
    history.write(tmp_path / "history")
    assert violations(read(tmp_path / "history")) == []


def test_an_acknowledged_write_that_is_not_there_is_lost(history: History) -> None:
    sent(history, 0, "a", "b")
    history.final(TOPIC, 0, held("a"))
    assert kinds(history) == {"lost write"}


def test_an_acknowledgement_without_an_offset_counts_as_well(history: History) -> None:
    sent(history, -1, "a")
    history.final(TOPIC, 0, [])
    assert kinds(history) == {"lost write"}


def test_nothing_is_promised_before_the_loss_of_every_copy(history: History) -> None:
    sent(history, 0, "a")
    history.saw("r", TOPIC, 0, 0, held("a"))
    history.note("loss", "info", topic=TOPIC, partition=0)
    sent(history, 0, "b")
    history.saw("r", TOPIC, 0, 0, held("b"))
    history.final(TOPIC, 0, held("b"))
    assert violations(history.events) == []


def test_a_loss_excuses_nothing_that_came_after_it(history: History) -> None:
    history.note("loss", "info", topic=TOPIC, partition=0)
    sent(history, 0, "b")
    history.final(TOPIC, 0, [])
    assert kinds(history) == {"lost write"}


@pytest.mark.parametrize(("elected", "found"), [(True, set()), (False, {"lost write"})])
def test_what_one_acknowledged_may_be_lost_with_its_leadership_alone(
    history: History, elected: bool, found: set[str]
) -> None:
    history.note("leader", "info", topic=TOPIC, partition=0, epoch=0)
    sent(history, 0, "a", acks=1)
    if elected:
        history.note("leader", "info", topic=TOPIC, partition=0, epoch=1)
    history.final(TOPIC, 0, [])
    assert kinds(history) == found


def test_deleted_records_may_be_gone_and_must_be(history: History) -> None:
    sent(history, 0, "a", "b", "c")
    history.invoke("delete_records", topic=TOPIC, partition=0, before=2).ok(low_watermark=2)
    history.final(TOPIC, 0, held("c", start=2), log_start=2)
    assert violations(history.events) == []
    history.final(TOPIC, 0, held("a", "b", "c"))
    assert kinds(history) == {"not deleted"}
    history.final(TOPIC, 0, [], log_start=3)
    assert kinds(history) == {"lost write"}


def test_compaction_may_take_what_a_later_record_of_the_key_replaces(history: History) -> None:
    sent(history, 0, "a", "b", keys=["k", "k"])
    sent(history, 2, "c", keys=["other"])
    history.final(TOPIC, 0, [(1, "b", "k"), (2, "c", "other")], compacted=True)
    assert violations(history.events) == []
    history.final(TOPIC, 0, [(1, "b", "k")], next_offset=3, compacted=True)
    assert kinds(history) == {"lost write"}


def test_an_offset_shows_one_record(history: History) -> None:
    sent(history, None, "a")
    sent(history, None, "b")
    history.saw("r", TOPIC, 0, 0, held("a"))
    history.saw("q", TOPIC, 0, 0, held("b"))
    history.final(TOPIC, 0, held("b"))
    assert kinds(history) == {"two values"}


def test_what_a_consumer_was_given_does_not_vanish(history: History) -> None:
    sent(history, None, "a")
    history.saw("r", TOPIC, 0, 0, held("a"))
    history.final(TOPIC, 0, [])
    assert kinds(history) == {"vanished"}


def test_idempotent_records_stand_once_and_in_order(history: History) -> None:
    sent(history, None, "a", stream="s")
    sent(history, None, "b", stream="s")
    history.final(TOPIC, 0, held("b", "a"))
    assert kinds(history) == {"out of order"}
    history.final(TOPIC, 0, held("a", "b", "b"))
    assert kinds(history) == {"duplicate"}


def test_records_of_other_producers_may_stand_between(history: History) -> None:
    sent(history, None, "a", stream="s")
    sent(history, None, "x", stream="other")
    sent(history, None, "b", stream="s")
    history.final(TOPIC, 0, held("x", "a", "b"))
    assert violations(history.events) == []


def test_what_was_refused_or_never_sent_is_not_there(history: History) -> None:
    history.send("p", TOPIC, 0, ["a"]).fail()
    history.final(TOPIC, 0, held("a"))
    assert kinds(history) == {"from nowhere"}
    history.final(TOPIC, 0, held("never"))
    assert kinds(history) == {"from nowhere"}


def test_offsets_have_no_holes_but_for_markers(history: History) -> None:
    sent(history, None, "a")
    sent(history, None, "b")
    history.final(TOPIC, 0, [(0, "a", None), (2, "b", None)])
    assert kinds(history) == {"gap"}
    history.final(TOPIC, 0, [(0, "a", None), (2, "b", None)], control=[1])
    assert violations(history.events) == []


def test_a_consumer_is_not_led_past_a_record(history: History) -> None:
    sent(history, 0, "a", "b", "c")
    history.saw("r", TOPIC, 0, 0, [(0, "a", None), (2, "c", None)])
    history.final(TOPIC, 0, held("a", "b", "c"))
    assert kinds(history) == {"skipped"}


def test_a_position_that_was_reached_exists(history: History) -> None:
    sent(history, 0, "a", "b")
    history.saw("r", TOPIC, 0, 0, held("a", "b"))
    refused = {"client": "r", "topic": TOPIC, "partition": 0, "start": 2, "error": "offset_out_of_range"}
    history.note("poll", "fail", **refused, since=100.0, log_start=0)
    history.final(TOPIC, 0, held("a", "b"))
    assert kinds(history) == {"went back"}


def transaction(history: History, commit: bool | None, *, answered: bool = True) -> None:
    for partition in (0, 1):
        history.send("p", TOPIC, partition, [f"v{partition}"], transaction="x", stream="s").ok(offset=0)
    if commit is not None:
        end = history.invoke("end", transaction="x", commit=commit, group="", consumed=[])
        if answered:
            end.ok()


def ending(history: History, committed: Sequence[int]) -> None:
    for partition in (0, 1):
        history.final(TOPIC, partition, held(f"v{partition}"), committed=[0] if partition in committed else [])


@pytest.mark.parametrize(
    ("commit", "answered", "committed", "found"),
    [
        (True, True, (0, 1), set()),
        (True, True, (0,), {"lost write"}),
        (True, False, (0, 1), set()),
        (True, False, (), set()),
        (True, False, (1,), {"torn"}),
        (False, True, (), set()),
        (False, True, (0,), {"aborted read"}),
        (None, True, (0, 1), {"aborted read"}),
    ],
)
def test_a_transaction_is_there_as_its_producer_was_told(
    history: History, commit: bool | None, answered: bool, committed: Sequence[int], found: set[str]
) -> None:
    transaction(history, commit, answered=answered)
    ending(history, committed)
    assert kinds(history) == found


def test_readers_of_committed_records_are_given_nothing_before_it_is_committed(history: History) -> None:
    for partition in (0, 1):
        history.send("p", TOPIC, partition, [f"v{partition}"], transaction="x", stream="s").ok(offset=0)
    history.saw("r", TOPIC, 0, 0, held("v0"), committed_only=True)
    history.invoke("end", transaction="x", commit=True, group="", consumed=[]).ok()
    ending(history, (0, 1))
    assert kinds(history) == {"precommitted read"}


@pytest.mark.parametrize(("is_lost", "found"), [(False, {"aborted read"}), (True, set())])
def test_a_reader_is_given_nothing_aborted_unless_the_marker_was_lost(
    history: History, is_lost: bool, found: set[str]
) -> None:
    transaction(history, commit=False)
    if is_lost:
        history.note("loss", "info", topic=TOPIC, partition=0, brokers=[1])
    history.saw("r", TOPIC, 0, 0, held("v0"), committed_only=True)
    ending(history, ())
    assert kinds(history) == found


@pytest.mark.parametrize(
    ("lost", "client", "found"),
    [
        (TRANSACTIONS_TOPIC, "p", set()),
        (TRANSACTIONS_TOPIC, "other", {"two values", "lost write"}),
        ("unrelated", "p", {"two values", "lost write"}),
    ],
)
def test_an_epoch_is_given_out_twice_only_where_the_log_of_transactions_was_lost(
    history: History, lost: str, client: str, found: set[str]
) -> None:
    history.send("p", TOPIC, 0, ["v"], transaction="x").ok(offset=0)
    history.note("loss", "info", topic=lost, partition=0)
    history.send(client, TOPIC, 0, ["w"], transaction="y").ok(offset=0)
    for name in "xy":
        history.invoke("end", transaction=name, commit=True, group="", consumed=[]).ok()
    history.final(TOPIC, 0, held("v"), committed=[0], control=[1])
    assert kinds(history) == found


def test_no_record_is_consumed_by_two_committed_transactions(history: History) -> None:
    for name in ("x", "y"):
        history.invoke("end", transaction=name, commit=True, group="g", consumed=[["source", 0, 3, 5]]).ok()
    assert kinds(history) == {"copied twice"}


def test_other_records_have_the_offsets_of_those_that_were_lost(history: History) -> None:
    for name in ("x", "y"):
        history.invoke("end", transaction=name, commit=True, group="g", consumed=[[TOPIC, 0, 3, 5]]).ok()
        history.note("loss", "info", topic=TOPIC, partition=0)
    assert kinds(history) == set()


def test_an_acknowledged_commit_of_a_group_is_remembered(history: History) -> None:
    history.invoke("commit", group="g", topic=TOPIC, partition=0, offset=5).ok()
    history.invoke("commit", group="g", topic=TOPIC, partition=0, offset=7)
    for offset in (5, 7):
        history.note("committed", "ok", group="g", topic=TOPIC, partition=0, offset=offset, since=10.0)
    assert violations(history.events) == []
    history.note("committed", "ok", group="g", topic=TOPIC, partition=0, offset=-1, since=10.0)
    assert kinds(history) == {"lost commit"}
