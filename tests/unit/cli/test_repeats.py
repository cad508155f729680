"""Log lines that repeat are counted, not written."""

from typing import Any

import pytest
import structlog

from headrace.cli.repeats import MOST_OF_EVENT, WINDOW_SECONDS, Repeats


class Lines:
    """What passes, at times that the test chooses."""

    def __init__(self) -> None:
        self.now = 0.0
        self.passed: list[dict[str, Any]] = []
        self._repeats = Repeats(lambda: self.now)

    def write(self, event: str, level: str = "warning", **fields: Any) -> bool:
        try:
            self.passed.append(dict(self._repeats(None, level, {"event": event, **fields})))
        except structlog.DropEvent:
            return False
        return True


@pytest.fixture
def lines() -> Lines:
    return Lines()


def test_the_same_line_passes_once_in_a_while_and_tells_how_often_it_came(lines: Lines) -> None:
    assert [lines.write("link closed", broker=2, seconds=n) for n in range(5)] == [True, *[False] * 4]
    lines.now = WINDOW_SECONDS
    assert lines.write("link closed", broker=2, seconds=9)
    assert lines.passed[-1]["repeated"] == 4
    lines.now *= 2
    assert lines.write("link closed", broker=2)
    assert "repeated" not in lines.passed[-1]


def test_another_subject_is_another_line(lines: Lines) -> None:
    assert lines.write("log truncated", log="orders-0")
    assert lines.write("log truncated", log="orders-1")


def test_a_reason_is_the_same_whatever_numbers_are_in_it(lines: Lines) -> None:
    assert lines.write("chore failed", reason="producer 17 is at 30")
    assert not lines.write("chore failed", reason="producer 18 is at 31")
    assert lines.write("chore failed", reason="no space left")


def test_a_flood_about_ever_new_subjects_is_bounded_and_counted(lines: Lines) -> None:
    passed = sum(lines.write("connection closed", peer=f"10.0.0.{n}") for n in range(1_000))
    assert passed == MOST_OF_EVENT
    assert lines.write("disk full")
    lines.now = WINDOW_SECONDS
    assert lines.write("connection closed", peer="10.0.1.1")
    assert lines.passed[-1]["repeated"] == 1_000 - MOST_OF_EVENT


def test_what_ends_the_process_and_what_was_asked_for_in_detail_always_passes(lines: Lines) -> None:
    for level in ("critical", "debug"):
        assert [lines.write("the broker ends", level) for _ in range(3)] == [True] * 3


def test_what_is_audited_is_not_left_out_because_others_make_a_noise(lines: Lines) -> None:
    assert all(lines.write("audit", "info", record=f"{n}") for n in range(10 * MOST_OF_EVENT))
