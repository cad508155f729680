"""A share of the wild runs; `make chaos` has many more of them."""

import subprocess
import sys

import pytest

from .wild.command import play

SEEDS = 15


def run_seeds(seeds: range) -> None:
    """In a process of its own, as the command does it: the same seeds give the same runs there."""
    asked = f"{seeds.start}:{seeds.stop}"
    ran = subprocess.run(
        [sys.executable, "-m", "tests.cluster.wild", "--seeds", asked], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4 * SEEDS, SEEDS))
def test_wild_runs_keep_every_promise(first: int) -> None:
    run_seeds(range(first, first + SEEDS))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(1000, 1600, 100))
def test_many_wild_runs_keep_every_promise(first: int) -> None:
    run_seeds(range(first, first + 100))


def test_the_same_seed_gives_the_same_run() -> None:
    one, other = play(12), play(12)
    assert one.events == other.events
    assert one.faults == other.faults
