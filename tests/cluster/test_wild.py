"""A share of the wild runs; `make chaos` has many more of them, and all safeguards switched off in turn."""

import subprocess
import sys

import pytest

from .wild.command import play

SEEDS = 15
FOUND_SOON = ("deletion_on_the_isr", "start_inside_a_batch", "known_deletions", "sync_before_ack")
"""Safeguards whose lack is found within a few seeds."""


def run_wild(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as the command does it: the same seeds give the same runs there."""
    command = [sys.executable, "-m", "tests.cluster.wild", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4 * SEEDS, SEEDS))
def test_wild_runs_keep_every_promise(first: int) -> None:
    ran = run_wild("--seeds", f"{first}:{first + SEEDS}")
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("safeguard", FOUND_SOON)
def test_wild_runs_find_a_safeguard_that_is_switched_off(safeguard: str) -> None:
    ran = run_wild("--seeds", "0:40", "--without", safeguard, "--stop")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"--without {safeguard}" in ran.stdout, "the command that replays it is printed"


@pytest.mark.parametrize("seed", [12, 13, 17])
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    one = play(seed)
    kept = [bytearray(size) for size in range(5_000)]  # so that everything lies elsewhere in memory
    other = play(seed)
    assert one.events == other.events
    assert one.faults == other.faults
    assert kept
