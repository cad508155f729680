"""Spark's own Kafka connector, fetched by Maven where there is one: its jars are no part of PySpark."""

from functools import cache
from pathlib import Path
from typing import Final

from tests import maven

from ..model import BenchError

CACHE: Final = Path(".venv") / "bench" / "connector"
_JARS: Final = (
    maven.Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    maven.Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    maven.Artifact("org.apache.kafka", "kafka-clients", "3.9.0"),
    maven.Artifact("org.apache.commons", "commons-pool2", "2.12.0"),
)


@cache
def can_be_fetched() -> bool:
    """Whether there is a way to get it."""
    return maven.can_be_had(CACHE)


@cache
def jars() -> Path | None:
    """The directory of its jars, fetched on the first call; None where there is no Maven."""
    if not can_be_fetched():
        return None
    try:
        return maven.fetched(CACHE, _JARS, alone=True)
    except maven.Unavailable as error:
        raise BenchError(f"Spark's connector: {error}; leave it out with --only") from error
