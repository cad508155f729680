"""Times and amounts as people write them: `7d`, `1h`, `10MB`, `1GiB`."""

import re
from collections.abc import Mapping
from typing import Final

from .console import bad_input

_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?(?:/s)?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")

_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)")
_MILLISECONDS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_NAMED_TIMES: Final = {".ms": 1, ".seconds": 1000, ".minutes": 60_000, ".hours": 3_600_000}
_NEVER: Final = 2**62
"""From here on a number means that there is no limit."""
_NUMBER: Final = re.compile(r"\s*-?\d*\s*")


def amount(text: str, option: str) -> int:
    """`500000`, `10M`, `1.5GiB` in bytes; K, M, G are thousands, Ki, Mi, Gi are 1024s."""
    size = _bytes(text)
    if not size:
        raise bad_input(f"{option} '{text}' is not a number of bytes; write it as 5000000, 5M or 5MiB")
    return size


def span_ms(text: str, option: str) -> int:
    """`90s`, `10m`, `2h`, `7d` in milliseconds; a number alone counts seconds."""
    found = _TIME.fullmatch(text.strip()) or _TIME.fullmatch(f"{text.strip()}s")
    if found is None:
        raise bad_input(f"{option} '{text}' is not a span of time; write it as 90s, 10m, 2h or 7d")
    return round(float(found[1]) * _MILLISECONDS[found[2]])


def _bytes(text: str) -> int | None:
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        return None
    base = 1024 if found[3] else 1000
    return round(float(found[1]) * float(base ** _POWERS[found[2].lower()]))


def shown_bytes(size: float) -> str:
    """A number of bytes for people."""
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError(size)


def without_units(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as brokers take them: plain numbers, in the unit that is in the setting's name."""
    return {name: _plain(name, text) for name, text in settings.items()}


def _plain(name: str, text: str) -> str:
    if _NUMBER.fullmatch(text):
        return text
    for ending, unit in _NAMED_TIMES.items():
        if name.endswith(ending):
            return _in_unit(name, text, unit)
    if name.endswith((".bytes", ".rate", ".buffer.size")):
        size = _bytes(text)
        if size is None:
            raise bad_input(f"{name}={text} is not a number of bytes; write it as 1000000, 10MB or 1GiB")
        return str(size)
    return text


def _in_unit(name: str, text: str, unit: int) -> str:
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise bad_input(f"{name}={text} is not a time; write it as 60000, 30s, 5m, 12h, 7d or 2w, or -1 for no limit")
    milliseconds = float(found[1]) * _MILLISECONDS[found[2]]
    if milliseconds % unit:
        raise bad_input(f"{name}={text} is not a whole number of {name.rpartition('.')[2]}")
    return str(int(milliseconds // unit))


def shown_setting(name: str, text: str | None) -> str:
    """A value as it is, and in a unit that people read, where its name tells what it is."""
    if text is None:
        return "-"
    if not text.isdecimal() or not int(text) or int(text) >= _NEVER:
        return text
    for ending, unit in _NAMED_TIMES.items():
        if name.endswith(ending) and (shown := _in_words(int(text) * unit)) not in ("", f"{text}{ending[1:]}"):
            return f"{text} ({shown})"
    if name.endswith(".bytes") and int(text) >= 1024:
        return f"{text} ({shown_bytes(int(text))})"
    return text


def _in_words(milliseconds: int) -> str:
    """In the largest unit that it is a whole number of."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds % _MILLISECONDS[unit] == 0:
            return f"{milliseconds // _MILLISECONDS[unit]}{unit}"
    return ""
