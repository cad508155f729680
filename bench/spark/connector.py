"""Spark's own Kafka connector, fetched by Maven where there is one: its jars are no part of PySpark."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from ..model import BenchError

CACHE: Final = Path(".venv") / "bench" / "connector"
_SECONDS: Final = 240
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>headrace</groupId><artifactId>bench</artifactId><version>1</version>
<dependencies>
{}
</dependencies></project>
"""
_DEPENDENCY: Final = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""
_JARS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.0"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)


@cache
def can_be_fetched() -> bool:
    """Whether there is a way to get it."""
    return _is_there() or shutil.which("mvn") is not None


def _is_there() -> bool:
    return len(list(CACHE.glob("*.jar"))) >= len(_JARS)


@cache
def jars() -> Path | None:
    """The directory of its jars, fetched on the first call; None where there is no Maven."""
    if not can_be_fetched():
        return None
    if not _is_there():
        CACHE.mkdir(parents=True, exist_ok=True)
        pom = CACHE / "pom.xml"
        pom.write_text(_POM.format("\n".join(_DEPENDENCY.format(*jar) for jar in _JARS)))
        command = ["mvn", "-q", "-f", str(pom), "dependency:copy-dependencies", "-DoutputDirectory=."]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            raise BenchError(f"Maven could not fetch Spark's connector: {error}; leave it out with --only") from error
    return CACHE.resolve()
