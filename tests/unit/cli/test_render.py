import json
from dataclasses import replace

import pytest

from headrace.cli.console import Failure
from headrace.cli.render import Shown, as_json, renderer

RECORD = Shown(topic="t", partition=2, offset=7, timestamp=99, key=b"k", value=b"\xffv", headers=[("h", b"1")])
NULLS = replace(RECORD, key=None, value=None, timestamp=None, headers=[("h", None)])


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
    assert render(replace(RECORD, value=b"{key}\\1\\g<0>")) == b"{key}\\1\\g<0>\n"


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
    assert b"\n" not in as_json(replace(RECORD, value=b"a\nb"))


def test_a_template_with_an_unknown_field_is_refused() -> None:
    with pytest.raises(Failure, match="there are topic, partition"):
        renderer("{offfset}", b"", b"", b"")
