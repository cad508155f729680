"""The settings of a broker's metrics."""

from typing import Final

from headrace.net.address import parse_address

from .setting import Setting, Type, Value, ValueRule, at_least

METRICS_LISTENER: Final = "headrace.metrics.listener"
MOST_PARTITIONS: Final = "headrace.metrics.max.partitions"
REQUEST_METRICS: Final = "headrace.metrics.requests.enable"
METRICS_AUTO: Final = "auto"
METRICS_OFF: Final = "off"


def _is_place(value: Value) -> bool:
    if value in (METRICS_AUTO, METRICS_OFF):
        return True
    try:
        parse_address(str(value))
    except ValueError:
        return False
    return True


METRICS_SETTINGS: Final = (
    Setting(
        name=METRICS_LISTENER,
        type=Type.STRING,
        default=METRICS_AUTO,
        rule=ValueRule(holds=_is_place, words="an address like 127.0.0.1:9644, auto or off"),
        doc="Where `headrace broker` serves /metrics (Prometheus), /healthz and /readyz over HTTP, to anyone who can "
        "connect. `auto` is 127.0.0.1 and the port of listeners plus 552: 9644 for 9092.",
        importance="high",
    ),
    Setting(
        name=MOST_PARTITIONS,
        type=Type.INT,
        default="1000",
        rule=at_least(0),
        doc="Partitions, topics and partitions of groups that have series of their own in the metrics; others are in "
        "the sums alone.",
    ),
    Setting(
        name=REQUEST_METRICS,
        type=Type.BOOLEAN,
        default="true",
        doc="Whether requests are counted and timed by API for the metrics.",
        importance="low",
    ),
)
