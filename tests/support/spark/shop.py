"""The orders example for tests: its messages in topics of its own broker, and the judgement of what came out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from examples.orders.generator import Message, Shop, send, until
from examples.orders.results import checks, closed_by, results
from headrace.testing import Broker

FILE = Path(__file__).parents[3] / "examples" / "orders" / "pipeline.yaml"
TOPICS = ("orders", "payments", "revenue", "frauds")
AT_ONCE = 1e9


class OpenShop(NamedTuple):
    """A broker with all messages in it."""

    bootstrap: str
    messages: list[Message]

    def wrong(self, archive: Path, watermark: str | None) -> list[str]:
        """What is not as it should be after the pipeline has run, and has come as far as its watermark says."""
        assert closed_by(watermark) >= "2027-01-15T08:00:00.000Z", "a minute at least is closed"
        outcome = checks(results(self.bootstrap, archive), self.messages, watermark)
        return [words for good, words in outcome if not good]


@contextmanager
def open_shop(seconds: float = 480.0) -> Iterator[OpenShop]:
    """A broker that holds what the shop sends in some seconds of its clock."""
    messages = list(until(Shop(seed=5, rate=1, opened=1_800_000_000).messages(), seconds))
    with Broker() as broker:
        for topic in TOPICS:
            broker.create_topic(topic, 2)
        send(iter(messages), broker.bootstrap, AT_ONCE)
        yield OpenShop(broker.bootstrap, messages)
