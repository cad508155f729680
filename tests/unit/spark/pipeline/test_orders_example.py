"""The generator of the orders example, and what is expected of its pipeline."""

from collections import Counter
from itertools import pairwise

from examples.orders.expected import expected
from examples.orders.generator import ORDERS, PAYMENTS, Message, Order, Shop, until


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
