"""Python environments for Spark's workers: one with nothing in it, one with all but the project, and a packed one with
the project; and the project as a file for `addPyFile`.
"""

import shutil
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

import headrace

SOURCES = Path(headrace.__file__).parent.parent
BROUGHT_BY_SPARK = frozenset({"pyspark", "py4j"})


def bare_python(directory: Path) -> Path:
    """The Python of an environment without any package."""
    venv.create(directory, symlinks=True)
    return directory / "bin" / "python"


def python_with_dependencies(directory: Path) -> Path:
    """The Python of an environment with all that the project needs, but without the project."""
    python = bare_python(directory)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


def zipped_project(directory: Path) -> Path:
    """The project's Python files, as `addPyFile` takes them."""
    archive = directory / "headrace.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for source in [*sorted((SOURCES / "headrace").rglob("*.py")), SOURCES / "pyspark_headrace.py"]:
            file.write(source, source.relative_to(SOURCES))
    return archive


def packed_environment(directory: Path) -> Path:
    """An archive of an environment with the project and what it needs on Spark, but without Spark itself: what
    `pip install` would put there is copied from the environment of the tests.
    """
    environment = directory / "environment"
    venv.create(environment, symlinks=True)
    (target,) = environment.glob("lib/python*/site-packages")
    for one in _closure("headrace", {"spark"}, set()):
        _copy(one, target)
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCES / "headrace", target / "headrace", ignore=without_caches, dirs_exist_ok=True)
    shutil.copy(SOURCES / "pyspark_headrace.py", target)
    archive = directory / "environment.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as file:
        file.add(environment, arcname=".")
    return archive


def _closure(name: str, extras: set[str], seen: set[str]) -> Iterator[Distribution]:
    """A distribution that is installed here and all that it requires, each once."""
    key = name.lower().replace("_", "-")
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return
    if key not in seen and key != "headrace":
        yield found
    seen.add(key)
    for text in found.requires or ():
        wanted = Requirement(text)
        applies = wanted.marker is None or any(wanted.marker.evaluate({"extra": one}) for one in (*extras, ""))
        again = wanted.name.lower().replace("_", "-")
        if applies and again not in BROUGHT_BY_SPARK and (again not in seen or wanted.extras):
            yield from _closure(wanted.name, set(wanted.extras), seen)


def _copy(one: Distribution, target: Path) -> None:
    for file in one.files or ():
        source = Path(str(file.locate()))
        if ".." in file.parts or "__pycache__" in file.parts or "tests" in file.parts or not source.is_file():
            continue
        goal = target / file
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, goal)
