"""Topics in which messages wait to be delivered into another: their names, and what brokers hold them to.

`orders.headrace-delayed` has messages that go to `orders` at their time, `orders.headrace-schedules` what is sent there
again and again. Whoever may write there can have messages written to `orders` by whoever moves them: so brokers take
records for either only from those who may write to `orders`, too.
"""

from typing import Final

DELAYED: Final = ".headrace-delayed"
SCHEDULES: Final = ".headrace-schedules"
LONGEST_TOPIC: Final = 249
_INTERNAL: Final = "__"
"""How names of topics begin that brokers keep their own state in: nothing is moved there."""


def delayed_topic(topic: str) -> str:
    """Where messages wait that go to a topic later."""
    return topic + DELAYED


def schedules_topic(topic: str) -> str:
    """Where the schedules of a topic are."""
    return topic + SCHEDULES


def target_of(topic: str) -> str | None:
    """The topic that messages of this one are moved to; None where it is a topic like any other."""
    for suffix in (DELAYED, SCHEDULES):
        if topic.endswith(suffix) and len(topic) > len(suffix):
            target = topic[: -len(suffix)]
            return None if target.startswith(_INTERNAL) else target
    return None
