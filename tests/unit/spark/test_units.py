"""Times and sizes as users write them."""

import pytest

from headrace.spark.units import byte_count, milliseconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [("250", 250), ("250ms", 250), ("10s", 10_000), ("15m", 900_000), ("15 min", 900_000), ("1H", 3_600_000),
     ("1d", 86_400_000), ("5000us", 5)],
)  # fmt: skip
def test_times(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("7", 7), ("7b", 7), ("2k", 2048), ("2kb", 2048), ("3M", 3 << 20), ("3MiB", 3 << 20)]
)
def test_sizes(text: str, expected: int) -> None:
    assert byte_count(text) == expected


@pytest.mark.parametrize("text", ["", "x", "1x", "-1", "1.5m", "b", "0"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a "):
        byte_count(text)
