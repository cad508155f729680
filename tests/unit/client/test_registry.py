"""The client of schema registries: what it asks again, what it gives up, and what it remembers."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headrace.client.errors import ClientError
from headrace.client.registry import (
    NotRegistered,
    RegisteredSchema,
    RegistryRefusal,
    RegistrySettings,
    RegistryUnreachable,
    SchemaReference,
    SchemaRegistry,
    registry_urls,
)

pytestmark = pytest.mark.slow

Answer = tuple[int, Any]
FOUND: Answer = (200, {"schema": '"int"'})
NOT_FOUND: Answer = (404, {"error_code": 40403, "message": "Schema 7 not found"})


class Answers:
    """What a registry answers, one after another, the last for ever; and what it was asked."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.url = ""

    def next(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def serving(*answers: Answer) -> Iterator[Answers]:
    told = Answers(*answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            told.asked.append((f"{self.command} {self.path}", dict(self.headers), json.loads(body or b"null")))
            status, answer = told.next()
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815 - the name that the library looks for

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    told.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Time:
    """Passes when someone pauses."""

    def __init__(self) -> None:
        self.now = 100.0

    def pause(self, seconds: float) -> None:
        self.now += seconds


def client(*urls: str, time: Time | None = None, **settings: Any) -> SchemaRegistry:
    time = time or Time()
    return SchemaRegistry(RegistrySettings(urls=urls, **settings), pause=time.pause, clock=lambda: time.now)


def test_a_schema_is_asked_for_once() -> None:
    references = [{"name": "shop.User", "subject": "user", "version": 2}]
    with serving((200, {"schema": "x", "schemaType": "PROTOBUF", "references": references})) as told:
        registry = client(told.url)
        for _ in range(3):
            found = registry.schema(7)
        assert found == RegisteredSchema(
            text="x", type="PROTOBUF", references=(SchemaReference("shop.User", "user", 2),), id=7
        )
        assert [asked for asked, _, _ in told.asked] == ["GET /schemas/ids/7"]


def test_an_id_that_is_not_known_is_asked_for_again_after_a_while() -> None:
    time = Time()
    with serving(NOT_FOUND, FOUND) as told:
        registry = client(told.url, time=time)
        assert registry.schema(7) is None
        assert registry.schema(7) is None
        assert len(told.asked) == 1
        time.pause(60)
        assert registry.schema(7) == RegisteredSchema(text='"int"', id=7)


def test_an_id_of_another_context_is_asked_for_with_its_subject() -> None:
    with serving(FOUND) as told:
        client(told.url).schema(7, ":.team:orders-value")
        assert told.asked[0][0] == "GET /schemas/ids/7?subject=%3A.team%3Aorders-value"


@pytest.mark.parametrize("trouble", [(500, {"error_code": 50002}), (503, b"starting"), (429, b"slow down")])
def test_a_registry_in_trouble_is_asked_again(trouble: Answer) -> None:
    with serving(trouble, trouble, FOUND) as told:
        assert client(told.url).schema(1) is not None
        assert len(told.asked) == 3


def test_the_next_address_is_asked_where_one_does_not_answer() -> None:
    with serving(FOUND) as told:
        assert client("http://127.0.0.1:1", told.url).schema(1) is not None


def test_a_registry_that_never_answers_is_named_and_its_password_is_not() -> None:
    with pytest.raises(RegistryUnreachable) as caught:
        client("http://ann:secret@127.0.0.1:1").schema(1)
    assert "the schema registry at http://127.0.0.1:1 does not answer" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, b"<html>"), "is it one?"),
        ((200, b"<html>"), "not JSON"),
        ((200, [1]), "not an object"),
        ((200, {"id": 3}), "without their text"),
        ((401, b""), "are the user and the password right?"),
    ],
)
def test_what_is_no_registry_is_not_taken_for_one(answer: Answer, said: str) -> None:
    with serving(answer) as told, pytest.raises(RegistryRefusal) as caught:
        client(told.url).schema(1)
    assert said in str(caught.value)


def test_a_user_is_told_by_settings_or_by_the_url() -> None:
    with serving(FOUND) as told:
        client(told.url, user_info="ann:pass").schema(1)
        client(told.url.replace("//", "//ann:pass@")).schema(1)
        client(told.url, token="t0k").schema(1)
        given = [headers["Authorization"] for _, headers, _ in told.asked]
    assert given == ["Basic YW5uOnBhc3M=", "Basic YW5uOnBhc3M=", "Bearer t0k"]


def test_versions_of_a_subject_are_had_by_number_or_as_the_latest() -> None:
    with serving((200, {"id": 5, "version": 3, "schema": "{}", "schemaType": "JSON", "subject": "a b"})) as told:
        registry = client(told.url)
        assert registry.version("a b").version == 3
        assert registry.version("a b", 3).id == 5
        assert [asked for asked, _, _ in told.asked] == ["GET /subjects/a%20b/versions/latest"]


def test_a_schema_is_registered_or_looked_up() -> None:
    schema = RegisteredSchema(text="x", type="JSON", references=(SchemaReference("n", "s", 1),))
    with serving((200, {"id": 9})) as told:
        registry = client(told.url)
        for _ in range(2):
            assert registry.register("orders-value", schema) == 9
        assert registry.lookup("orders-value", schema, normalize=True) == 9
        assert [asked for asked, _, _ in told.asked] == [
            "POST /subjects/orders-value/versions?normalize=false",
            "POST /subjects/orders-value?normalize=true",
        ]
        assert told.asked[0][2] == {
            "schema": "x",
            "schemaType": "JSON",
            "references": [{"name": "n", "subject": "s", "version": 1}],
        }


def test_a_refusal_says_what_the_registry_said() -> None:
    with serving((409, {"error_code": 409, "message": "too different"})) as told:
        with pytest.raises(RegistryRefusal) as caught:
            client(told.url).register("s", RegisteredSchema(text="x"))
        assert caught.value.is_incompatible
        assert "too different" in str(caught.value)
    with serving((404, {"error_code": 40401, "message": "no subject"})) as told, pytest.raises(NotRegistered):
        client(told.url).version("s")


@pytest.mark.parametrize("text", ["", " , ", "127.0.0.1:8080", "ftp://host", "http://"])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        registry_urls(text)


def test_certificates_that_cannot_be_read_are_an_error_of_settings() -> None:
    with pytest.raises(ClientError) as caught:
        client("https://127.0.0.1:1", ca_location="/no/such/file").schema(1)
    assert caught.value.code == "INVALID_CONFIG"
