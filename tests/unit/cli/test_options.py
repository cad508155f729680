import pytest

from headrace.cli.console import ExitCode, Failure
from headrace.cli.options import delimiter, pairs, time_ms

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1600000000000", 1_600_000_000_000),
        ("now", NOW),
        ("-10m", NOW - 600_000),
        ("-250ms", NOW - 250),
        ("-2d", NOW - 172_800_000),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20+01:00", NOW),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert time_ms(text, "--from", NOW) == expected


@pytest.mark.parametrize("text", ["", "-10", "-10y", "tomorrow", "٣"])
def test_what_is_no_time_is_a_usage_failure(text: str) -> None:
    with pytest.raises(Failure) as failure:
        time_ms(text, "--from", NOW)
    assert failure.value.code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\n", b"\n"),
        ("a\\tb", b"a\tb"),
        ("\\x1f", b"\x1f"),
        ("\\\\n", b"\\n"),
        ("→", "→".encode()),
        ("\\q", b"\\q"),
    ],
)
def test_delimiters_know_escapes(text: str, expected: bytes) -> None:
    assert delimiter(text, "--delimiter") == expected


def test_a_value_may_hold_an_equals_sign() -> None:
    assert pairs(["a=b=c", "d="], "--config") == {"a": "b=c", "d": ""}
