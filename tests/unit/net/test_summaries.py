"""Thousands of partitions change in one line."""

import structlog
from structlog.testing import capture_logs

from headrace.net.summaries import Summaries


def test_one_line_for_each_event_with_a_count_and_the_first_names() -> None:
    with capture_logs() as lines:
        summaries = Summaries(structlog.get_logger())
        for index in range(1_000):
            summaries.add("became leader", f"orders-{index}")
        summaries.add("ISR shrunk", "orders-3", level="warning", left="2")
        summaries.write()
        summaries.write()
    assert lines == [
        {
            "event": "became leader",
            "log_level": "info",
            "partitions": 1_000,
            "names": "orders-0, orders-1, orders-2, orders-3, orders-4 and 995 more",
        },
        {"event": "ISR shrunk", "log_level": "warning", "partitions": 1, "names": "orders-3", "left": "2"},
    ]


def test_different_fields_are_different_lines_and_sums_are_added_up() -> None:
    with capture_logs() as lines:
        summaries = Summaries(structlog.get_logger(), "logs")
        for index, reason in enumerate(["retention.ms", "retention.bytes", "retention.ms"]):
            summaries.add("segments deleted", f"t-{index}", reason=reason, sums={"segments": 2, "bytes": 100})
        summaries.write()
    assert [(line["reason"], line["logs"], line["segments"], line["bytes"]) for line in lines] == [
        ("retention.ms", 2, 4, 200),
        ("retention.bytes", 1, 2, 100),
    ]
