"""Single values of a declaration that have a form of their own: lengths of time, triggers, watermarks, functions."""

import re
from pathlib import Path
from typing import Final

from headrace.config.names import shown

from .document import Section
from .functions import FunctionError, load_function
from .model import Function, Restart, Trigger, Watermark

_INTERVAL: Final = re.compile(r"(\d+\s*(milliseconds?|ms|seconds?|minutes?|hours?|days?|weeks?)\s*)+")
_UNITS: Final = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "s": 1.0, "milli": 0.001, "ms": 0.001}
_PART: Final = re.compile(r"(\d+)\s*(milli|ms|s|m|h|d|w)")
_CAUSES: Final = ("unreachable", "any")
_ENDING: Final = ("availablenow", "once")


def beside(text: str, directory: Path) -> str:
    """The path of a file beside the pipeline's, if there is one of this name; else the text as it is."""
    position = directory.resolve() / text.strip()
    return str(position) if "\n" not in text.strip() and len(text) < 255 and position.is_file() else text


def is_interval(text: str) -> bool:
    """Whether Spark takes the text as a length of time, such as `1 minute 30 seconds`."""
    return _INTERVAL.fullmatch(text.strip().lower()) is not None


def seconds_of(text: str) -> float:
    """The length of time that such a text means."""
    return sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text.strip().lower()))


def read_watermark(section: Section) -> Watermark | None:
    """The watermark of a source or a step."""
    inner = section.section("watermark")
    if inner is None:
        return None
    inner.allow(["column", "delay"])
    column, delay = inner.required("column", "time"), inner.required("delay", "10 minutes")
    if delay and not is_interval(delay):
        inner.wrong("delay", f"the delay must be a length of time such as 10 minutes, not '{shown(delay)}'")
    return Watermark(column=column, delay=delay)


def read_trigger(section: Section) -> Trigger | None:
    """The trigger of the pipeline or of a sink."""
    text = section.text("trigger")
    if text is None:
        return None
    if text.lower().replace("_", "") in _ENDING:
        return Trigger(available_now=True)
    if not is_interval(text):
        message = f"the trigger must be a length of time such as 5 seconds, or availableNow, not '{shown(text)}'"
        section.wrong("trigger", message)
    return Trigger(interval=text)


def read_restart(section: Section) -> Restart | None:
    """When a query that failed starts again: `never`, or a mapping."""
    node = section.node("restart")
    if node is None:
        return None
    if not isinstance(node.value, dict):
        if node.value != "never":
            section.wrong("restart", "'restart' must be never, or a mapping of on, delay, maxDelay and attempts")
        return Restart(attempts=0)
    inner = section.section("restart")
    assert inner is not None
    inner.allow(["on", "delay", "maxDelay", "attempts"])
    attempts = inner.text("attempts")
    if attempts is not None and not attempts.isdigit():
        inner.wrong("attempts", f"'attempts' must be a whole number, not '{shown(attempts)}'")
    delay = _seconds(inner, "delay", Restart().delay)
    return Restart(
        on=inner.choice("on", _CAUSES, "unreachable"),
        delay=delay,
        max_delay=max(_seconds(inner, "maxDelay", Restart().max_delay), delay),
        attempts=int(attempts) if attempts is not None and attempts.isdigit() else None,
    )


def _seconds(section: Section, key: str, default: float) -> float:
    text = section.text(key)
    if text is None:
        return default
    if not is_interval(text):
        section.wrong(key, f"'{key}' must be a length of time such as 5 seconds, not '{shown(text)}'")
        return default
    return seconds_of(text)


def read_function(section: Section, key: str, directory: Path) -> Function | None:
    """The function that a key names or holds."""
    node = section.node(key)
    if node is not None and callable(node.value):
        return node.value  # type: ignore[no-any-return]
    try:
        return load_function(section.text(key) or "", directory)
    except FunctionError as error:
        section.wrong(key, str(error))
        return None
