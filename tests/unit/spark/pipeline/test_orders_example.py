"""The generator of the orders example, and what is expected of its pipeline."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from examples.orders.demo import Arrivals
from examples.orders.expected import expected
from examples.orders.generator import ORDERS, PAYMENTS, Message, Order, Shop, until
from examples.orders.results import Results, checks
from headrace.spark.pipeline.progress import SinkProgress


def messages(seed: int = 1, seconds: float = 600.0) -> list[Message]:
    return list(until(Shop(seed=seed, rate=5, opened=1_800_000_000).messages(), seconds))


def test_the_same_seed_makes_the_same_messages() -> None:
    assert messages() == messages()
    assert messages() != messages(seed=2)


def test_messages_are_sent_in_the_order_of_time() -> None:
    assert all(first.at <= second.at for first, second in pairwise(messages()))


def test_some_messages_come_late_some_twice_and_some_orders_are_never_paid() -> None:
    sent = messages()
    times_sent = Counter((message.topic, message.key) for message in sent)
    ids = {topic: {key for where, key in times_sent if where == topic} for topic in (ORDERS, PAYMENTS)}
    assert 0.01 < sum(count == 2 for count in times_sent.values()) / len(times_sent) < 0.05
    assert max(times_sent.values()) == 2
    assert 0.02 < len(ids[ORDERS] - ids[PAYMENTS]) / len(ids[ORDERS]) < 0.25
    made = [message.body.time for message in sent if isinstance(message.body, Order)]
    assert any(first > second for first, second in pairwise(made))


def test_sprees_are_found_and_ordinary_cards_are_not() -> None:
    sprees = expected(messages(), limit=5, seconds=60).sprees
    assert len(sprees) > 5
    assert all(card.startswith("stolen-") for card in sprees)
    assert all(5 <= orders <= 9 for orders in sprees.values())


def test_revenue_counts_each_paid_order_once() -> None:
    outcome = expected(messages(), limit=5, seconds=60)
    assert sum(orders for orders, _ in outcome.revenue.values()) == len(outcome.paid)
    assert min(minute for minute, _ in outcome.revenue) == "2027-01-15T08:00:00.000Z"


def made(sent: list[Message], last: str) -> Results:
    """What a pipeline without faults has written when the minutes up to that one are closed."""
    should = expected(sent, limit=5, seconds=60)
    revenue: list[dict[str, Any]] = [
        {"minute": minute, "country": country, "orders": orders, "cents": cents}
        for (minute, country), (orders, cents) in should.revenue.items()
        if minute <= last
    ]
    frauds = [{"card": card, "orders": orders} for card, orders in should.sprees.items()]
    return Results(revenue, frauds, sorted(should.paid))


FAR = "2027-01-15T08:08:00.001Z"
"""A watermark by which the first five minutes are closed."""


def judged(found: Results, sent: list[Message], watermark: str | None = FAR) -> list[bool]:
    return [good for good, _ in checks(found, sent, watermark)]


def test_results_are_right_when_all_that_is_closed_came_out_as_it_went_in() -> None:
    sent = messages()
    assert judged(made(sent, "2027-01-15T08:04:00.000Z"), sent) == [True, True, True]


def test_a_shop_open_for_seconds_owes_no_minute() -> None:
    sent = messages(seconds=200)
    found = made(sent, "")
    assert found.revenue == []
    for watermark in (None, "1970-01-01T00:00:00.000Z", "2027-01-15T08:02:20.000Z"):
        assert judged(found, sent, watermark) == [True, True, True]


def test_a_shop_without_customers_owes_nothing() -> None:
    assert judged(made([], ""), [], None) == [True, True, True]


def test_a_minute_is_owed_when_the_watermark_has_passed_it_by_the_time_that_orders_wait() -> None:
    sent = messages()
    assert judged(made(sent, ""), sent, "2027-01-15T08:04:00.000Z") == [True, True, True]
    assert judged(made(sent, ""), sent, "2027-01-15T08:04:00.001Z") == [True, False, True]
    assert judged(made(sent, "2027-01-15T08:00:00.000Z"), sent, "2027-01-15T08:04:00.001Z") == [True, True, True]


@pytest.mark.parametrize("damage", ["missing", "twice", "other"])
def test_a_sum_that_is_missing_or_twice_or_other_is_found(damage: str) -> None:
    sent = messages()
    found = made(sent, "2027-01-15T08:04:00.000Z")
    if damage == "missing":
        del found.revenue[0]
    elif damage == "twice":
        found.revenue.append(found.revenue[0])
    else:
        found.revenue[0]["cents"] += 1
    assert judged(found, sent) == [True, False, True]


def test_a_paid_order_that_is_missing_or_twice_is_found() -> None:
    sent = messages()
    found = made(sent, "2027-01-15T08:04:00.000Z")
    assert judged(found._replace(paid=found.paid[1:]), sent) == [False, True, True]
    assert judged(found._replace(paid=[*found.paid, found.paid[0]]), sent) == [False, True, True]


def test_a_spree_that_is_not_flagged_is_found() -> None:
    sent = messages()
    found = made(sent, "2027-01-15T08:04:00.000Z")
    assert judged(found._replace(frauds=found.frauds[1:]), sent) == [True, True, False]


def read(*rows: int) -> list[SinkProgress]:
    return [SinkProgress(sink=str(number), rows_in=count) for number, count in enumerate(rows)]


def test_the_demo_stops_once_when_every_sink_has_read_everything() -> None:
    arrivals = Arrivals(10)
    assert not arrivals.are_over(read(10, 9), 0.0)
    assert arrivals.are_over(read(10, 11), 1.0)
    assert not arrivals.are_over(read(10, 11), 2.0)


def test_the_demo_waits_as_long_as_something_moves_and_not_for_ever() -> None:
    arrivals = Arrivals(10)
    for minute in range(9):
        assert not arrivals.are_over(read(minute), 60.0 * minute)
    assert not arrivals.are_over(read(8), 8 * 60.0 + 600.0)
    assert arrivals.are_over(read(8), 8 * 60.0 + 601.0)


def test_the_demo_does_not_wait_long_for_a_broker_that_is_gone() -> None:
    arrivals = Arrivals(10)
    gone = [replace(sink, state="unreachable", problem="no broker answers") for sink in read(3, 3)]
    assert not arrivals.are_over(gone, 0.0)
    assert arrivals.are_over(gone, 121.0)


def test_the_demo_does_not_take_a_slow_batch_for_a_time_without_a_broker() -> None:
    arrivals = Arrivals(10)
    again = [replace(sink, state="restarting", problem="a Python process was slow") for sink in read(3, 3)]
    for seconds, sinks in ((0.0, read(3, 3)), (200.0, read(3, 3)), (201.0, again), (310.0, read(3, 3)), (400.0, again)):
        assert not arrivals.are_over(sinks, seconds)


def test_a_demo_without_messages_has_nothing_to_wait_for() -> None:
    assert Arrivals(0).are_over([], 0.0)
