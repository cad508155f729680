from collections.abc import Iterable
from typing import cast

import pytest

from headrace.cli.console import Failure
from headrace.cli.positions import BEGINNING, END, Position, PositionKind, parse_position, resolve
from headrace.client.admin import Admin

NOW = 1_700_000_000_000


class FakeAdmin:
    """Partition 0 holds 10..100 with one record a millisecond from time 0; partition 1 is empty."""

    def start_offsets(self, _topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {p: (10, 0)[p] for p in partitions}

    def end_offsets(self, _topic: str, partitions: Iterable[int], committed_only: bool = False) -> dict[int, int]:
        return {p: (90 if committed_only else 100, 0)[p] for p in partitions}

    def offsets_at_time(self, _topic: str, partitions: Iterable[int], time_ms: int) -> dict[int, int]:
        return {p: (10 + time_ms if time_ms < 90 else -1, -1)[p] for p in partitions}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", BEGINNING),
        ("earliest", BEGINNING),
        ("end", END),
        ("0", Position(PositionKind.OFFSET, 0)),
        ("999999999999", Position(PositionKind.OFFSET, 999_999_999_999)),
        ("offset:1600000000000", Position(PositionKind.OFFSET, 1_600_000_000_000)),
        ("1600000000000", Position(PositionKind.TIME, 1_600_000_000_000)),
        ("time:5", Position(PositionKind.TIME, 5)),
        ("-10", Position(PositionKind.LAST, 10)),
        ("-10m", Position(PositionKind.TIME, NOW - 600_000)),
    ],
)
def test_positions(text: str, expected: Position) -> None:
    assert parse_position(text, "--from", NOW) == expected


@pytest.mark.parametrize("text", ["", "offset:x", "-", "time:", "٣"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(Failure):
        parse_position(text, "--from", NOW)


@pytest.mark.parametrize(
    ("position", "committed", "expected"),
    [
        (BEGINNING, False, {0: 10, 1: 0}),
        (END, False, {0: 100, 1: 0}),
        (END, True, {0: 90, 1: 0}),
        (Position(PositionKind.OFFSET, 3), False, {0: 10, 1: 0}),
        (Position(PositionKind.OFFSET, 50), False, {0: 50, 1: 0}),
        (Position(PositionKind.OFFSET, 500), False, {0: 100, 1: 0}),
        (Position(PositionKind.LAST, 5), False, {0: 95, 1: 0}),
        (Position(PositionKind.LAST, 500), False, {0: 10, 1: 0}),
        (Position(PositionKind.TIME, 7), False, {0: 17, 1: 0}),
        (Position(PositionKind.TIME, 95), False, {0: 100, 1: 0}),
    ],
)
def test_a_position_lies_within_each_partition(position: Position, committed: bool, expected: dict[int, int]) -> None:
    admin = cast(Admin, FakeAdmin())
    assert resolve(admin, "t", [0, 1], position, committed) == expected
