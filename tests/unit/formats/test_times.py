"""Times of a zone's clock become moments, for whole columns as for single values."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from headrace.formats.times import utc_of_local

EPOCH = datetime(1970, 1, 1)
MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Sydney", "Asia/Kolkata", "UTC"])
@pytest.mark.parametrize("with_gap", [False, True])
def test_clocks_change_by_their_rules_also_after_2037(zone: str, with_gap: bool) -> None:
    years = (1850, 1950, 2024, 2036, 2037, 2038, 2050, 2224, 9998)
    times = [datetime(year, month, 15, 12) for year in years for month in (1, 7)]
    if with_gap:
        times.append(datetime(2024, 3, 31, 2, 30))
    micros = np.array([(time - EPOCH) // MICROSECOND for time in times], np.int64)
    found = utc_of_local(micros, np.ones(len(times), bool), zone)
    offsets = [time.replace(tzinfo=ZoneInfo(zone)).utcoffset() or timedelta() for time in times]
    expected = [(time - offset - EPOCH) // MICROSECOND for time, offset in zip(times, offsets, strict=True)]
    assert found.tolist() == expected


def test_moments_are_left_alone() -> None:
    late = (datetime(2050, 7, 1) - EPOCH) // MICROSECOND
    micros, local = np.array([late, 0, late], np.int64), np.array([False, False, True])
    assert utc_of_local(micros, local, "Europe/Berlin").tolist() == [0, 0, late - 7_200_000_000]
