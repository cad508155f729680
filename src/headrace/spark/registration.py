"""`register(spark)`: make `format("headrace")` known to a session, and find out whether its workers can use it.

Python code of the source and the sink runs in three kinds of processes: the driver, or the client of Spark Connect,
which calls `register`; the workers beside Spark's driver, or beside the server of Spark Connect, that plan reads and
commit writes; the workers of executors, that read and write. Spark starts the workers, and by itself takes `python3`
from the path, whatever Python the driver has.
"""

import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import headrace

from .errors import QueryError

_PYTHON_OF_SESSION: Final = "spark.sql.execution.pyspark.python"
"""Spark's setting for the Python of executors, which the Python for planning does not follow."""
_PYTHON_OF_APPLICATION: Final = "spark.pyspark.python"
_FALLBACK: Final = "python3"
_MAX_PROBES: Final = 64
_PROBES_BEHIND_CONNECT: Final = 8
"""Tasks that look at executors where the number of their cores is not known."""
_REMEDIES: Final = {
    "driver": "run the driver with a Python that has headrace[spark], and pass PYTHONPATH on if it is needed",
    "server": "start the server of Spark Connect with a Python that has headrace[spark], by PATH or PYSPARK_PYTHON",
    "executor": (
        "give executors a packed environment (spark.archives=environment.tar.gz#environment and "
        "PYSPARK_PYTHON=./environment/bin/python), an image, or `pip install headrace[spark]` on each node"
    ),
}
_SECTION: Final = 'see "What runs where" in docs/spark-deployment.md'


class RegistrationError(QueryError):
    """Workers of Spark cannot use the source and the sink; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a Python worker says of itself."""

    host: str
    python: str
    executable: str
    version: str | None
    """The version of this package, if it is there."""
    missing: Sequence[str]
    """Modules that are not installed."""
    problem: str | None
    """Why the source does not load, though no module is missing."""


@dataclass(frozen=True, slots=True)
class WorkerFinding:
    """Something that keeps workers of a role (`driver`, `server`, `executor`) from using the source."""

    role: str
    words: str


def register(spark: Any, *, check: bool = True) -> None:
    """Make `format("headrace")` known to a Spark session, of this process or of Spark Connect.

    Reads are planned and writes committed by the Python that calls this; executors use `PYSPARK_PYTHON` or what Spark's
    settings say, and on this machine the same Python if nothing is said. `RegistrationError` when the workers lack the
    package, one of its dependencies or its version; asking executors takes one small job, unless all is on this
    machine. `check=False` asks nobody.
    """
    is_connect = _is_connect(spark)
    executors_differ = _is_set(spark, _PYTHON_OF_SESSION) if is_connect else _choose_pythons(spark)
    if check:
        findings = _check_planner(spark, "server" if is_connect else "driver")
        if not findings and (executors_differ or not _is_local(spark)):
            findings = _check_executors(spark, _PROBES_BEHIND_CONNECT if is_connect else _cores(spark))
        if findings:
            raise RegistrationError(message_of(findings))
    from pyspark_headrace import DefaultSource

    _register(spark, DefaultSource)


def message_of(findings: Iterable[WorkerFinding]) -> str:
    """All that is wrong, each once, and what to do about it."""
    found = list(dict.fromkeys(findings))
    remedies = [_REMEDIES[role] for role in dict.fromkeys(one.role for one in found)]
    lines = [
        "Spark's Python workers cannot use headrace:",
        *(f"- {one.words}" for one in found),
        f"What to do: {'; '.join(remedies)}; {_SECTION}",
    ]
    return "\n".join(lines)


def finding_of(role: str, one: WorkerReport, version: str) -> WorkerFinding | None:
    """What keeps a worker from working together with this version of the package."""
    if one.missing:
        trouble = _lack(one)
    elif one.problem is not None:
        trouble = f"the source does not load there: {one.problem}"
    elif one.version != version:
        trouble = f"headrace {one.version} there, {version} here"
    else:
        return None
    return WorkerFinding(role, f"{_role_name(role)} on {one.host} ({one.executable}, Python {one.python}): {trouble}")


def _lack(one: WorkerReport) -> str:
    """What is missing, and why it may be, if the package itself is there: it was sent with `addPyFile`."""
    from .worker_probe import ENTRY

    modules = f"no module {', '.join(one.missing)}"
    if one.version is None:
        return modules
    if list(one.missing) == [ENTRY]:
        return f"headrace is there, but {modules}: a zip for addPyFile needs {ENTRY}.py beside headrace/"
    return f"headrace is there, but {modules}: addPyFile and --py-files do not bring compiled packages"


def _role_name(role: str) -> str:
    return {"driver": "planning beside the driver", "server": "the server of Spark Connect"}.get(role, role)


def _is_connect(spark: Any) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _choose_pythons(spark: Any) -> bool:
    """Decide on the Python of executors, for a session of this process; whether it is another one than ours."""
    context = spark.sparkContext
    chosen = (
        spark.conf.get(_PYTHON_OF_SESSION, None)
        or spark.conf.get(_PYTHON_OF_APPLICATION, None)
        or os.environ.get("PYSPARK_PYTHON")
        or (sys.executable if _is_local(spark) and context.pythonExec == _FALLBACK else context.pythonExec)
    )
    context.pythonExec = chosen
    if chosen == sys.executable:
        return False
    spark.conf.set(_PYTHON_OF_SESSION, chosen)
    return True


def _is_local(spark: Any) -> bool:
    """Whether tasks run in the JVM of the driver, so that executors have what the driver has."""
    master = spark.conf.get("spark.master", "") or ""
    return master.startswith("local") and not master.startswith("local-cluster")


def _is_set(spark: Any, name: str) -> bool:
    return bool(spark.conf.get(name, None))


def _cores(spark: Any) -> int:
    return min(max(int(spark.sparkContext.defaultParallelism), 1), _MAX_PROBES)


def _register(spark: Any, source: type) -> None:
    """Register a source whose planning is done by the Python that runs this, which has what it needs."""
    if _is_connect(spark):
        spark.dataSource.register(source)
        return
    context = spark.sparkContext
    for_executors = context.pythonExec
    context.pythonExec = sys.executable or for_executors
    try:
        spark.dataSource.register(source)
    finally:
        context.pythonExec = for_executors


def _check_planner(spark: Any, role: str) -> list[WorkerFinding]:
    with _pickled_by_value():
        from . import worker_probe

        try:
            _register(spark, worker_probe.WorkerProbe)
            (field,) = spark.read.format(worker_probe.WorkerProbe.name()).load().schema.fields
        except Exception as error:
            return [_failed(role, error)]
    return _findings(role, [field.metadata[worker_probe.REPORT]])


def _check_executors(spark: Any, tasks: int) -> list[WorkerFinding]:
    from pyspark.sql.functions import udf

    with _pickled_by_value():
        from . import worker_probe

        look = udf(worker_probe.report, "string", useArrow=False).asNondeterministic()
        try:
            rows = spark.range(0, tasks, 1, tasks).select(look().alias(worker_probe.REPORT)).collect()
        except Exception as error:
            return [_failed("executor", error)]
    return _findings("executor", [row[worker_probe.REPORT] for row in rows])


def _findings(role: str, reports: Iterable[str]) -> list[WorkerFinding]:
    parsed = (WorkerReport(**json.loads(text)) for text in dict.fromkeys(reports))
    findings = (finding_of(role, one, headrace.__version__) for one in parsed)
    return [one for one in findings if one is not None]


def _failed(role: str, error: Exception) -> WorkerFinding:
    from .pipeline.failures import cause_of  # workers load this module too, and have no use for pipelines

    here = f"{sys.executable}, Python {platform.python_version()}"
    return WorkerFinding(role, f"{_role_name(role)}: {cause_of(error)} (here: {here})")


@contextmanager
def _pickled_by_value() -> Iterator[None]:
    """Within the block, functions and classes of the probe are sent to workers whole."""
    from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value

    from . import worker_probe

    register_pickle_by_value(worker_probe)
    try:
        yield
    finally:
        unregister_pickle_by_value(worker_probe)
