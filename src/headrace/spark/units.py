"""Numbers, times and sizes as Spark's users write them. Each reader raises `ValueError` with what it would take."""

import re
from collections.abc import Callable
from typing import Final

_TIMES_MS: Final = {
    "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip
_SIZES: Final = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


def boolean(text: str) -> bool:
    """`true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        if not (re.fullmatch(r"[+-]?[0-9]{1,19}", text) and least <= int(text) <= most):
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text)

    return read


def milliseconds(text: str) -> int:
    """A length of time: `500ms`, `10s`, `15m`, `1h`, or a number of milliseconds."""
    number, unit = _quantity(text)
    if unit and unit not in _TIMES_MS:
        raise ValueError("a time such as 500ms, 10s, 15m or 1h")
    return int(number * _TIMES_MS[unit or "ms"])


def byte_count(text: str) -> int:
    """A size: `512k`, `64m`, `1g`, `10mb`, or a number of bytes; at least 1."""
    number, unit = _quantity(text)
    unit = unit if len(unit) < 2 else unit.removesuffix("b").removesuffix("i")
    size = number * _SIZES.get(unit or "b", 0)
    if size < 1:
        raise ValueError("a size such as 512k, 64m or 1g")
    return size


def _quantity(text: str) -> tuple[int, str]:
    found = re.fullmatch(r"([0-9]{1,18})\s*([a-z]*)", text.lower())
    if found is None:
        raise ValueError("a whole number and its unit")
    return int(found[1]), found[2]
