"""Marks that brokers leave in the store, and what they tell of its history."""

from random import Random

import pytest

from headrace.cluster.lineage import Lineage, LineageVerdict, Mark, compare
from headrace.cluster.store import StoreError

ONE, TWO, OTHER_TWO, THREE = Mark(1, "a"), Mark(2, "b"), Mark(2, "x"), Mark(3, "c")


@pytest.mark.parametrize(
    ("stored", "remembered", "verdict"),
    [
        (None, (), LineageVerdict.TOGETHER),
        (ONE, (), LineageVerdict.TOGETHER),
        (ONE, (ONE,), LineageVerdict.TOGETHER),
        (ONE, (ONE, TWO), LineageVerdict.TOGETHER),
        (TWO, (ONE, TWO), LineageVerdict.TOGETHER),
        (None, (ONE,), LineageVerdict.STORE_SET_BACK),
        (ONE, (TWO,), LineageVerdict.STORE_SET_BACK),
        (OTHER_TWO, (ONE, TWO), LineageVerdict.STORE_SET_BACK),
        (THREE, (ONE, TWO), LineageVerdict.DIRECTORY_SET_BACK),
    ],
)
def test_the_older_mark_tells_what_was_set_back(
    stored: Mark | None, remembered: tuple[Mark, ...], verdict: LineageVerdict
) -> None:
    assert compare(stored, remembered) is verdict


def test_a_mark_is_read_as_it_was_written() -> None:
    assert Mark.decode(TWO.encode()) == TWO
    with pytest.raises(StoreError):
        Mark.decode("nonsense")


def test_who_has_not_heard_of_a_set_back_that_others_told_of_tells_nothing_new() -> None:
    first = Lineage()
    assert first.is_news("")
    _, second = first.extension(Random(1))
    assert not second.is_news("")
    assert second.is_news(second.latest)
    assert first.is_news(second.latest)
