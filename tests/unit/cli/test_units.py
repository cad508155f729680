"""Times and amounts with units, in settings."""

import pytest

from headrace.cli.console import Failure
from headrace.cli.units import without_units


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("retention.ms", "7d", "604800000"),
        ("retention.ms", "1.5h", "5400000"),
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "3600000", "3600000"),
        ("segment.ms", "2w", "1209600000"),
        ("flush.ms", "500ms", "500"),
        ("log.retention.hours", "7d", "168"),
        ("log.retention.minutes", "1h", "60"),
        ("segment.bytes", "10MB", "10000000"),
        ("retention.bytes", "1GiB", str(1 << 30)),
        ("max.message.bytes", "512k", "512000"),
        ("leader.replication.throttled.rate", "5MB/s", "5000000"),
        ("cleanup.policy", "compact", "compact"),
        ("min.insync.replicas", "2", "2"),
    ],
)
def test_a_value_with_a_unit_becomes_a_plain_number(name: str, text: str, expected: str) -> None:
    assert without_units({name: text}) == {name: expected}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("retention.ms", "7days", "is not a time; write it as 60000, 30s"),
        ("log.retention.hours", "30m", "is not a whole number of hours"),
        ("segment.bytes", "10 apples", "is not a number of bytes; write it as 1000000, 10MB or 1GiB"),
    ],
)
def test_what_has_no_such_unit_is_refused(name: str, text: str, expected: str) -> None:
    with pytest.raises(Failure, match=expected):
        without_units({name: text})
