"""The HTTP connector against a server of a few lines."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from headrace.spark.connectors.base import Batch, ConnectorError
from headrace.spark.connectors.http import HttpSink, HttpSource
from headrace.spark.errors import Unreachable

Reply = tuple[int, dict[str, str], bytes]
Asked = tuple[str, str, dict[str, str], bytes]


@contextmanager
def server(answer: Callable[[Asked], Reply]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more, body = answer((self.command, self.path, headers, self.rfile.read(length)))
            self.send_response(status)
            for name, value in {**more, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the library's name

        def log_message(self, format: str, *args: object) -> None: ...

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}"
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


def bodies(source: HttpSource, start: dict[str, Any], end: dict[str, Any]) -> list[object]:
    return [json.loads(str(row[0])) for row in source.read(start, end)]


def test_a_cursor_leads_through_all_pages_and_on_to_what_comes_later() -> None:
    items = [{"id": number} for number in range(5)]

    def answer(asked: Asked) -> Reply:
        after = int(parse_qs(urlsplit(asked[1]).query).get("after", ["-1"])[0])
        page = [item for item in items if item["id"] > after][:2]
        return 200, {}, json.dumps({"data": {"items": page}}).encode()

    with server(answer) as url:
        options = {"url": f"{url}/list?x=1", "rows": "data.items", "cursor": "after", "cursorField": "id"}
        source, seen = HttpSource(options), []
        position = source.initial()
        for _ in range(2):
            while (end := source.latest(position)) != position:
                assert bodies(source, position, end) == bodies(source, position, end)
                seen += bodies(source, position, end)
                position = end
            items.append({"id": len(items)})
    assert seen == items[:-1]


def test_a_page_that_has_not_changed_is_not_read_again() -> None:
    document, tags = {"now": b'{"price": 1}'}, list[str | None]()

    def answer(asked: Asked) -> Reply:
        tag = f'"{len(document["now"])}"'
        tags.append(asked[2].get("if-none-match"))
        return (304, {}, b"") if asked[2].get("if-none-match") == tag else (200, {"ETag": tag}, document["now"])

    with server(answer) as url:
        source = HttpSource({"url": url})
        first = source.latest(source.initial())
        assert bodies(source, source.initial(), first) == [{"price": 1}]
        assert source.latest(first) == first
        document["now"] = b'{"price": 20}'
        second = source.latest(first)
        assert bodies(source, first, second) == [{"price": 20}]
    assert tags[-2:] == ['"12"', None]


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        ((503, {}, b""), Unreachable, "answers 503"),
        ((403, {}, b"no \x1b[31m key"), ConnectorError, "answers 403: no"),
        (
            (302, {"Location": "http://elsewhere/?token=x"}, b""),
            ConnectorError,
            "a redirect to http://elsewhere/: name",
        ),
        ((200, {}, b"<html>"), ConnectorError, "is not JSON"),
    ],
)
def test_answers_that_are_none_are_told(reply: Reply, error: type[Exception], words: str) -> None:
    with server(lambda _: reply) as url:
        source = HttpSource({"url": f"{url}/a?secret=1", "rows": "items"})
        with pytest.raises(error, match=words) as told:
            source.latest(source.initial())
        assert "secret" not in str(told.value)
        assert "\x1b" not in str(told.value)


def test_a_server_that_is_away_passes_by_itself() -> None:
    source = HttpSource({"url": "http://127.0.0.1:1/"})
    with pytest.raises(Unreachable, match="does not answer"):
        source.latest(source.initial())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "file:///etc/passwd"}, "not a URL of http"),
        ({"url": "http://host/\r\nX: y"}, "not a URL of http"),
        ({"url": "http://host", "headers": {"X": "a\r\nY: b"}}, "not a header"),
        ({"url": "http://host", "headers": "X: y"}, "must be a mapping"),
        ({"url": "http://host", "cursor": "after"}, "goes with one of"),
        ({"url": "http://host", "next": "a"}, "goes with one of"),
    ],
)
def test_options_that_cannot_be_are_told(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConnectorError, match=words):
        HttpSource(options)


class Rows:
    columns = ["n"]  # noqa: RUF012

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def selectExpr(self, _: str) -> "Rows":  # noqa: N802 - Spark's name
        return self

    def toLocalIterator(self) -> Iterator[dict[str, str]]:  # noqa: N802 - Spark's name
        return ({"body": text} for text in self._texts)


def test_rows_are_posted_until_they_are_taken_under_keys_that_a_repetition_has_too() -> None:
    asked: list[Asked] = []
    pauses: list[float] = []

    def answer(one: Asked) -> Reply:
        asked.append(one)
        return (503, {"Retry-After": "7"}, b"") if len(asked) == 2 else (201, {}, b"")

    with server(answer) as url:
        sink = HttpSink({"url": url, "headers": {"Authorization": "Bearer x"}}, sleep=pauses.append)
        for _ in range(2):
            sink.write(Rows(['{"n":1}', '{"n":1}', '{"n":2}']), Batch(query="q", number=3))
    keys = [headers["idempotency-key"] for _, _, headers, _ in asked]
    assert pauses == [7.0]
    assert keys[1] == keys[2]
    assert [keys[0], *keys[2:4]] == keys[4:]
    assert len(set(keys)) == 3
    assert asked[0][3] == b'{"n":1}'
    assert asked[0][2]["authorization"] == "Bearer x"


def test_what_is_refused_fails_the_batch_or_is_skipped_and_a_redirect_is_no_success() -> None:
    with server(lambda _: (302, {"Location": "/there"}, b"")) as url:
        with pytest.raises(ConnectorError, match="a redirect to"):
            HttpSink({"url": url}).write(Rows(["{}"]), Batch(query="q", number=0))
        HttpSink({"url": url, "onRefusal": "skip"}).write(Rows(["{}"]), Batch(query="q", number=0))
    with server(lambda _: (500, {}, b"")) as url, pytest.raises(Unreachable, match="answers 500"):
        HttpSink({"url": url, "attempts": 3}, sleep=lambda _: None).write(Rows(["{}"]), Batch(query="q", number=0))


def test_several_rows_are_sent_as_a_list() -> None:
    asked: list[bytes] = []

    def answer(one: Asked) -> Reply:
        asked.append(one[3])
        return 200, {}, b""

    with server(answer) as url:
        HttpSink({"url": url, "rowsPerRequest": 2}).write(Rows(["1", "2", "3"]), Batch(query="q", number=0))
    assert asked == [b"[1,2]", b"[3]"]
