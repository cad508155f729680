"""Flags cards that go on a spree, with state for each card."""

from collections.abc import Iterator
from typing import Any, Final

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

FLAGGED: Final = "card STRING, orders INT, cents BIGINT, countries STRING, first_time TIMESTAMP, time TIMESTAMP"
REMEMBERED: Final = "time TIMESTAMP, cents BIGINT, country STRING"


def flag_fraud(unique_orders: DataFrame, limit: int, seconds: int) -> DataFrame:
    """A row for each order that is at least the `limit`th of its card within `seconds`."""
    return unique_orders.groupBy("card").transformWithStateInPandas(
        statefulProcessor=Sprees(limit, seconds),
        outputStructType=FLAGGED,
        outputMode="Append",
        timeMode="EventTime",
    )


class Sprees(StatefulProcessor):  # type: ignore[misc]
    """Remembers the latest orders of each card, until the card has not been used for a while."""

    def __init__(self, limit: int, seconds: int) -> None:
        self._limit = limit
        self._span = pd.Timedelta(seconds=seconds)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called once per task, before any rows."""
        self._handle = handle
        self._latest = handle.getListState("latest", REMEMBERED)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """The flags that new orders of a card raise."""
        latest = [(pd.Timestamp(time), cents, country) for time, cents, country in self._latest.get()]
        flagged = []
        for order in pd.concat(rows).sort_values("time").itertuples():
            latest = [one for one in latest if one[0] > order.time - self._span]
            latest.append((order.time, order.cents, order.country))
            if len(latest) >= self._limit:
                flagged.append(_flag(key[0], latest))
        self._latest.put(latest)
        self._handle.registerTimer(_milliseconds(latest[-1][0] + self._span))
        if flagged:
            yield pd.DataFrame(flagged)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        """Forget a card when the watermark has passed its last order by the span."""
        times = [pd.Timestamp(time) for time, _, _ in self._latest.get()]
        if times and _milliseconds(max(times) + self._span) <= expiredTimerInfo.getExpiryTimeInMs():
            self._latest.clear()
        yield from ()

    def close(self) -> None:
        """Nothing is held open."""


def _milliseconds(time: pd.Timestamp) -> int:
    return int(time.timestamp() * 1000)


def _flag(card: str, latest: list[tuple[pd.Timestamp, int, str]]) -> dict[str, object]:
    times, cents, countries = zip(*latest, strict=True)
    return {
        "card": card,
        "orders": len(latest),
        "cents": sum(cents),
        "countries": ",".join(sorted(set(countries))),
        "first_time": min(times),
        "time": max(times),
    }
