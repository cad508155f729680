"""HTTP: a URL that is polled, with a cursor or an ETag, and one that rows are posted to.

A page is read again where a batch is run again. So it should be the same one for the same cursor; where it is not, what
came later in it comes twice, and nothing is left out.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any, ClassVar, Final, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from headrace.config.names import shown

from ..errors import Unreachable
from .base import Batch, ConnectorError, Given, Option, Position, SinkConnector, SourceConnector

_MOST_BYTES: Final = 64 << 20
_LONGEST_PAUSE: Final = 60.0
_SCHEMA: Final = "body STRING, url STRING, fetched TIMESTAMP"


class _NoRedirects(HTTPRedirectHandler):
    """A redirect would turn a POST into a GET, and hand credentials to another host."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


_OPENER: Final = build_opener(_NoRedirects)


class Answer(NamedTuple):
    """What came back."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def ask(url: str, headers: Mapping[str, str], timeout: float, body: bytes | None = None, method: str = "GET") -> Answer:
    """One request; also an error of the server's is an answer. Unreachable where there is none."""
    request = Request(url, data=body, headers=dict(headers), method=method)
    try:
        try:
            with _OPENER.open(request, timeout=timeout) as reply:
                return _answer(reply.status, reply)
        except HTTPError as error:
            with error:
                return _answer(error.code, error)
    except (OSError, HTTPException) as error:
        raise Unreachable(f"{_shown_url(url)} does not answer: {error}") from error


def _answer(status: int, reply: Any) -> Answer:
    body = reply.read(_MOST_BYTES + 1)
    if len(body) > _MOST_BYTES:
        raise ConnectorError(f"an answer of {_shown_url(reply.url)} has more than {_MOST_BYTES >> 20} MiB")
    return Answer(status, body, {name.lower(): value for name, value in reply.headers.items()})


def _reason(answer: Answer) -> str:
    if 300 <= answer.status < 400:
        return f", a redirect to {shown(_shown_url(answer.headers.get('location', '')))}: name that as 'url'"
    text = answer.body[:200].decode("utf-8", "replace")
    return f": {''.join(character if character.isprintable() else '?' for character in text)}"


def _shown_url(url: str) -> str:
    """A URL without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _checked_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_sound = False
    if not is_sound or any(character <= " " for character in url):
        raise ConnectorError(f"'{shown(url)}' is not a URL of http or https", "url")
    return url


def _headers(given: Given) -> dict[str, str]:
    headers = given.get("headers") or {}
    if not isinstance(headers, dict):
        raise ConnectorError("'headers' must be a mapping of names to values", "headers")
    found = {str(name): str(value) for name, value in headers.items()}
    for name, value in found.items():
        if not (name + value).isprintable() or ":" in name or " " in name:
            raise ConnectorError(f"'{shown(name)}' is not a header of HTTP", "headers")
    return found


class HttpSource(SourceConnector):
    """A row for each element of an answer in JSON (`rows` says where they are), or for each answer as a whole."""

    options: ClassVar = {
        "url": Option("what to ask for", required=True),
        "headers": Option("headers of requests, as a mapping"),
        "every": Option("seconds between two looks", default="10"),
        "rows": Option("where the list is in an answer, such as data.items; default: the answer itself, if it is one"),
        "cursor": Option("the parameter of the URL that says where to go on"),
        "next": Option("where the next cursor is in an answer, such as paging.next"),
        "cursorField": Option("or: the field of the last row that is the next cursor, such as id"),
        "timeout": Option("seconds to wait for an answer", default="30"),
    }

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._url = _checked_url(self.text("url"))
        self._headers = {"Accept": "application/json", **_headers(given)}
        self._timeout = self.seconds("timeout")
        self.poll_seconds = self.seconds("every")  # type: ignore[misc]
        ways = [name for name in ("next", "cursorField") if name in given]
        if len(ways) != ("cursor" in given):
            raise ConnectorError("'cursor' goes with one of 'next' and 'cursorField'", "cursor")

    def schema(self) -> str:
        return _SCHEMA

    def initial(self) -> Position:
        return {"cursor": None, "tag": None}

    def latest(self, start: Position) -> Position:
        answer = self._fetch(start, conditional=True)
        if answer is None:
            return start
        rows = self._rows(answer)
        tag = answer.headers.get("etag") or hashlib.sha256(answer.body).hexdigest()
        following = self._next_cursor(answer, rows) if rows else None
        if following is not None and following != start["cursor"]:
            return {"cursor": following, "tag": None}
        return {"cursor": start["cursor"], "tag": tag} if rows and tag != start["tag"] else start

    def read(self, start: Position, end: Position) -> Iterator[tuple[object, ...]]:  # noqa: ARG002 - a page has no end
        answer = self._fetch(start, conditional=False)
        fetched = datetime.now(UTC)
        for row in self._rows(answer) if answer is not None else ():
            yield (row if isinstance(row, str) else json.dumps(row, ensure_ascii=False), _shown_url(self._url), fetched)

    def _fetch(self, position: Position, *, conditional: bool) -> Answer | None:
        url, headers = self._url, dict(self._headers)
        if position["cursor"] is not None:
            separator = "&" if urlsplit(url).query else "?"
            url = f"{url}{separator}{urlencode({self.text('cursor'): position['cursor']})}"
        if conditional and position["tag"] is not None and position["tag"].startswith(('"', "W/")):
            headers["If-None-Match"] = position["tag"]
        answer = ask(url, headers, self._timeout)
        if answer.status == 304:
            return None
        if answer.status == 429 or answer.status >= 500:
            raise Unreachable(f"{_shown_url(url)} answers {answer.status}")
        if answer.status >= 300:
            raise ConnectorError(f"{_shown_url(url)} answers {answer.status}{_reason(answer)}")
        return answer

    def _rows(self, answer: Answer) -> list[Any]:
        where = self.text("rows")
        text = answer.body.decode("utf-8", "replace")
        try:
            document = json.loads(text)
        except ValueError:
            if where or self.text("cursor"):
                raise ConnectorError(f"the answer of {_shown_url(self._url)} is not JSON") from None
            return [text] if text else []
        found = _at(document, where) if where else document
        if found is None:
            return []
        return found if isinstance(found, list) else [found]

    def _next_cursor(self, answer: Answer, rows: list[Any]) -> Any:
        if self.text("next"):
            found = _at(json.loads(answer.body), self.text("next"))
        else:
            field = self.text("cursorField")
            found = rows[-1].get(field) if field and isinstance(rows[-1], dict) else None
        return found if isinstance(found, (str, int, float)) and found != "" else None


def _at(document: Any, path: str) -> Any:
    """The part of a document that a path of names and numbers leads to; None where it leads nowhere."""
    for name in path.split("."):
        if isinstance(document, dict):
            document = document.get(name)
        elif isinstance(document, list) and name.isdigit() and int(name) < len(document):
            document = document[int(name)]
        else:
            return None
    return document


class HttpSink(SinkConnector):
    """Rows posted as JSON, one by one or as lists, each request under an idempotency key that a repetition has too."""

    options: ClassVar = {
        "url": Option("where to", required=True),
        "method": Option("of requests", default="POST", choices=("POST", "PUT")),
        "headers": Option("headers of requests, as a mapping"),
        "body": Option("a column that is the body as it is; default: all columns as a JSON object"),
        "rowsPerRequest": Option("rows of a request; more than 1 are sent as a list", default="1"),
        "idempotencyHeader": Option("the header of the key", default="Idempotency-Key"),
        "attempts": Option("how often to try before the batch fails", default="5"),
        "timeout": Option("seconds to wait for an answer", default="30"),
        "onRefusal": Option("what to do with a row that is refused (4xx)", default="fail", choices=("fail", "skip")),
    }

    def __init__(self, given: Given, sleep: Callable[[float], object] = time.sleep) -> None:
        super().__init__(given)
        self._url = _checked_url(self.text("url"))
        self._headers = {"Content-Type": "application/json", **_headers(given)}
        self._timeout = self.seconds("timeout")
        self._attempts = self.number("attempts")
        self._most = self.number("rowsPerRequest")
        self._sleep = sleep
        if self.text("body") and self._most > 1:
            raise ConnectorError("'body' is one row's; leave out 'rowsPerRequest'", "rowsPerRequest")

    def check(self, columns: list[str]) -> None:
        if self.text("body") and self.text("body") not in columns:
            raise ConnectorError(
                f"the rows have no column '{self.text('body')}'; they have {', '.join(columns)}", "body"
            )

    def write(self, rows: Any, batch: Batch) -> None:
        seen: dict[bytes, int] = {}
        for body in self._bodies(rows):
            count = seen[body] = seen.get(body, 0) + 1
            name = f"{batch.query}/{batch.number}/{count}/".encode()
            self._send(body, hashlib.sha256(name + body).hexdigest())

    def _bodies(self, rows: Any) -> Iterator[bytes]:
        column = self.text("body")
        if column:
            for row in rows.toLocalIterator():
                value = row[column]
                yield bytes(value) if isinstance(value, (bytes, bytearray)) else str(value).encode()
            return
        waiting: list[str] = []
        for row in rows.selectExpr("to_json(struct(*)) AS body").toLocalIterator():
            waiting.append(row["body"])
            if len(waiting) == self._most:
                yield self._joined(waiting)
                waiting = []
        if waiting:
            yield self._joined(waiting)

    def _joined(self, texts: list[str]) -> bytes:
        return (texts[0] if self._most == 1 else f"[{','.join(texts)}]").encode()

    def _send(self, body: bytes, key: str) -> None:
        headers = {**self._headers, self.text("idempotencyHeader"): key}
        for attempt in range(1, self._attempts + 1):
            try:
                answer = ask(self._url, headers, self._timeout, body, self.text("method"))
            except Unreachable:
                if attempt == self._attempts:
                    raise
                self._sleep(_pause(attempt, ""))
                continue
            if answer.status < 300:
                return
            if answer.status not in (408, 409, 425, 429) and answer.status < 500:
                if self.text("onRefusal") == "skip":
                    return
                raise ConnectorError(f"{_shown_url(self._url)} answers {answer.status}{_reason(answer)}")
            if attempt == self._attempts:
                raise Unreachable(f"{_shown_url(self._url)} answers {answer.status}")
            self._sleep(_pause(attempt, answer.headers.get("retry-after", "")))


def _pause(attempt: int, asked: str) -> float:
    """Seconds before the next attempt: what the server asks for, within reason, or ever longer."""
    if asked.isascii() and asked.isdigit() and len(asked) < 6:
        return min(float(asked), _LONGEST_PAUSE)
    return min(0.5 * 2.0 ** (attempt - 1), _LONGEST_PAUSE)
