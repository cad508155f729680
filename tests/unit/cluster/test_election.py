"""Who leads, and who may: the decisions, and what they keep whatever the order in which they are taken."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster import election
from headrace.cluster.election import LogEnd, Recovery, Rules
from headrace.cluster.image import NO_LEADER, PartitionState
from headrace.protocol.errors import CodedError, ErrorCode

STRICT = Rules(min_insync_replicas=2)
ALONE = Rules(min_insync_replicas=1)
UNCLEAN = Rules(min_insync_replicas=2, recovery=Recovery.AGGRESSIVE)
MANUAL = Rules(min_insync_replicas=2, recovery=Recovery.NONE)
Short = tuple[int, str, str]
"""Leader, ISR and ELR: a digit for each broker."""


def state(leader: int, isr: str, elr: str = "", *, replicas: str = "012", **more: Any) -> PartitionState:
    return PartitionState(
        replicas=tuple(map(int, replicas)), isr=tuple(map(int, isr)), leader=leader, elr=tuple(map(int, elr)), **more
    )


def shown(found: PartitionState | None) -> Short | None:
    if found is None:
        return None
    return found.leader, "".join(map(str, found.isr)), "".join(map(str, found.elr))


CHANGES_OF_BROKERS = [
    # before, alive, rules, after
    ((0, "012", ""), "012", STRICT, None),
    ((0, "012", ""), "12", STRICT, (1, "12", "")),
    ((0, "012", ""), "01", STRICT, (0, "01", "")),
    ((0, "012", ""), "2", STRICT, (2, "2", "01")),
    ((0, "012", ""), "2", ALONE, (2, "2", "")),
    ((0, "012", ""), "", STRICT, (NO_LEADER, "012", "")),
    ((NO_LEADER, "012", ""), "", STRICT, None),
    ((NO_LEADER, "012", ""), "1", STRICT, (1, "1", "02")),
    ((2, "2", "01"), "12", STRICT, None),
    ((2, "2", "01"), "1", STRICT, (1, "1", "02")),
    ((2, "2", ""), "01", STRICT, (NO_LEADER, "2", "")),
    ((2, "2", ""), "01", UNCLEAN, (NO_LEADER, "2", "")),
    ((2, "2", "1"), "01", UNCLEAN, (1, "1", "2")),
    ((NO_LEADER, "", "1"), "1", ALONE, (1, "1", "")),
    ((NO_LEADER, "", ""), "012", STRICT, None),
    ((NO_LEADER, "", ""), "012", UNCLEAN, None),
]


@pytest.mark.parametrize(("before", "alive", "rules", "after"), CHANGES_OF_BROKERS)
def test_leaders_follow_the_living(before: Short, alive: str, rules: Rules, after: Short | None) -> None:
    assert shown(election.after_change_of_brokers(state(*before), rules, set(map(int, alive)))) == after


LOSSES = [
    # before, who may have lost records, alive, after
    ((0, "012", ""), 2, "012", (0, "01", "")),
    ((0, "012", ""), 0, "012", (1, "12", "")),
    ((2, "2", "01"), 2, "12", (1, "1", "0")),
    ((2, "2", "01"), 1, "12", (2, "2", "0")),
    ((NO_LEADER, "2", ""), 2, "2", (NO_LEADER, "", "")),
    ((0, "01", ""), 2, "012", None),
]


@pytest.mark.parametrize(("before", "broker", "alive", "after"), LOSSES)
def test_who_may_have_lost_records_is_not_counted_on(
    before: Short, broker: int, alive: str, after: Short | None
) -> None:
    assert shown(election.after_loss_of_records(state(*before), STRICT, {broker}, set(map(int, alive)))) == after


def test_the_only_replica_there_is_stays_whatever_it_has_lost() -> None:
    assert election.after_loss_of_records(state(0, "0", replicas="0"), ALONE, {0}, {0}) is None


def test_the_only_replica_whose_directory_is_gone_leads_when_an_operator_says_so() -> None:
    lost = election.after_loss_of_log(state(0, "0", replicas="0"), ALONE, 0, set())
    assert lost is not None
    assert shown(lost) == (NO_LEADER, "", "")
    assert not lost.counts_on(0), "its broker may go on with the new directory"
    empty = {0: LogEnd(-1, 0)}
    assert election.after_change_of_brokers(lost, ALONE, {0}) is None
    assert election.recovered(lost, ALONE, {0}, empty) is None
    assert shown(election.recovered(lost, ALONE, {0}, {0: LogEnd(3, 10)})) == (0, "0", ""), "it was put back"
    assert shown(election.led_uncleanly(lost, {0}, empty)) == (0, "0", "")


@pytest.mark.parametrize(
    ("before", "broker", "after"),
    [
        ((0, "012", ""), 0, (1, "12", "")),
        ((0, "012", ""), 2, (0, "01", "")),
        ((0, "01", ""), 0, (1, "1", "0")),
        ((0, "0", ""), 0, None),
        ((0, "01", ""), 2, None),
    ],
)
def test_who_stops_leaves_first_unless_it_is_the_last(before: Short, broker: int, after: Short | None) -> None:
    assert shown(election.on_shutdown(state(*before), STRICT, broker, {0, 1, 2} - {broker})) == after


def test_the_first_replica_leads_again_when_it_is_alive_in_sync_and_stays() -> None:
    assert shown(election.preferred(state(1, "012"), {0, 1, 2})) == (0, "012", "")
    assert election.preferred(state(0, "012"), {0, 1, 2}) is None
    assert election.preferred(state(1, "12"), {0, 1, 2}) is None
    assert election.preferred(state(1, "012"), {1, 2}) is None
    assert election.preferred(state(1, "012", removing=(0,)), {0, 1, 2}) is None


def test_an_unclean_election_takes_the_living_log_that_reaches_furthest() -> None:
    ends = {0: LogEnd(3, 10), 1: LogEnd(4, 5), 2: LogEnd(9, 99)}
    assert shown(election.led_uncleanly(state(NO_LEADER, "2"), {0, 1}, ends)) == (1, "1", "")
    assert shown(election.led_uncleanly(state(NO_LEADER, "2"), {0}, ends)) == (0, "0", "")
    assert election.led_uncleanly(state(0, "0"), {0, 1}, ends) is None
    assert election.led_uncleanly(state(NO_LEADER, "2"), set(), ends) is None
    assert election.led_uncleanly(state(NO_LEADER, "2"), {0, 1}, {}) is None


def test_an_operator_can_name_the_replica_of_an_unclean_election() -> None:
    ends = {0: LogEnd(3, 10), 1: LogEnd(4, 5)}
    assert shown(election.led_uncleanly(state(NO_LEADER, "2"), {0, 1}, ends, 0)) == (0, "0", "")
    assert election.led_uncleanly(state(NO_LEADER, "2"), {0, 1}, ends, 2) is None
    assert election.led_uncleanly(state(NO_LEADER, "2"), {0, 1, 7}, ends, 7) is None


# Where nobody is left that surely holds everything


def after_losses(before: PartitionState, *steps: str, rules: Rules = STRICT, emptied: str = "") -> PartitionState:
    """What becomes of a state when brokers come back one after another, each without what it had not synced."""
    alive: set[int] = set()
    for step in steps:
        losers = set(map(int, step))
        alive |= losers
        before = election.after_change_of_brokers(before, rules, alive - losers) or before
        emptied_now = losers & set(map(int, emptied))
        before = election.after_loss_of_records(before, rules, losers, alive, emptied_now) or before
        before = election.after_change_of_brokers(before, rules, alive) or before
    return before


@pytest.mark.parametrize("least", [1, 2, 3])
@pytest.mark.parametrize("steps", [("012",), ("0", "1", "2"), ("2", "01"), ("12", "0")])
def test_after_a_power_loss_of_all_who_held_everything_all_of_them_are_asked(
    steps: tuple[str, ...], least: int
) -> None:
    rules = Rules(min_insync_replicas=least)
    lost = after_losses(state(0, "012"), *steps, rules=rules)
    assert shown(lost) == (NO_LEADER, "", "")
    assert lost.last_known_elr == (0, 1, 2)
    assert not election.awaits_recovery(lost, rules, {0, 1})
    ends = {0: LogEnd(3, 10), 1: LogEnd(3, 12)}
    assert election.recovered(lost, rules, {0, 1, 2}, ends) is None
    after = election.recovered(lost, rules, {0, 1, 2}, ends | {2: LogEnd(3, 11)})
    assert after is not None
    assert (shown(after), after.last_known_elr) == ((1, "1", ""), ())
    assert (after.leader_epoch, after.partition_epoch) == (max(lost.leader_epoch, 3) + 1, lost.partition_epoch + 1)


def test_those_who_had_left_the_isr_need_not_be_asked_and_may_win() -> None:
    lost = after_losses(state(1, "12"), "1", "2")
    assert lost.last_known_elr == (1, 2)
    ends = {1: LogEnd(3, 10), 2: LogEnd(3, 10)}
    assert shown(election.recovered(lost, STRICT, {1, 2}, ends)) == (1, "1", "")
    assert shown(election.recovered(lost, STRICT, {0, 1, 2}, ends | {0: LogEnd(3, 11)})) == (0, "0", "")


def test_one_who_lost_nothing_leads_whatever_others_lost() -> None:
    before = after_losses(state(0, "012"), "01")
    assert shown(before) == (NO_LEADER, "2", "")
    assert not election.awaits_recovery(before, UNCLEAN, {0, 1, 2})
    assert shown(election.after_change_of_brokers(before, STRICT, {0, 1, 2})) == (2, "2", "")


def test_an_empty_directory_tells_nothing_until_its_log_is_there_again() -> None:
    lost = after_losses(state(0, "012"), "012", emptied="2")
    ends = {0: LogEnd(3, 10), 1: LogEnd(3, 9)}
    assert election.recovered(lost, STRICT, {0, 1, 2}, ends | {2: LogEnd(-1, 0)}) is None
    assert shown(election.recovered(lost, STRICT, {0, 1, 2}, ends | {2: LogEnd(3, 12)})) == (2, "2", "")
    assert shown(election.recovered(lost, UNCLEAN, {0, 1, 2}, ends | {2: LogEnd(-1, 0)})) == (0, "0", "")


def test_after_the_store_was_set_back_all_replicas_are_asked_and_no_known_epoch_is_used_again() -> None:
    unknown = election.after_set_back(state(0, "01", leader_epoch=3))
    assert (shown(unknown), unknown.last_known_elr) == ((NO_LEADER, "", ""), (0, 1, 2))
    ends = {0: LogEnd(3, 10), 1: LogEnd(7, 8), 2: LogEnd(3, 9, latest_epoch=9)}
    after = election.recovered(unknown, STRICT, {0, 1, 2}, ends)
    assert after is not None
    assert (after.leader, after.leader_epoch) == (1, 10)


def test_only_an_operator_recovers_what_is_to_be_recovered_by_nobody_else() -> None:
    lost = after_losses(state(0, "012"), "012", rules=MANUAL)
    ends = dict.fromkeys(range(3), LogEnd(3, 10))
    assert not election.awaits_recovery(lost, MANUAL, {0, 1, 2})
    assert election.recovered(lost, MANUAL, {0, 1, 2}, ends) is None
    assert shown(election.led_uncleanly(lost, {0, 1, 2}, ends)) == (0, "0", "")


def test_those_who_may_have_lost_records_are_forgotten_once_enough_are_in_sync() -> None:
    lost = after_losses(state(0, "012"), "012")
    led = election.recovered(lost, STRICT, {0, 1, 2}, dict.fromkeys(range(3), LogEnd(3, 10)))
    assert led is not None
    again = election.after_loss_of_records(led, STRICT, {0}, {0, 1, 2})
    assert again is not None
    assert (shown(again), again.last_known_elr) == ((NO_LEADER, "", ""), (0,))
    short = election.after_loss_of_records(state(0, "0", "12"), STRICT, {1}, {0, 1, 2})
    assert short is not None
    assert (shown(short), short.last_known_elr) == ((0, "0", "2"), (1,))
    joined = asked(short, "02")
    assert joined is not None
    assert (shown(joined), joined.last_known_elr) == ((0, "02", ""), ())


def test_the_only_member_of_the_isr_that_has_only_restarted_leads_where_unclean_elections_are_allowed() -> None:
    before = PartitionState(replicas=(1, 2), isr=(2,), leader=2, leader_epoch=3)
    bounced = election.after_change_of_brokers(before, UNCLEAN, {1})
    assert bounced is not None
    assert shown(election.after_change_of_brokers(bounced, UNCLEAN, {1, 2})) == (2, "2", "")


def test_a_partition_that_nobody_leads_for_want_of_records_is_not_moved_but_says_what_to_do() -> None:
    lost = after_losses(state(0, "012"), "012")
    with pytest.raises(CodedError, match="elect --unclean") as refused:
        election.reassigned(lost, (0, 1), STRICT)
    assert refused.value.code is ErrorCode.invalid_replica_assignment


# ISRs that leaders ask for


def asked(before: PartitionState, isr: str, **epochs: int) -> PartitionState | None:
    given = {"leader_epoch": before.leader_epoch, "partition_epoch": before.partition_epoch, **epochs}
    return election.with_isr(before, STRICT, map(int, isr), **given)


def test_a_leader_gets_the_isr_it_asks_for() -> None:
    assert shown(asked(state(0, "012"), "01")) == (0, "01", "")
    assert shown(asked(state(0, "01"), "012")) == (0, "012", "")
    assert shown(asked(state(0, "01"), "0")) == (0, "0", "1")
    assert shown(asked(state(0, "0", "12"), "01")) == (0, "01", "")
    assert asked(state(0, "01"), "01") is None


@pytest.mark.parametrize(
    ("isr", "epochs", "code"),
    [
        ("01", {"leader_epoch": 4}, ErrorCode.fenced_leader_epoch),
        ("01", {"leader_epoch": 6}, ErrorCode.not_controller),
        ("01", {"partition_epoch": 10}, ErrorCode.not_controller),
        ("01", {"partition_epoch": 8}, ErrorCode.invalid_update_version),
        ("12", {}, ErrorCode.invalid_request),
        ("", {}, ErrorCode.invalid_request),
        ("03", {}, ErrorCode.invalid_request),
    ],
)
def test_a_leader_that_knows_less_or_asks_for_nonsense_is_refused(
    isr: str, epochs: dict[str, int], code: ErrorCode
) -> None:
    with pytest.raises(CodedError) as refused:
        asked(state(0, "012", leader_epoch=5, partition_epoch=9), isr, **epochs)
    assert refused.value.code is code


def test_a_wish_that_was_granted_before_is_granted_again_whatever_else_has_changed() -> None:
    assert asked(state(0, "012", leader_epoch=5, partition_epoch=9), "012", partition_epoch=7) is None


def test_with_another_least_isr_nobody_is_eligible_who_was_so_by_the_former() -> None:
    assert shown(election.without_elr(state(0, "0", "12"))) == (0, "0", "")
    assert election.without_elr(state(0, "012")) is None


# Moves


def test_a_move_ends_when_everyone_who_is_to_hold_the_partition_is_in_sync() -> None:
    moving = election.reassigned(state(0, "012"), (3, 1, 2), STRICT)
    assert moving is not None
    assert (moving.replicas, moving.adding, moving.removing) == ((3, 1, 2, 0), (3,), (0,))
    assert moving.leader == 0
    done = asked(moving, "0123")
    assert done is not None
    assert (done.replicas, done.adding, done.removing) == ((3, 1, 2), (), ())
    assert shown(done) == (3, "312", "")
    assert done.leader_epoch == moving.leader_epoch + 1


def test_fewer_replicas_take_effect_at_once_where_they_are_in_sync() -> None:
    assert shown(election.reassigned(state(0, "012"), (1, 2), STRICT)) == (1, "12", "")
    waiting = election.reassigned(state(0, "01"), (1, 2), STRICT)
    assert waiting is not None
    assert (waiting.removing, waiting.leader) == ((0,), 0)


def test_a_move_can_be_replaced_and_taken_back() -> None:
    moving = election.reassigned(state(0, "012"), (3, 4, 5), STRICT)
    assert moving is not None
    other = election.reassigned(moving, (0, 1, 3), STRICT)
    assert other is not None
    assert (other.replicas, other.adding, other.removing) == ((0, 1, 3, 2), (3,), (2,))
    back = election.cancelled(other, STRICT)
    assert back is not None
    assert (set(back.replicas), back.adding, back.removing) == ({0, 1, 2}, (), ())
    assert election.cancelled(back, STRICT) is None


def test_a_move_is_not_taken_back_to_brokers_of_which_none_is_in_sync() -> None:
    moving = PartitionState(replicas=(3, 0), isr=(3,), leader=3, adding=(3,), removing=(0,))
    with pytest.raises(CodedError) as refused:
        election.cancelled(moving, STRICT)
    assert refused.value.code is ErrorCode.invalid_replica_assignment


def test_a_state_that_did_not_change_is_not_written() -> None:
    assert election.reassigned(state(0, "012"), (0, 1, 2), STRICT) is None


# Whatever happens, in whatever order

BROKERS = range(4)
brokers = st.sets(st.sampled_from(BROKERS))
orders = st.lists(st.sampled_from(BROKERS), min_size=1, max_size=4, unique=True)
Step = Callable[[PartitionState, Rules], PartitionState | None]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Something that a controller may decide."""
    alive, broker, target = draw(brokers), draw(st.sampled_from(BROKERS)), draw(orders)
    kinds: list[Step] = [
        lambda s, r: election.after_change_of_brokers(s, r, alive),
        lambda s, r: election.after_loss_of_records(s, r, {broker}, alive),
        lambda s, _: election.preferred(s, alive),
        lambda s, r: election.on_shutdown(s, r, broker, alive - {broker}),
        lambda s, r: election.reassigned(s, target, r),
        election.cancelled,
        lambda s, r: election.with_isr(
            s, r, alive | {s.leader}, leader_epoch=s.leader_epoch, partition_epoch=s.partition_epoch
        ),
    ]
    return draw(st.sampled_from(kinds))


@given(st.integers(1, 3), orders, st.lists(steps(), max_size=12))
def test_states_stay_sound(least: int, replicas: list[int], decisions: list[Step]) -> None:
    rules = Rules(min_insync_replicas=least)
    now = PartitionState(replicas=tuple(replicas), isr=tuple(replicas), leader=replicas[0])
    for decide in decisions:
        try:
            after = decide(now, rules)
        except CodedError:
            continue
        if after is not None:
            require_sound(now, after, rules)
            now = after


def require_sound(before: PartitionState, after: PartitionState, rules: Rules) -> None:
    assert after.partition_epoch > before.partition_epoch
    assert len(set(after.replicas)) == len(after.replicas) > 0
    assert set(after.isr) <= set(after.replicas)
    assert set(after.elr) <= set(after.replicas) - set(after.isr)
    assert after.leader == NO_LEADER or after.leader in after.isr
    assert set(after.adding) | set(after.removing) <= set(after.replicas)
    assert not set(after.adding) & set(after.removing)
    if after.leader != before.leader:
        assert after.leader_epoch > before.leader_epoch
    assert after.leader_epoch >= before.leader_epoch
    if len(after.isr) >= min(rules.min_insync_replicas, len(after.replicas)):
        assert not after.elr, "with enough in sync things are acknowledged that the others do not have"


@given(st.integers(1, 3), st.lists(st.tuples(brokers, st.booleans()), max_size=15))
def test_everything_acknowledged_is_held_by_whoever_leads(least: int, changes: list[tuple[set[int], bool]]) -> None:
    """A leader writes what all of its ISR then has, whenever that is large enough; brokers come and go; none is new."""
    rules = Rules(min_insync_replicas=least)
    now = PartitionState(replicas=(0, 1, 2), isr=(0, 1, 2), leader=0)
    held: dict[int, set[int]] = {broker: set() for broker in now.replicas}
    acknowledged: set[int] = set()
    for number, (alive, rejoin) in enumerate(changes):
        now = election.after_change_of_brokers(now, rules, alive) or now
        if now.leader == NO_LEADER:
            continue
        assert held[now.leader] >= acknowledged
        if rejoin:
            isr = [r for r in now.replicas if r in alive]
            for broker in isr:
                held[broker] = set(held[now.leader])
            epochs = {"leader_epoch": now.leader_epoch, "partition_epoch": now.partition_epoch}
            now = election.with_isr(now, rules, isr, **epochs) or now
        holders = now.isr if len(now.isr) >= least else (now.leader,)
        for broker in holders:
            held[broker].add(number)
        if holders == now.isr and len(now.isr) >= least:
            acknowledged.add(number)
