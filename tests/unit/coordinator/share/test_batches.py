"""Runs of offsets laid over each other, beside a model that keeps every offset by itself."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.share.batches import combined
from headrace.replication.share_state import DeliveryState, StateBatch

STATES = [state.value for state in DeliveryState]
Model = dict[int, tuple[int, int]]


@st.composite
def _batch(draw: st.DrawFn) -> StateBatch:
    first = draw(st.integers(0, 30))
    return StateBatch(first, first + draw(st.integers(0, 12)), draw(st.sampled_from(STATES)), draw(st.integers(0, 3)))


def model_of(kept: Model, changes: list[StateBatch], start_offset: int) -> Model:
    result = dict(kept)
    for first, last, state, count in changes:
        for offset in range(first, last + 1):
            result[offset] = max(result.get(offset, (-1, -1)), (count, state))
    return {offset: value for offset, value in result.items() if offset >= start_offset}


def offsets_of(batches: tuple[StateBatch, ...]) -> Model:
    return {
        offset: (batch.delivery_count, batch.delivery_state)
        for batch in batches
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }


@given(st.lists(st.tuples(st.lists(_batch(), max_size=5), st.integers(-1, 40)), max_size=6))
def test_runs_are_what_the_offsets_in_them_are(writes: list[tuple[list[StateBatch], int]]) -> None:
    runs: tuple[StateBatch, ...] = ()
    model: Model = {}
    for changes, start_offset in writes:
        runs, model = combined(runs, changes, start_offset), model_of(model, changes, start_offset)
        assert offsets_of(runs) == model
        for one, other in pairwise(runs):
            assert one.last_offset < other.first_offset
            assert one.last_offset + 1 < other.first_offset or one[2:] != other[2:], "two alike are one"


@given(st.lists(_batch(), max_size=8), st.integers(-1, 40))
def test_a_repeated_change_changes_nothing(changes: list[StateBatch], start_offset: int) -> None:
    once = combined((), changes, start_offset)
    assert combined(once, changes, start_offset) == once
    assert combined((), reversed(changes), start_offset) == once, "nor does their order matter"
