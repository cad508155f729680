"""The loops read and write no memory but theirs."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long


@pytest.mark.slow
def test_no_example_makes_a_loop_reach_out_of_bounds() -> None:
    done = subprocess.run([sys.executable, "-m", f"{__package__}.checked"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
