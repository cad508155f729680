"""A newcomer with an empty virtual environment, the wheel, and the documents: every task by copy and paste.

Everything is done as the documents have it, but for the wheel's name and for ports, which are free ones here. It needs
the package index.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.support.process import free_port
from tests.support.tasks import COMMAND_SECONDS, ROOT, Task, Terminals, read_tasks

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
LIVES_ON: Final = "start"
"""The task whose process all later ones need."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is in this tree, built from a copy, so that nothing of an earlier build is in it."""
    copy, dist = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = [sys.executable, "-m", "uv", "build", "--quiet", "--wheel", "--out-dir", str(dist), str(copy)]
    subprocess.run(build, check=True, timeout=COMMAND_SECONDS)
    (built,) = dist.glob("headrace-*.whl")
    return built


def interpreter(version: str) -> str:
    """A Python of this version that can make environments; a skipped test where there is none."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for found in (sys.executable, shutil.which(f"python{version}"), *map(str, pyenv)):
        told = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2], getattr(sys, '_base_executable'))"
        if found is None:
            continue
        answer = subprocess.run([found, "-c", told], capture_output=True, text=True, check=False).stdout.split()
        if answer[:1] == [version]:
            return answer[1]
    pytest.skip(f"there is no Python {version} here")


class Newcomer:
    """A directory, an environment, and two terminals."""

    def __init__(self, directory: Path, wheel: Path, python: str) -> None:
        self._directory = directory
        self._ports = {port: str(free_port()) for port in ("9092", "8080", "8000")}
        self._python = python
        self._wheel = wheel
        self._environment = _clean(os.environ) | {
            "PATH": f"{directory / 'venv' / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(directory),
            "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
            "HEADRACE_BOOTSTRAP": f"127.0.0.1:{self._ports['9092']}",
        }

    def do(self, task: Task, lasting: ExitStack) -> None:
        """Take the steps of a task; what it leaves in the background ends with it, or with `lasting`."""
        Terminals(self._directory, self._environment, self._here).do(task, lasting if task.name == LIVES_ON else None)

    def _here(self, text: str) -> str:
        """What the documents say, with this machine's ports and this tree's wheel."""
        text = re.sub(r"127\.0\.0\.1:(9092|8080|8000)\b", lambda found: f"127.0.0.1:{self._ports[found[1]]}", text)
        text = text.replace("--port 8000", f"--port {self._ports['8000']}")
        text = text.replace("pip install headrace", f"pip install {self._wheel}").replace(
            "python3 ", f"{self._python} "
        )
        if text == "headrace up":
            return f"{text} --kafka-port {self._ports['9092']} --http-port {self._ports['8080']}"
        return text


def _clean(environment: Mapping[str, str]) -> dict[str, str]:
    mine = ("PYTHON", "VIRTUAL_ENV", "HEADRACE", "PYTEST", "COVERAGE")
    return {name: value for name, value in environment.items() if not name.startswith(mine)}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_newcomer_gets_through_every_task_by_copy_and_paste(version: str, wheel: Path, tmp_path: Path) -> None:
    python = interpreter(version)
    newcomer = Newcomer(tmp_path, wheel, python)
    tasks = read_tasks()
    assert len(tasks) >= 15
    with ExitStack() as lasting:
        for task in tasks:
            newcomer.do(task, lasting)


def test_the_wheel_says_where_the_project_is_and_holds_the_package_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [archive.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
    urls = re.findall(r"^Project-URL: (\w+), https://", metadata, re.MULTILINE)
    assert set(urls) >= {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if ".dist-info" not in top} == {"headrace", "pyspark_headrace.py"}
    assert "headrace/py.typed" in names
