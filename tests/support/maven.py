"""Jars that Maven fetches, for tests and measurements beside other people's programs."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_SECONDS = 300
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>headrace</groupId><artifactId>fetched</artifactId><version>1</version>
<dependencies>
{}
</dependencies></project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class Artifact(NamedTuple):
    """A jar by its coordinates."""

    group: str
    name: str
    version: str


class Unavailable(Exception):
    """The jars cannot be had on this machine; the message is the reason."""


def fetched(directory: Path, artifacts: Iterable[Artifact], *, alone: bool = False) -> Path:
    """A directory with the jars and what they need, or with them `alone`; fetched once, unless the list changes."""
    wanted = _POM.format("\n".join(_DEPENDENCY.format(*one, _ALONE if alone else "") for one in artifacts))
    pom, ready = directory / "pom.xml", directory / ".ready"
    if ready.exists() and pom.read_text() == wanted:
        return directory.resolve()
    if shutil.which("mvn") is None:
        raise Unavailable("there is no Maven (mvn) on the path")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    pom.write_text(wanted)
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", "-DoutputDirectory=."]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.CalledProcessError as error:
        reason = next(iter((error.stdout + error.stderr).strip().splitlines()), "")
        raise Unavailable(f"Maven could not fetch them: {reason}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"Maven could not fetch them: {error}") from error
    ready.touch()
    return directory.resolve()
