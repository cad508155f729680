"""What is said of workers that cannot use the source."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import headrace.formats
import headrace.spark
from headrace.spark.registration import WorkerFinding, WorkerReport, finding_of, message_of
from headrace.spark.worker_probe import REQUIRED, report

SPARK = Path(headrace.spark.__file__).parent
FORMATS = Path(headrace.formats.__file__).parent
NOT_ASKED_FOR = frozenset({"headrace", "pyspark_headrace", "pyspark", "numpy", "llvmlite"})
"""The package itself, which is asked for by name, what Spark brings, and what numba requires."""

GOOD = WorkerReport(
    host="node-7", python="3.11.2", executable="/usr/bin/python3", version="1.2.0", missing=[], problem=None
)


def test_a_worker_with_the_same_version_is_fine() -> None:
    assert finding_of("executor", GOOD, "1.2.0") is None


def test_a_worker_that_lacks_modules_names_them_with_its_host_and_python() -> None:
    found = finding_of("executor", replace(GOOD, version=None, missing=["headrace", "numba"]), "1.2.0")
    assert found == WorkerFinding(
        "executor", "executor on node-7 (/usr/bin/python3, Python 3.11.2): no module headrace, numba"
    )


def test_a_worker_that_was_sent_the_package_alone_names_what_does_not_come_with_it() -> None:
    compiled = finding_of("executor", replace(GOOD, missing=["numba", "pyarrow"]), "1.2.0")
    assert compiled is not None
    assert compiled.words.endswith(
        "headrace is there, but no module numba, pyarrow: addPyFile and --py-files do not bring compiled packages"
    )
    half = finding_of("executor", replace(GOOD, missing=["pyspark_headrace"]), "1.2.0")
    assert half is not None
    assert half.words.endswith("a zip for addPyFile needs pyspark_headrace.py beside headrace/")


def test_a_worker_with_another_version_or_a_broken_installation_is_told_of() -> None:
    another = finding_of("server", GOOD, "1.3.0")
    assert another is not None
    assert another.words.endswith("headrace 1.2.0 there, 1.3.0 here")
    broken = finding_of("driver", replace(GOOD, problem="ImportError: libz.so"), "1.2.0")
    assert broken is not None
    assert broken.words.endswith("the source does not load there: ImportError: libz.so")


def test_the_message_says_each_thing_once_and_what_to_do_for_those_concerned() -> None:
    message = message_of(
        [WorkerFinding("executor", "a"), WorkerFinding("executor", "b"), WorkerFinding("executor", "a")]
    )
    assert message.splitlines()[1:3] == ["- a", "- b"]
    assert "spark.archives" in message
    assert "Spark Connect" not in message
    assert "docs/spark-deployment.md" in message


def test_this_environment_reports_nothing_missing() -> None:
    here = WorkerReport(**json.loads(report()))
    assert finding_of("driver", here, headrace.__version__) is None
    assert here.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}")


@pytest.mark.slow
def test_workers_are_asked_for_the_packages_that_the_source_and_the_sink_import_and_no_others() -> None:
    code = (
        "import importlib, pkgutil, sys, headrace.formats.writing, pyspark_headrace\n"
        "import headrace.spark.sink, headrace.spark.source\n"
        "spark = headrace.spark\n"
        "for package in (spark, headrace.formats, headrace.formats.writing, spark.sink, spark.source):\n"
        "    for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(module.name) if not module.ispkg else None\n"
        "print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('headrace')))\n"
    )
    files = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    imported = {name for file in files for name in _imports(Path(file))}
    asked_for = {name.partition(".")[0] for name in REQUIRED}
    assert imported - sys.stdlib_module_names - NOT_ASKED_FOR == asked_for


def _imports(file: Path) -> Iterator[str]:
    """The packages that a module imports: when it is loaded, and of those for Spark alone also later."""
    body = ast.parse(file.read_text())
    for node in ast.walk(body) if {SPARK, FORMATS} & set(file.parents) else body.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
