"""Builds the wheel with setuptools, once Maven has fetched the jars and each was compared with its SHA-256.

Maven is asked, not an address of ours, so that a machine's own mirror and proxy are used.
"""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from setuptools import build_meta

JARS: Final = Path(__file__).parent / "src" / "headrace_zookeeper" / "jars"


class Jar(NamedTuple):
    """A jar by its coordinates, and what it must be."""

    group: str
    name: str
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.jar"


CONTENTS: Final = (
    Jar(
        "org.apache.zookeeper", "zookeeper", "3.9.5", "936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0"
    ),
    Jar(
        "org.apache.zookeeper",
        "zookeeper-jute",
        "3.9.5",
        "abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a",
    ),
    Jar("org.slf4j", "slf4j-api", "2.0.17", "7b751d952061954d5abfed7181c1f645d336091b679891591d63329c622eb832"),
    Jar("org.slf4j", "slf4j-simple", "2.0.17", "ddfea59ac074c6d3e24ac2c38622d2d963895e17f70b38ed4bdae4d780be6964"),
    Jar(
        "io.dropwizard.metrics",
        "metrics-core",
        "4.2.37",
        "3c70d19049d10f474ab803706b9c0677bcf5fd9e1afeb4f6c496f62e38b27678",
    ),
    Jar(
        "org.xerial.snappy",
        "snappy-java",
        "1.1.10.8",
        "50485d06037fea3d6e40c968386feeca6338cc9872e25549593ff3eb352cefcc",
    ),
)

_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>headrace</groupId><artifactId>zookeeper</artifactId><version>1</version>
<dependencies>{}</dependencies></project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{0.group}</groupId><artifactId>{0.name}</artifactId><version>{0.version}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
)


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """The wheel, with the jars in it."""
    fetch_jars()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(*_: object) -> str:
    """There is nothing to distribute but the jars."""
    raise RuntimeError("headrace-zookeeper is distributed as a wheel only: pip wheel packaging/zookeeper")


get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel


def fetch_jars() -> None:
    """Fill the directory `jars` with exactly the contents; those that are right already are not fetched again."""
    if all(_digest(JARS / jar.file) == jar.sha256 for jar in CONTENTS):
        return
    if shutil.which("mvn") is None:
        raise RuntimeError("Maven (mvn) fetches the jars of ZooKeeper, and is not on the path")
    shutil.rmtree(JARS, ignore_errors=True)
    with tempfile.TemporaryDirectory() as directory:
        pom = Path(directory) / "pom.xml"
        pom.write_text(_POM.format("".join(_DEPENDENCY.format(jar) for jar in CONTENTS)))
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={JARS}"]
        subprocess.run(command, check=True, timeout=600)
    for jar in CONTENTS:
        if _digest(JARS / jar.file) != jar.sha256:
            raise RuntimeError(f"{jar.file} is not the jar that was reviewed: its SHA-256 differs")


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""
