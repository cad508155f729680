"""Offsets of open transactions: which count when, against a list of everything that was written."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.groups.offsets.pending import PendingOffsets
from headrace.coordinator.groups.offsets.records import encode_offset, offset_key, offset_prefix
from headrace.coordinator.groups.offsets.store import Offsets

PRODUCERS = (7, 8)
PLACES = (0, 1)
PLAIN = -1

steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from((PLAIN, *PRODUCERS)), st.sampled_from(PLACES)),
        st.tuples(st.just("delete"), st.just(PLAIN), st.sampled_from(PLACES)),
        st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans()),
    ),
    max_size=30,
)


def key_of(partition: int) -> bytes:
    return offset_key(offset_prefix("g", "t"), partition)


class Model:
    """What counts is the last write of those that were committed; a tombstone ends all that came before it."""

    def __init__(self) -> None:
        self.open: list[tuple[int, int, int]] = []
        self.counting: dict[int, int] = {}

    def write(self, producer: int, place: int, offset: int) -> None:
        if producer == PLAIN:
            self.counting[place] = offset
        else:
            self.open.append((producer, place, offset))

    def delete(self, place: int) -> None:
        self.counting.pop(place, None)
        self.open = [entry for entry in self.open if entry[1] != place]

    def end(self, producer: int, committed: bool) -> None:
        for owner, place, offset in self.open:
            if owner == producer and committed:
                self.counting[place] = max(offset, self.counting.get(place, -1))
        self.open = [entry for entry in self.open if entry[0] != producer]


@given(steps)
def test_the_last_write_of_those_that_are_committed_counts(taken: list[tuple[str, int, int]]) -> None:
    offsets, pending, model = Offsets(), PendingOffsets(), Model()
    for offset, (what, producer, other) in enumerate(taken):
        if what == "end":
            offsets.replay(pending.end(producer, offset, committed=bool(other)), _refuse)
            model.end(producer, bool(other))
            continue
        value = None if what == "delete" else encode_offset(offset, -1, "", 0, -1)
        pairs = [(key_of(other), value)]
        if producer == PLAIN:
            pending.note_decided(pairs, offset)
            offsets.replay(pairs, _refuse)
        else:
            pending.add(producer, pairs, offset)
        model.delete(other) if value is None else model.write(producer, other, offset)
        for place in PLACES:
            waiting = any(entry[1] == place for entry in model.open)
            assert pending.has("g", "t", place) is waiting
    found = {place: offsets.get("g", "t", place) for place in PLACES}
    assert {place: at.offset for place, at in found.items() if at is not None} == model.counting
    assert pending.has_any("g") is bool(model.open)
    assert sorted(pending.keys("g")) == sorted({key_of(place) for _, place, _ in model.open})
    assert pending.keys("g", "t") == pending.keys("g")
    assert pending.keys("g", "other") == []
    assert not pending.has_any("gg")


def _refuse(key: bytes, value: bytes | None) -> None:
    raise AssertionError(f"no offset: {key!r} {value!r}")


def test_a_marker_ends_nothing_that_was_written_after_it() -> None:
    pending = PendingOffsets()
    pending.add(7, [(key_of(0), b"x")], 5)
    assert pending.end(7, 4, committed=True) == []
    assert pending.has("g", "t", 0)
    assert pending.end(7, 6, committed=True) == [(key_of(0), b"x")]
    assert not pending


def test_an_offset_that_was_deleted_does_not_come_back_with_a_marker() -> None:
    pending = PendingOffsets()
    pending.add(7, [(key_of(0), b"x"), (key_of(1), b"y")], 10)
    pending.note_decided([(key_of(0), None)], 11)
    assert not pending.has("g", "t", 0)
    assert pending.end(7, 12, committed=True) == [(key_of(1), b"y")]
    assert not pending
