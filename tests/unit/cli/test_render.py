import json
from dataclasses import dataclass

import pytest

from headrace.cli.console import Failure
from headrace.cli.render import as_json, renderer


@dataclass(frozen=True)
class Fake:
    """A message as the client library gives it."""

    of_key: bytes | None = b"k"
    of_value: bytes | None = b"\xffv"
    of_headers: list[tuple[str, bytes | None]] | None = None
    of_timestamp: tuple[int, int] = (1, 99)

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 7

    def timestamp(self) -> tuple[int, int]:
        return self.of_timestamp

    def key(self) -> bytes | None:
        return self.of_key

    def value(self) -> bytes | None:
        return self.of_value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.of_headers


RECORD = Fake(of_headers=[("h", b"1")])
NULLS = Fake(of_key=None, of_value=None, of_headers=[("h", None)], of_timestamp=(0, -1))


@pytest.mark.parametrize(
    ("format_", "expected", "of_nulls"),
    [
        ("value", b"\xffv\n", b"NULL\n"),
        ("key-value", b"k\t\xffv\n", b"NULL\tNULL\n"),
        ("raw", b"\xffv", b""),
        ("hex", b"ff76\n", b"NULL\n"),
        ("{topic}/{partition}:{offset} {key}={value}", b"t/2:7 k=\xffv\n", b"t/2:7 NULL=NULL\n"),
        ("{timestamp} {headers} {size}", b"99 h=1 2\n", b"NULL h=NULL 0\n"),
    ],
)
def test_formats_are_safe_for_any_bytes(format_: str, expected: bytes, of_nulls: bytes) -> None:
    render = renderer(format_, b"\t", b"\n", b"NULL")
    assert render(RECORD) == expected
    assert render(NULLS) == of_nulls


def test_a_template_inserts_values_as_they_are() -> None:
    render = renderer("{value}", b"\t", b"\n", b"")
    assert render(Fake(of_value=b"{key}\\1\\g<0>")) == b"{key}\\1\\g<0>\n"


def test_json_keeps_what_is_not_text() -> None:
    found = json.loads(as_json(RECORD))
    assert found == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp": 99,
        "key": "k",
        "value": {"base64": "/3Y="},
        "headers": [["h", "1"]],
    }


def test_json_is_one_line() -> None:
    assert b"\n" not in as_json(Fake(of_value=b"a\nb"))


def test_a_template_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(Failure, match="there are topic, partition"):
        renderer("{offfset}", b"", b"", b"")
