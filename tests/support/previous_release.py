"""The release before this one, out of the repository's history, for tests of upgrades."""

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

import pytest

COMMIT: Final = "bfaba6a1e20a28dfecb258a5de707f80bf333fb4"
"""Its commit. It knows no feature levels. To be renewed with each release, together with what its tests expect."""
_REPOSITORY: Final = Path(__file__).parents[2]


def previous_release(to: Path) -> tuple[str, ...]:
    """Unpack it to a directory: the words before a command that make Python find it instead of this one.

    A test is skipped where the history is not there.
    """
    command = ["git", "-C", str(_REPOSITORY), "archive", "--format=tar", COMMIT, "src"]
    try:
        archive = subprocess.run(command, check=False, capture_output=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("there is no git, which has the previous release")
    if archive.returncode:
        pytest.skip(f"the repository's history lacks the previous release, {COMMIT[:7]}: a shallow clone, or none")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(to, filter="data")
    return ("env", f"PYTHONPATH={to / 'src'}")
