"""Dates and times as Spark reads them from text, and local times as Java places them."""

import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MICROS: Final = 1_000_000
DAY: Final = 86_400 * MICROS

_EPOCH: Final = datetime(1970, 1, 1)
_ARROW_KNOWS_UNTIL: Final = (datetime(2037, 1, 1) - _EPOCH) // timedelta(microseconds=1)
"""Arrow goes by the changes of a zone's clock that its file lists, and by none that it gives the rule for."""
_MOST_MICROS: Final = 2**63
_MOST_DAYS: Final = 2**31
_LARGEST_OFFSET: Final = 18 * 3600

_DATE: Final = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_MOMENT: Final = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?\s*(\D.*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2})(?::?(\d{2}))?)?", re.ASCII)
_NAMED: Final = {"Z": "UTC", "UT": "UTC", "GMT": "UTC"}
_DAYS_OF: Final = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FEBRUARY: Final = 2


def days_of_text(text: str) -> int:
    """Days since the epoch; the time of day is not looked at. ValueError if it is no date."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        raise ValueError
    year, month, day = (int(part) if part else 1 for part in match.groups())
    return _within(days_of(year, month, day), _MOST_DAYS)


def days_of(year: int, month: int, day: int) -> int:
    """Days since the epoch of a date in the calendar that has always been the Gregorian."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _DAYS_OF[month] + (leap and month == _FEBRUARY):
        raise ValueError
    years = year - (month <= _FEBRUARY)
    months = (month + 9) % 12
    return years * 365 + years // 4 - years // 100 + years // 400 + (153 * months + 2) // 5 + day - 1 - 719_468


def micros_of_text(text: str, zone: str | None) -> int:
    """Microseconds since the epoch, a time without a zone being of this one. With no zone given, the time on the
    clock, and a text with a zone is none. ValueError if it is no time.
    """
    match = _MOMENT.fullmatch(text.strip())
    if match is None:
        raise ValueError
    year, month, day, hour, minute, second, fraction, own = match.groups()
    clock = [int(part) if part else 0 for part in (hour, minute, second)]
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59 or (own and zone is None):
        raise ValueError
    days = days_of(int(year), int(month or 1), int(day or 1))
    micros = (
        days * DAY + (clock[0] * 3600 + clock[1] * 60 + clock[2]) * MICROS + int((fraction or "")[:6].ljust(6, "0"))
    )
    return _within(_utc(micros, own, zone), _MOST_MICROS)


def _within(number: int, limit: int) -> int:
    if not -limit <= number < limit:
        raise ValueError
    return number


def _utc(micros: int, own: str | None, zone: str | None) -> int:
    if zone is None:
        return micros
    offset = _OFFSET.fullmatch(own.strip()) if own else None
    if offset is None:
        return instant(micros, _zone(own.strip() if own else zone))
    sign, hours, minutes, seconds = offset.groups()
    if int(minutes or 0) > 59 or int(seconds or 0) > 59:
        raise ValueError
    size = int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    if size > _LARGEST_OFFSET:
        raise ValueError
    return micros - (size if sign == "+" else -size) * MICROS


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(_NAMED.get(name, name))
    except (KeyError, OSError) as error:
        raise ValueError(name) from error


def utc_of_local(micros: Any, local: Any, zone: str) -> Any:
    """Microseconds since the epoch in UTC for those of a zone's clock, where `local`; 0 elsewhere.

    A time that a zone's clock shows twice is the earlier; one that it skips is counted on from before the gap.
    """
    known = local & (micros < _ARROW_KNOWS_UNTIL)
    times = pa.array(micros, pa.timestamp("us"), mask=~known)
    try:
        zoned = pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="raise")
    except pa.ArrowInvalid:
        utc, rest = np.zeros(len(micros), np.int64), local
    else:
        utc, rest = np.array(pc.fill_null(zoned.cast(pa.int64()), 0)), local & ~known
    if rest.any():
        rules = ZoneInfo(zone)
        distinct, places = np.unique(micros[rest], return_inverse=True)
        utc[rest] = np.array([instant(value, rules) for value in distinct.tolist()], np.int64)[places]
    return utc


def instant(micros: int, zone: ZoneInfo) -> int:
    """The same for one time."""
    try:
        offset = (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=zone).utcoffset()
    except OverflowError:  # a year that datetime does not have: the first rule of a zone is good for none of them
        return micros
    return micros - (offset or timedelta()) // timedelta(microseconds=1)
