"""A shop that never sleeps: orders and payments as JSON, with what makes real streams hard.

Some messages come late, some come twice, some orders are never paid, and now and then a stolen card goes on a spree.
All of it follows from `--seed`: the same arguments make the same messages, so that a test knows what to expect.
The shop's clock may run faster than ours (`--speed 10`: ten of its seconds in one of ours).

    python examples/orders/generator.py --bootstrap 127.0.0.1:9092 --seconds 60 --rate 100
"""

import argparse
import heapq
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Final

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
COUNTRIES: Final = {"DE": 22, "US": 20, "FR": 15, "GB": 12, "ES": 10, "IT": 9, "NL": 7, "PL": 5}
"""Where orders come from, and how many of a hundred."""

CARDS: Final = 20_000
LATE_SHARE, LATE_SECONDS = 0.02, (10.0, 45.0)
TWICE_SHARE, TWICE_SECONDS = 0.03, (1.0, 20.0)
UNPAID_SHARE, PAID_AFTER_SECONDS = 0.05, (2.0, 100.0)
SPREE_EVERY_SECONDS, SPREE_ORDERS, SPREE_GAP_SECONDS = (40.0, 80.0), (6, 9), (1.0, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    order_id: str
    card: str
    country: str
    cents: int
    time: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    payment_id: str
    order_id: str
    method: str
    paid_time: str


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """What is sent when: `at` is in seconds of the shop's clock since it opened."""

    at: float
    number: int
    topic: str = field(compare=False)
    body: Order | Payment = field(compare=False)

    @property
    def key(self) -> str:
        return self.body.order_id

    @property
    def value(self) -> str:
        return json.dumps(asdict(self.body), separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A shop that takes `rate` orders in each second of its clock, from `opened` (seconds since 1970) on."""

    seed: int
    rate: float
    opened: float

    def messages(self) -> Iterator[Message]:
        """All messages, without end, in the order in which they are sent."""
        dice = random.Random(self.seed)
        numbers = itertools.count()
        waiting: list[Message] = []
        for time_, order in self._orders(dice):
            for message in self._of(order, time_, dice, numbers):
                heapq.heappush(waiting, message)
            # Whatever belongs to a later order is sent no earlier than that order's own time.
            while waiting and waiting[0].at <= time_:
                yield heapq.heappop(waiting)

    def _orders(self, dice: random.Random) -> Iterator[tuple[float, Order]]:
        """Orders by the time they were made: the steady ones, with sprees among them."""
        steady = dice.expovariate(self.rate)
        spree: list[tuple[float, str]] = []
        next_spree = dice.uniform(*SPREE_EVERY_SECONDS)
        for number in itertools.count():
            if not spree and next_spree <= steady:
                spree = _spree(next_spree, dice)
                next_spree += dice.uniform(*SPREE_EVERY_SECONDS)
            if spree and spree[0][0] <= steady:
                moment, card = spree.pop(0)
                yield moment, self._order(number, moment, card, dice.randrange(50_000, 100_000), dice)
            else:
                yield steady, self._order(number, steady, _card(dice), dice.randrange(500, 20_000), dice)
                steady += dice.expovariate(self.rate)

    def _order(self, number: int, moment: float, card: str, cents: int, dice: random.Random) -> Order:
        (country,) = dice.choices(list(COUNTRIES), list(COUNTRIES.values()))
        return Order(order_id=f"o{number:08}", card=card, country=country, cents=cents, time=self._stamp(moment))

    def _of(self, order: Order, moment: float, dice: random.Random, numbers: Iterator[int]) -> Iterator[Message]:
        """The messages that an order leads to."""
        on_a_spree = order.card.startswith("stolen")
        sent = moment
        if not on_a_spree and dice.random() < LATE_SHARE:
            sent += dice.uniform(*LATE_SECONDS)
        yield Message(sent, next(numbers), ORDERS, order)
        if dice.random() < TWICE_SHARE:
            yield Message(sent + dice.uniform(*TWICE_SECONDS), next(numbers), ORDERS, order)
        if dice.random() >= UNPAID_SHARE:
            paid = moment + dice.uniform(*PAID_AFTER_SECONDS)
            method = dice.choice(("card", "transfer", "wallet"))
            payment = Payment(
                payment_id=f"p{order.order_id[1:]}",
                order_id=order.order_id,
                method=method,
                paid_time=self._stamp(paid),
            )
            yield Message(paid, next(numbers), PAYMENTS, payment)
            if dice.random() < TWICE_SHARE:
                yield Message(paid + dice.uniform(*TWICE_SECONDS), next(numbers), PAYMENTS, payment)

    def _stamp(self, moment: float) -> str:
        at = datetime.fromtimestamp(round(self.opened + moment, 3), UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _card(dice: random.Random) -> str:
    return f"card-{dice.randrange(CARDS):05}"


def _spree(start: float, dice: random.Random) -> list[tuple[float, str]]:
    """Moments and the card of one spree."""
    card = f"stolen-{dice.randrange(10**6):06}"
    moments = itertools.accumulate(
        (dice.uniform(*SPREE_GAP_SECONDS) for _ in range(dice.randint(*SPREE_ORDERS) - 1)), initial=start
    )
    return [(moment, card) for moment in moments]


def until(messages: Iterator[Message], end: float) -> Iterator[Message]:
    """The messages sent before the shop's clock shows `end`."""
    return itertools.takewhile(lambda message: message.at < end, messages)


def send(messages: Iterator[Message], bootstrap: str, speed: float) -> int:
    """Send each message when it is due; how many were sent. Fails with the broker's reason if one is refused."""
    from confluent_kafka import Producer

    refused: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 20})
    begun = time.monotonic()
    sent = 0
    for message in messages:
        ahead = message.at / speed - (time.monotonic() - begun)
        if ahead > 0.01:
            producer.poll(0)
            time.sleep(ahead)
        producer.produce(
            message.topic,
            key=message.key,
            value=message.value,
            on_delivery=lambda error, _message: refused.append(str(error)) if error else None,
        )
        sent += 1
        if refused:
            break
    producer.flush(30)
    if refused:
        raise SystemExit(f"generator: the broker refused a message: {refused[0]}")
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description="Sends orders and payments.", epilog="See the head of this file.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to send (default 60)")
    parser.add_argument("--rate", type=float, default=50.0, help="orders in a second (default 50)")
    parser.add_argument("--speed", type=float, default=1.0, help="how fast the shop's clock runs (default 1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--opened", type=float, default=None, help="the shop's time at the start, since 1970")
    given = parser.parse_args()
    shop = Shop(
        seed=given.seed,
        rate=given.rate / given.speed,
        opened=given.opened if given.opened is not None else time.time(),
    )
    sent = send(until(shop.messages(), given.seconds * given.speed), given.bootstrap, given.speed)
    sys.stderr.write(f"generator: sent {sent:,} messages\n")


if __name__ == "__main__":
    main()
