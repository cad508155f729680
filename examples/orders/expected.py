"""What the pipeline must make of the messages: computed from all of them at once, with none of Spark."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from examples.orders.generator import Message, Order, Payment

Window = tuple[str, str]
"""A minute, as in 2026-01-31T12:00:00.000Z, and a country."""


class Expected(NamedTuple):
    """The ids of paid orders, what each minute and country made (orders, cents), and how often each spree struck."""

    paid: set[str]
    revenue: dict[Window, tuple[int, int]]
    sprees: dict[str, int]


def expected(messages: Iterable[Message], limit: int, seconds: int) -> Expected:
    """The outcome of all messages, for sprees of at least `limit` orders within `seconds`."""
    bodies = [message.body for message in messages]
    orders = {body.order_id: body for body in bodies if isinstance(body, Order)}
    paid = {body.order_id for body in bodies if isinstance(body, Payment)} & orders.keys()
    return Expected(paid, _revenue(orders[one] for one in paid), _sprees(orders.values(), limit, seconds))


def _revenue(orders: Iterable[Order]) -> dict[Window, tuple[int, int]]:
    made: dict[Window, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for order in orders:
        window = f"{order.time[:16]}:00.000Z", order.country
        count, cents = made[window]
        made[window] = count + 1, cents + order.cents
    return dict(made)


def _sprees(orders: Iterable[Order], limit: int, seconds: int) -> dict[str, int]:
    by_card: dict[str, list[datetime]] = defaultdict(list)
    for order in orders:
        by_card[order.card].append(datetime.fromisoformat(order.time))
    span = timedelta(seconds=seconds)
    longest = {card: _longest(sorted(times), span) for card, times in by_card.items()}
    return {card: count for card, count in longest.items() if count >= limit}


def _longest(times: list[datetime], span: timedelta) -> int:
    """The largest number of times within a span."""
    return max(sum(1 for one in times if last - span < one <= last) for last in times)
