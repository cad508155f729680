"""Every compiled loop on some thousand payloads that nobody would send; `make chaos` runs millions."""

import subprocess
import sys
from typing import Final

import pytest

from tests.fuzz import command

_CASES: Final = {"checked": 12_000, "native": 12_000}
_LATEST: Final = 500.0


@pytest.mark.slow
@pytest.mark.parametrize("build", command.BUILDS)
def test_hostile_bytes_are_read_right_or_bad_and_nothing_beyond_them_is_touched(build: str) -> None:
    found = command.fuzz([build], list(command.TARGETS), cases=_CASES[build], seconds=_LATEST, jobs=1)
    assert found.failures == []
    assert found.cases.keys() == command.TARGETS.keys()


@pytest.mark.slow
def test_the_checked_build_refuses_what_is_out_of_bounds() -> None:
    program = [sys.executable, "-m", "tests.fuzz.trespass"]
    subprocess.run(program, check=True, env=command.environment("checked"), timeout=_LATEST)
