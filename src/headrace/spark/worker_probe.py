"""What a Python worker of Spark has: found out in the worker itself, also where this package is missing.

This module is pickled by value. It imports nothing of the package, so that it runs where there is none.
"""

import importlib
import json
import platform
import socket
import sys
from importlib.util import find_spec
from typing import Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

PACKAGE: Final = "headrace"
ENTRY: Final = "pyspark_headrace"
"""The module that every worker loads for the source and the sink."""
REQUIRED: Final = ("cramjam", "crc32c", "google.protobuf", "jsonschema", "kio", "numba", "pyarrow")
"""Modules of other packages that the source, the sink and their formats import in a worker."""
REPORT: Final = "report"


def report() -> str:
    """What this process has, as JSON: see `registration.WorkerReport`."""
    missing = [name for name in (PACKAGE, ENTRY, *REQUIRED) if not _is_installed(name)]
    return json.dumps(
        {
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "executable": sys.executable,
            "version": _version(),
            "missing": missing,
            "problem": None if missing else _problem(),
        }
    )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def _version() -> str | None:
    try:
        return str(importlib.import_module(PACKAGE).__version__)
    except (ImportError, AttributeError):
        return None


def _problem() -> str | None:
    try:
        importlib.import_module(ENTRY)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


class WorkerProbe(DataSource):
    """A source without rows: the process in which Spark plans reads and writes says in its schema what it has."""

    @classmethod
    def name(cls) -> str:
        return "headrace-worker-probe"

    def schema(self) -> StructType:
        return StructType([StructField(REPORT, StringType(), metadata={REPORT: report()})])
