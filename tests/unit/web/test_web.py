"""HTTP without Kafka: shapes, routes, the document, the application."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from headrace.web import messages
from headrace.web.application import Application
from headrace.web.messages import Answer, BadBody, Request, Stream, gunzip, json_answer
from headrace.web.openapi import document, documented, page
from headrace.web.problem import Problem
from headrace.web.routes import REQUIRED, Query, Reply, Router, Routes
from headrace.web.shapes import Anything, Array, Boolean, Choice, Integer, Mapped, Nullable, Number, Object, Shape, Text
from tests.support.asgi import Asker, scope_of

ORDER = Object({"id": Text(pattern="[a-z]+"), "lines": Array(Integer(1, 9), least=1)}, required=("id",))


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (Text(most=3), ["", "abc"], ["abcd", 1, None, "\ud800"]),
        (Text(pattern="a+"), ["a"], ["", "ab", "a\n"]),
        (Choice("a", "b"), ["a"], ["c", 1, []]),
        (Integer(0, 5), [0, 5, 5.0], [6, -1, 1.5, True, "1"]),
        (Number(0, 1), [0, 0.5], [2, True, "0"]),
        (Boolean(), [True], [1, "true", None]),
        (Nullable(Integer()), [None, 1], ["x"]),
        (Array(Integer(), most=2), [[], [1, 2]], [[1, 2, 3], [None], {}, "1"]),
        (Mapped(Text(), most=1), [{}, {"a": "b"}], [{"a": 1}, {"a": "", "b": ""}, [], {"\ud800": ""}]),
        (
            ORDER,
            [{"id": "x"}, {"id": "x", "lines": [1]}],
            [{}, {"id": "X"}, {"id": "x", "more": 1}, {"id": "x", "lines": []}],
        ),
        (Anything(), [None, 1, {}], []),
    ],
)
def test_shapes_take_what_fits_and_say_what_does_not(shape: Shape, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert shape.read(value, "it") == value
    for value in bad:
        with pytest.raises(Problem) as caught:
            shape.read(value, "it")
        assert caught.value.status == 400
        assert "it" in caught.value.detail
    json.dumps(shape.schema())


@pytest.mark.parametrize(
    ("shape", "text", "value"),
    [
        (Integer(0, 9), "7", 7),
        (Integer(0, 9), "07x", None),
        (Integer(0, 9), "٣", None),
        (Boolean(), "true", True),
        (Boolean(), "yes", None),
        (Number(0, 2), "1.5", 1.5),
        (Number(0, 2), "nan", None),
        (Array(Integer(0, 9)), "1,2", [1, 2]),
        (Array(Integer(0, 9)), "1,,2", None),
    ],
)
def test_shapes_out_of_text(shape: Shape, text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(Problem):
            shape.parse(text, "it")
    else:
        assert shape.parse(text, "it") == value


def routes() -> Routes:
    made = Routes(tag="Orders", about="Orders.")

    async def told(request: Request) -> Answer:
        return json_answer({"params": dict(request.params), "query": dict(request.query)})

    answers = {200: Reply("What was understood.", Object({}, open=True))}
    query = {"n": Query(Integer(), 3, "A number."), "must": Query(Text(), REQUIRED, "Needed.")}
    made.add("GET", "/orders/{id}", "One.", told, answers=answers, name="one", params={"id": Text(most=20)})
    made.add("GET", "/orders/new", "Another.", told, answers=answers, name="new")
    made.add("GET", "/orders/{id}/lines/{line}", "A line.", told, answers=answers, params={"line": Integer(0, 9)})
    made.add("GET", "/asked", "With a query.", told, answers=answers, name="asked", query=query)
    return made


def resolved(target: str, method: str = "GET") -> tuple[str, dict[str, Any], dict[str, Any]]:
    async def never() -> dict[str, Any]:
        raise AssertionError("nothing is to be read")

    request = Request(scope_of(method, target, {}), never)
    operation = Router([routes()]).resolve(request)
    return operation.path, dict(request.params), dict(request.query)


def test_paths_are_found_by_their_segments_and_literals_go_first() -> None:
    assert resolved("/orders/7") == ("/orders/{id}", {"id": "7"}, {})
    assert resolved("/orders/new")[0] == "/orders/new"
    assert resolved("/orders/a%2Fb%20c")[1] == {"id": "a/b c"}
    assert resolved("/orders/new/lines/3")[1] == {"id": "new", "line": 3}
    assert resolved("/asked?must=x")[2] == {"n": 3, "must": "x"}
    assert resolved("/asked?must=x&n=-5")[2] == {"n": -5, "must": "x"}


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/orders", 404),
        ("GET", "/orders/", 404),
        ("GET", "/orders/1/", 404),
        ("POST", "/orders/1", 405),
        ("GET", "/orders/%ff", 400),
        ("GET", "/orders/" + "x" * 21, 400),
        ("GET", "/orders/1/lines/x", 400),
        ("GET", "/asked", 400),
        ("GET", "/asked?must=x&other=1", 400),
        ("GET", "/asked?must=%ff", 400),
        ("GET", "/asked?" + "&".join(f"must={i}" for i in range(100)), 400),
    ],
)
def test_what_is_not_there_or_cannot_be_read(method: str, target: str, status: int) -> None:
    with pytest.raises(Problem) as caught:
        resolved(target, method)
    assert caught.value.status == status


def test_the_document_and_the_page_show_every_operation() -> None:
    made = routes()
    spec = document([made], title="T", version="1")
    shown = {(method, path) for path, methods in spec["paths"].items() for method in methods}
    assert shown == {(operation.method.lower(), operation.path) for operation in made.operations}
    names = [operation["operationId"] for methods in spec["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))
    assert spec["paths"]["/asked"]["get"]["parameters"][1]["required"] is True
    assert set(spec["paths"]["/asked"]["get"]["responses"]) >= {"200", "400", "405", "429"}
    assert "/orders/{id}/lines/{line}" in page(spec)
    evil = Routes(tag="<script>", about="<b>")
    evil.add("GET", "/x", "<script>alert(1)</script>", lambda _: None, answers={}, name="x")  # type: ignore[arg-type, return-value]
    assert "<script>" not in page(document([evil], title="T", version="1"))


def ask(target: str, made: Routes, headers: dict[str, str] | None = None, method: str = "GET") -> Any:
    return asyncio.run(Asker(Application([made]))(method, target, headers=headers))


def test_defects_are_500_and_say_nothing_of_themselves() -> None:
    made = Routes(tag="t")

    async def broken(_request: Request) -> Answer:
        raise RuntimeError("the secret")

    made.add("GET", "/x", "X.", broken, answers={})
    reply = ask("/x", made)
    assert (reply.status, b"secret" in reply.body) == (500, False)


def test_routes_choose_how_their_problems_look() -> None:
    made = Routes(tag="t", render=lambda problem: json_answer({"error_code": problem.status * 100 + 1}, problem.status))

    async def refused(_request: Request) -> Answer:
        raise Problem(404, "no")

    made.add("GET", "/x", "X.", refused, answers={})
    assert ask("/x", made).json == {"error_code": 40401}


def test_a_stream_is_sent_part_by_part_and_head_is_get() -> None:
    made = Routes(tag="t")

    async def parts() -> Any:
        for number in range(3):
            yield b"%d" % number

    async def stream(_request: Request) -> Stream:
        return Stream(200, parts(), b"text/plain")

    made.add("GET", "/x", "X.", stream, answers={})
    assert ask("/x", made).body == b"012"
    assert ask("/x", made, method="HEAD").status == 200


def test_large_answers_are_gzipped_for_who_accepts_it() -> None:
    made = Routes(tag="t")

    async def large(_request: Request) -> Answer:
        return Answer(200, b"x" * 500_000, b"text/plain")

    made.add("GET", "/x", "X.", large, answers={})
    packed = ask("/x", made, {"accept-encoding": "br, gzip"})
    assert gzip.decompress(packed.body) == b"x" * 500_000
    assert len(ask("/x", made).body) == 500_000


def test_compressed_bodies_are_bounded_and_whole() -> None:
    packed = gzip.compress(b"x" * 1000)
    assert gunzip(packed, 1000) == b"x" * 1000
    for data, status in ((packed[:-4], 400), (b"plain", 400), (gzip.compress(bytes(1 << 24)), 413)):
        with pytest.raises(BadBody) as caught:
            gunzip(data, 1000)
        assert caught.value.status == status


def test_the_document_is_served() -> None:
    made = routes()
    shown = documented([made], title="T", version="1", about="About.")
    application = Application([made, shown])
    spec = asyncio.run(Asker(application)("GET", "/openapi.json")).json
    assert spec["openapi"] == "3.1.0"
    assert "/orders/{id}" in spec["paths"]
    html = asyncio.run(Asker(application)("GET", "/docs"))
    assert html.headers["content-security-policy"].startswith("default-src 'none'")


def test_bodies_on_their_way_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "RECEIVING", messages.Receiving(1000))
    parts = [{"type": "http.request", "body": b"x" * 600, "more_body": True}] * 3

    async def receive() -> dict[str, Any]:
        return parts.pop()

    request = Request(scope_of("POST", "/", {}), receive)
    with pytest.raises(BadBody) as caught:
        asyncio.run(request.body())
    assert caught.value.status == 503
    assert messages.RECEIVING.held == 0
