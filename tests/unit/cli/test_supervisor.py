"""Which children are started again, and after how long."""

from typing import cast

import pytest

from headrace.cli.console import ExitCode
from headrace.cli.supervisor import DEVELOPMENT, UNATTENDED, Child, Revival


def child(*, failures: int = 0, was_ready: bool = True) -> Child:
    return Child("broker 1", (), 0, None, cast("object", None), failures=failures, was_ready=was_ready)  # type: ignore[arg-type]


def test_pauses_grow_up_to_the_longest() -> None:
    assert [UNATTENDED.pause(failures) for failures in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert UNATTENDED.pause(10_000) == 30


def test_an_unattended_child_is_started_again_however_often_it_fails() -> None:
    assert UNATTENDED.may_follow(child(failures=10_000), ExitCode.FAILED)
    assert UNATTENDED.may_follow(child(was_ready=False), ExitCode.UNREACHABLE)


def test_what_a_wrong_option_has_ended_is_not_repeated() -> None:
    assert not UNATTENDED.may_follow(child(was_ready=False), ExitCode.USAGE)


@pytest.mark.parametrize("revival", [DEVELOPMENT, UNATTENDED])
def test_a_child_that_was_killed_comes_back(revival: Revival) -> None:
    assert revival.may_follow(child(), -9)


def test_in_development_what_never_got_ready_ends_everything_and_what_fails_again_and_again_too() -> None:
    assert not DEVELOPMENT.may_follow(child(was_ready=False), ExitCode.FAILED)
    assert DEVELOPMENT.may_follow(child(failures=4), ExitCode.FAILED)
    assert not DEVELOPMENT.may_follow(child(failures=5), ExitCode.FAILED)
