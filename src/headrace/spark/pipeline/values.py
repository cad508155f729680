"""Single values of a declaration that have a form of their own: lengths of time, triggers, watermarks, functions."""

import re
from pathlib import Path
from typing import Final

from headrace.config.names import shown

from .document import Section
from .functions import FunctionError, load_function
from .model import Function, Trigger, Watermark

_INTERVAL: Final = re.compile(r"(\d+\s*(milliseconds?|ms|seconds?|minutes?|hours?|days?|weeks?)\s*)+")
_ENDING: Final = ("availablenow", "once")


def is_interval(text: str) -> bool:
    """Whether Spark takes the text as a length of time, such as `1 minute 30 seconds`."""
    return _INTERVAL.fullmatch(text.strip().lower()) is not None


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
