"""Where the jars of a ZooKeeper server for development come from: the first of four places that has all of them.

1. ZOOKEEPER_HOME, an unpacked release of Apache ZooKeeper
2. the extra `zookeeper`: the package headrace-zookeeper, which is nothing but the jars (4 MB)
3. the extra `spark`: PySpark's jars have them
4. Debian's and Ubuntu's package `zookeeper`

Nothing is downloaded.
"""

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from .console import Failure

DEBIAN: Final = Path("/usr/share/java")
_PACKAGES: Final = ("headrace_zookeeper", "pyspark")
_JARS: Final = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
_LOGGING: Final = (
    ("slf4j-simple",),
    ("log4j-slf4j2-impl", "log4j-api", "log4j-core"),
    ("logback-classic", "logback-core"),
)
"""What SLF4J may write with: any one of them, and its parts."""


def find_jars() -> list[Path]:
    """The class path of a ZooKeeper server; a failure in one line that names every way to get one."""
    home = os.environ.get("ZOOKEEPER_HOME")
    if home:
        return _of_release(Path(home))
    for directory in _directories():
        jars = _jars_in(directory)
        if jars:
            return jars
    raise Failure(
        'there is no ZooKeeper here to start: `pip install "headrace[zookeeper]"` (4 MB) or `apt install zookeeper` '
        "brings one, ZOOKEEPER_HOME=DIR names an unpacked release, "
        "and `headrace up --store zookeeper://HOST:PORT` uses one that runs already"
    )


def _of_release(home: Path) -> list[Path]:
    jars = _jars_in(home / "lib")
    if not jars:
        raise Failure(f"ZOOKEEPER_HOME={home}: there is no ZooKeeper in {home / 'lib'}; unpack a binary release there")
    return [home / "conf", *jars]  # the settings of its logs


def _directories() -> Iterator[Path]:
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is not None and spec.origin:
            yield Path(spec.origin).parent / "jars"
    yield DEBIAN


def _jars_in(directory: Path) -> list[Path]:
    """All that is needed, or nothing."""
    jars = _each(directory, _JARS)
    for binding in _LOGGING:
        logging = _each(directory, binding)
        if jars and logging:
            return jars + logging
    return []


def _each(directory: Path, names: Sequence[str]) -> list[Path]:
    found = [_newest(directory, name) for name in names]
    return [] if None in found else [jar for jar in found if jar is not None]


def _newest(directory: Path, name: str) -> Path | None:
    return max([*directory.glob(f"{name}.jar"), *directory.glob(f"{name}-[0-9]*.jar")], default=None)
