"""What went wrong, out of what Spark says about it: the cause in a line or two, without the road it took to us.

A Python error inside Spark comes as text: Spark's own words, a Python traceback, the state of the query, a Java
traceback. The cause is the last line of the Python traceback if there is one, and Spark's first words if not.
"""

import re
from pathlib import PurePath
from typing import Final

_TRACEBACK: Final = "Traceback (most recent call last):"
_ENDS: Final = ("\n\nJVM stacktrace:", "\n=== Streaming Query ===", "\n\tat ", "\n== SQL", "\nCaused by:")
_BY_PY4J: Final = "An error occurred while calling "
_PLAN: Final = re.compile(r";\n['!~]?[A-Z][A-Za-z]*\b.*", re.DOTALL)
"""The tree of a plan, from its root on."""
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w{5}.*", re.DOTALL)
_JAVA_CLASS: Final = re.compile(r"^(?:[a-z]\w*\.)+[A-Z][\w$]*(?:: |$)")
_STREAM_FAILED: Final = re.compile(r"^\((?:STREAM_FAILED)\) ")
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
_ERROR_LINE: Final = re.compile(r"^(?![ \t])([\w.]+)(?:: ?(.*))?", re.DOTALL)
_ANOTHER: Final = re.compile(
    r"\n(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\n"
)
# Spark's planner trips over its own clean-up when a source refuses to start; the refusal stands before it.
_TRIPPED: Final = "UnboundLocalError: cannot access local variable 'reader'"
_SPEAKS_FOR_ITSELF: Final = ("headrace.", "pyspark.errors.")


class PipelineFailed(Exception):
    """The pipeline cannot be started, or a query of it has ended by an error; the message tells the cause."""


class RunsElsewhere(PipelineFailed):
    """Another runner has the pipeline, or has taken it over: nothing is wrong with the pipeline itself."""


def cause_of(error: BaseException) -> str:
    """Why an error of Spark, or of code that Spark called, happened."""
    text = str(error)
    if _TRACEBACK in text:
        return _python_cause(text)
    if _is_sparks(error):
        return _spark_cause(text)
    if type(error).__module__.startswith(_SPEAKS_FOR_ITSELF) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_sparks(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in ("pyspark", "py4j")


def _spark_cause(text: str) -> str:
    if text.startswith(_BY_PY4J):
        text = text.partition("\n: ")[2]
    text = _PLAN.sub("", text.strip())
    for end in _ENDS:
        text = text.partition(end)[0]
    text = _SQLSTATE.sub("", text)
    return _JAVA_CLASS.sub("", _STREAM_FAILED.sub("", text)).strip()


def _python_cause(text: str) -> str:
    start = text.index(_TRACEBACK)
    text = _until_end(text[start:])
    blocks = [block for block in _ANOTHER.split(text) if _TRIPPED not in block] or [text]
    frames = _FRAME.findall(blocks[-1])
    return _error_in(blocks[-1]) + _user_line(frames)


def _until_end(text: str) -> str:
    for end in _ENDS:
        text = text.partition(end)[0]
    return _SQLSTATE.sub("", text).rstrip()


def _error_in(block: str) -> str:
    """The error that ends a traceback; without the name of its class where the words suffice."""
    lines = block.rstrip().splitlines()
    last = max((number for number, line in enumerate(lines) if line.startswith("  ")), default=0)
    found = _ERROR_LINE.match("\n".join(lines[last + 1 :]))
    if found is None:
        return lines[-1].strip()
    name, message = found[1], (found[2] or "").strip()
    if name.startswith(_SPEAKS_FOR_ITSELF) and message:
        return message
    return f"{name.rpartition('.')[2]}: {message}" if message else name


def _user_line(frames: list[tuple[str, str]]) -> str:
    """The line of the user's own code that raised, if it was theirs."""
    if not frames:
        return ""
    file, line = frames[-1]
    path = PurePath(file)
    if "site-packages" in path.parts or "headrace" in path.parts or not path.is_absolute():
        return ""
    return f" ({path.name}, line {line})"
