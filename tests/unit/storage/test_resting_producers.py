"""Producers that do not write take little memory, and are as well known as those that do."""

import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.batch import FIRST_KEY_PRODUCER, TRANSACTIONAL_BIT, BatchHeader
from headrace.storage import producer_state
from headrace.storage.producer_state import Producers, check

DAY = 86_400_000


def header(
    producer_id: int, sequence: int = 0, *, count: int = 1, epoch: int = 0, attributes: int = 0, timestamp: int = 1000
) -> BatchHeader:
    return BatchHeader(
        0, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count
    )


def filled(ids: range, *, batches: int = 1, timestamp: int = 1000) -> Producers:
    known = Producers()
    for sequence in range(batches):
        for producer_id in ids:
            known.note(header(producer_id, sequence, timestamp=timestamp), sequence * len(ids) + producer_id)
    return known


def taken_by(make: Callable[[], object]) -> int:
    """The memory of what is made. The least of three: threads of other tests may take some at the same time."""

    def once() -> int:
        tracemalloc.start()
        try:
            made = make()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        del made
        return taken

    return min(once() for _ in range(3))


@pytest.mark.parametrize("batches", [1, 5])
def test_a_silent_producer_takes_less_than_a_hundred_bytes(batches: int) -> None:
    assert taken_by(lambda: filled(range(5_000), batches=batches)) / 5_000 < 100


def test_few_producers_are_packed_too_when_they_rest() -> None:
    def make() -> list[Producers]:
        logs = [filled(range(20), batches=5) for _ in range(100)]
        for known in logs:
            known.rest()
        return logs

    assert taken_by(make) / 2_000 < 160


def test_a_producer_that_rested_is_recognised() -> None:
    known = filled(range(1000), batches=7)
    known.rest()
    for sequence in range(2, 7):
        found = check(known.awake(17), header(17, sequence))
        assert found is not None
        assert found.base_offset == sequence * 1000 + 17
    assert check(known.awake(17), header(17, 7)) is None


def test_asking_wakes_nobody_and_waking_loses_nobody() -> None:
    known = filled(range(1000))
    assert 999 in known
    assert 1000 not in known
    assert len(known) == len(list(known)) == len(dict(known)) == 1000
    for producer_id in range(1000):
        assert known.awake(producer_id) is not None
    assert sorted(known) == list(range(1000))


def test_a_snapshot_holds_those_that_rest() -> None:
    known = filled(range(600), batches=5)
    restored = Producers.decode(known.encode())
    assert restored is not None
    assert _described(restored) == _described(known)


def test_a_copy_stays_as_it_was() -> None:
    known = filled(range(600))
    copy = known.copy()
    before = _described(copy)
    for producer_id in range(2000):
        known.note(header(producer_id, 1 if producer_id < 600 else 0, timestamp=DAY), 5000 + producer_id)
    known.expire(5 * DAY, DAY)
    assert _described(copy) == before


def test_the_oldest_are_forgotten_first() -> None:
    known = Producers()
    for hour in range(24):
        for producer_id in range(hour * 100, hour * 100 + 100):
            known.note(header(producer_id, timestamp=hour * 3_600_000), producer_id)
    known.rest()
    forgotten = 0
    for generation in sorted(known.generations()):
        forgotten += known.forget(generation, 1000 - forgotten)
        if forgotten >= 1000:
            break
    assert 1000 <= forgotten <= 1030
    assert len(known) == 2400 - forgotten
    assert all(producer_id in known for producer_id in range(1200, 2400))
    assert not any(producer_id in known for producer_id in range(900))


def test_one_with_an_open_transaction_is_never_forgotten() -> None:
    known = filled(range(500))
    known.note(header(7000, attributes=TRANSACTIONAL_BIT), 900)
    known.rest()
    known.expire(10 * DAY, DAY)
    assert list(known) == [7000]
    for generation in known.generations():
        assert known.forget(generation, 10) == 0
    assert known.has_open(7000, 0)
    state = known.get(7000)
    assert state is not None
    assert state.transaction_first_offset == 900


def test_open_transactions_do_not_shield_others_from_being_forgotten() -> None:
    known = filled(range(1000))
    for producer_id in range(1000, 2000):
        known.note(header(producer_id, attributes=TRANSACTIONAL_BIT), producer_id)
    known.rest()
    (generation,) = known.generations()
    for _ in range(4):
        assert 250 <= known.forget(generation, 250) <= 300 or len(known) == 1000
    assert sorted(known) == list(range(1000, 2000))


def test_idempotency_keys_are_forgotten_after_a_time_of_their_own() -> None:
    known = filled(range(10), timestamp=DAY)
    for key in range(FIRST_KEY_PRODUCER, FIRST_KEY_PRODUCER + 1000):
        known.note(header(key, 77, timestamp=DAY), 50)
    known.expire(DAY + 3_599_999, DAY, 3_600_000)
    assert len(known) == 1010
    known.expire(DAY + 3_600_000 * 9 // 8, DAY, 3_600_000)
    assert sorted(known) == list(range(10))


def test_wild_timestamps_make_few_generations_and_let_nobody_go_early() -> None:
    known = Producers()
    known.expire(30 * DAY, DAY)
    for producer_id in range(2000):
        known.note(header(producer_id, timestamp=producer_id * DAY), producer_id)
    known.rest()
    assert len(known.generations()) <= 16
    known.expire(30 * DAY, DAY)
    assert all(producer_id in known for producer_id in range(30, 2000))


def test_batches_before_a_gap_are_forgotten() -> None:
    known = filled(range(1), batches=3)
    known.note(header(0, 40), 90)
    state = known.get(0)
    assert state is not None
    assert [batch.last_sequence for batch in state.batches] == [40]


steps = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 3), st.sampled_from(["note", "rest", "wake", "bump"])), max_size=120
)


@given(steps)
def test_resting_changes_nothing_that_is_known(taken: list[tuple[int, int, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer_state, "_MOST_AWAKE", 4)
        packed, plain = Producers(), Producers()
        epochs: dict[int, int] = {}
        offset = 0
        for producer_id, count, step in taken:
            if step == "rest":
                packed.rest()
                continue
            if step == "wake":
                packed.awake(producer_id)
                continue
            if step == "bump":
                epochs[producer_id] = epochs.get(producer_id, 0) + 1
            epoch = epochs.get(producer_id, 0)
            state = plain.get(producer_id)
            sequence = state.next_sequence if state is not None and state.epoch == epoch else 0
            batch = header(producer_id, sequence, count=count, epoch=epoch, timestamp=offset)
            packed.note(batch, offset)
            patch.setattr(producer_state, "_MOST_AWAKE", 1000)
            plain.note(batch, offset)
            patch.setattr(producer_state, "_MOST_AWAKE", 4)
            offset += count
        assert _described(packed) == _described(plain)


def _described(known: Producers) -> dict[int, list[object]]:
    def fields(producer_id: int) -> Iterator[object]:
        state = known[producer_id]
        yield from (state.epoch, state.batches, state.next_sequence, state.last_timestamp, state.last_offset)
        yield from (state.coordinator_epoch, state.transaction_first_offset)

    return {producer_id: list(fields(producer_id)) for producer_id in sorted(known)}
