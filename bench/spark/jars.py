"""Parts of Spark that PySpark does not bring along, fetched by Maven where it can be reached."""

from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final

from tests.support import maven

from ..model import Skipped

CACHE: Final = Path(".venv") / "bench" / "jars"
_SPARK: Final = "org.apache.spark"


class Part(Enum):
    """A part of Spark by its jars, of the newest versions up to PySpark's that were there to be tried."""

    CONNECTOR = (
        maven.Artifact(_SPARK, "spark-sql-kafka-0-10_2.13", "4.2.0"),
        maven.Artifact(_SPARK, "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        maven.Artifact("org.apache.kafka", "kafka-clients", "3.9.0"),
        maven.Artifact("org.apache.commons", "commons-pool2", "2.12.0"),
    )
    AVRO = (maven.Artifact(_SPARK, "spark-avro_2.13", "4.1.1"),)
    PROTOBUF = (maven.Artifact(_SPARK, "spark-protobuf_2.13", "4.1.1"),)


def require(part: Part) -> None:
    """Raise `Skipped` where a part cannot be had."""
    found = _fetched(part)
    if not isinstance(found, Path):
        raise Skipped(f"{part.value[0].name} is no part of PySpark: {found}")


def fetched() -> list[Path]:
    """The jars that can be had, of all parts."""
    return [jar for part in Part if isinstance(found := _fetched(part), Path) for jar in found.glob("*.jar")]


@cache
def _fetched(part: Part) -> Path | str:
    """The directory of its jars, or why there is none."""
    try:
        return maven.fetched(CACHE / part.name.lower(), part.value, alone=True)
    except maven.Unavailable as reason:
        return str(reason)
