"""The orders example for tests: its messages in topics of its own broker, and the judgement of what came out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from examples.orders.generator import Message, Shop, send, until
from examples.orders.results import checks, results
from headrace.testing import Broker

FILE = Path(__file__).parents[2] / "examples" / "orders" / "pipeline.yaml"
TOPICS = ("orders", "payments", "revenue", "frauds")
AT_ONCE = 1e9


class OpenShop(NamedTuple):
    """A broker with all messages in it."""

    bootstrap: str
    messages: list[Message]

    def wrong(self, archive: Path) -> list[str]:
        """What is not as it should be after the pipeline has run."""
        return [words for good, words in checks(results(self.bootstrap, archive), self.messages) if not good]


@contextmanager
def open_shop(seconds: float = 480.0) -> Iterator[OpenShop]:
    """A broker that holds what the shop sends in some seconds of its clock."""
    messages = list(until(Shop(seed=5, rate=1, opened=1_800_000_000).messages(), seconds))
    with Broker() as broker:
        for topic in TOPICS:
            broker.create_topic(topic, 2)
        send(iter(messages), broker.bootstrap, AT_ONCE)
        yield OpenShop(broker.bootstrap, messages)
