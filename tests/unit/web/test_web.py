"""HTTP without Kafka: structs, routes, the document, the application."""

import asyncio
import gzip
import re
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta, Struct
from openapi_spec_validator import validate

from headrace.web import messages
from headrace.web.application import Application
from headrace.web.checking import decoder, text_meta
from headrace.web.endpoints import EXCHANGE
from headrace.web.guard import Guard
from headrace.web.messages import Answer, BadBody, Request, Stream, gunzip, json_answer
from headrace.web.openapi import document, documented, page
from headrace.web.problem import Problem
from headrace.web.routes import Body, Reply, Routes
from tests.support.asgi import Asker, scope_of


class Line(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1, le=9, examples=[2])]


class Order(Struct, forbid_unknown_fields=True):
    id: Annotated[str, text_meta(r"^[a-z]+\Z", "an order's id", "abc")]
    lines: Annotated[list[Line], Meta(min_length=1)] | None = None
    color: str | None = None


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{}", "the order.id is missing"),
        (b'{"id":"X"}', "the order.id must be an order's id"),
        (b'{"id":"x\\n"}', "the order.id must be an order's id"),
        (b'{"id":1}', "the order.id must be text, not int"),
        (b'{"id":"x","more":1}', "the order has no member 'more'; it has id, lines, color"),
        (b'{"id":"x","lines":[]}', "the order.lines must be a list of length >= 1"),
        (b'{"id":"x","lines":[{"count":10}]}', "the order.lines[0].count must be a whole number <= 9"),
        (b'{"id":"x","lines":[{"count":true}]}', "the order.lines[0].count must be a whole number, not bool"),
        (b'{"id":"x","lines":[{"count":1,"a":2}]}', "the order.lines[0] has no member 'a'"),
        (b'{"id":"x","color":1}', "the order.color must be text or null, not int"),
        (b'{"id":"x","lines":[{"count":1e400}]}', "the order.lines[0].count must be a number that is not so large"),
        (b"[]", "the order must be a JSON object, not array"),
        (b'{"id":"\xff"}', "not the JSON"),
        (b'{"id":"\\ud800"}', "not the JSON"),
        (b'{"id":NaN}', "not the JSON"),
        (b"{", "not the JSON"),
        (b'{"color":' + b"[" * 100_000, "order"),
    ],
)
def test_a_body_that_does_not_fit_is_told_where_and_why(body: bytes, says: str) -> None:
    with pytest.raises(Problem) as caught:
        decoder(Order, "the order")(body)
    assert caught.value.status == 400
    assert says in caught.value.detail


class Shirt(Struct):
    size: Literal["s", "m"] | None = None
    others: list[Annotated[Literal["s", "m"], Meta(examples=["s"])]] = []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"size":"l"}', "the shirt.size must be one of s, m, not 'l'"),
        (b'{"others":["s","l"]}', "the shirt.others[1] must be one of s, m, not 'l'"),
    ],
)
def test_a_value_that_is_none_of_some_is_told_them(body: bytes, says: str) -> None:
    with pytest.raises(Problem, match=re.escape(says)):
        decoder(Shirt, "the shirt")(body)


class OrderPath(Struct, frozen=True):
    id: Annotated[str, Meta(max_length=20, examples=["abc"])]


class LinePath(OrderPath, frozen=True):
    line: Annotated[int, Meta(ge=0, le=9, examples=[1])]


class Asked(Struct, frozen=True, forbid_unknown_fields=True):
    must: Annotated[str, Meta(description="Needed.", examples=["x"])]
    n: Annotated[int, Meta(description="A number.")] = 3
    flag: bool = False
    parts: list[int] | None = None


class AskedHeaders(Struct, frozen=True, rename={"count": "X-Count"}):
    count: Annotated[int, Meta(ge=0, examples=[1])] | None = None


def routes() -> Routes:
    made = Routes(tag="Orders", about="Orders.")

    async def told(request: Request, **declared: Any) -> Answer:
        return json_answer({"route": request.scope[EXCHANGE].operation.url, **declared})

    answers = {200: Reply("What was understood.", dict[str, Any], example={})}
    made.add("GET", "/orders/{id}", "One.", told, answers=answers, name="one", path=OrderPath)
    made.add("GET", "/orders/new", "Another.", told, answers=answers, name="new")
    made.add("GET", "/orders/{id}/lines/{line}", "A line.", told, answers=answers, name="line", path=LinePath)
    made.add("GET", "/asked", "With a query.", told, answers=answers, name="asked", query=Asked, headers=AskedHeaders)
    made.add("POST", "/orders", "Order.", told, answers=answers, name="order", body=Body("An order.", Order))
    return made


def resolved(target: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    reply = ask(target, routes(), headers)
    assert reply.status == 200, reply.body
    return dict(reply.json)


def test_paths_are_found_by_their_segments_and_literals_go_first() -> None:
    assert resolved("/orders/7") == {"route": "/orders/{id}", "path": {"id": "7"}}
    assert resolved("/orders/new") == {"route": "/orders/new"}
    assert resolved("/orders/a%2Fb%20c")["path"] == {"id": "a/b c"}
    assert resolved("/orders/new/lines/3")["path"] == {"id": "new", "line": 3}
    plain = {"must": "x", "n": 3, "flag": False, "parts": None}
    assert resolved("/asked?must=x")["query"] == plain
    assert resolved("/asked?must=x&n=-5&flag=true&parts=1,2")["query"] == {
        **plain, "n": -5, "flag": True, "parts": [1, 2],
    }  # fmt: skip
    assert resolved("/asked?must=x", {"x-count": "7"})["headers"] == {"X-Count": 7}


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/lines", 404),
        ("GET", "/orders/", 405),
        ("POST", "/orders/1", 405),
        ("GET", "/orders", 405),
        ("GET", "/orders/%ff", 400),
        ("GET", "/orders/" + "x" * 21, 400),
        ("GET", "/orders/1/lines/x", 400),
        ("GET", "/orders/1/lines/07", 400),
        ("GET", "/orders/1/lines/%D9%A3", 400),
        ("GET", "/orders/1?any=1", 400),
        ("GET", "/asked", 400),
        ("GET", "/asked?must=x&other=1", 400),
        ("GET", "/asked?must=x&flag=yes", 400),
        ("GET", "/asked?must=x&parts=1,,2", 400),
        ("GET", "/asked?must=%ff", 400),
        ("GET", "/asked?" + "&".join(f"must={i}" for i in range(100)), 400),
    ],
)
def test_what_is_not_there_or_cannot_be_read(method: str, target: str, status: int) -> None:
    assert ask(target, routes(), method=method).status == status


def test_the_document_is_valid_and_shows_every_operation_with_an_example() -> None:
    made = routes()
    spec = document([made], title="T", version="1")
    validate(spec)
    shown = {(method, path) for path, methods in spec["paths"].items() for method in methods}
    assert shown == {(operation.method.lower(), operation.url) for operation in made.operations}
    assert [p["required"] for p in spec["paths"]["/asked"]["get"]["parameters"]] == [True, False, False, False, False]
    assert set(spec["paths"]["/asked"]["get"]["responses"]) >= {"200", "400", "405", "429"}
    assert set(spec["components"]["schemas"]) == {"Line", "Order", "ProblemBody"}
    taken = spec["paths"]["/orders"]["post"]["requestBody"]["content"]["application/json"]
    assert taken["example"] == {"id": "abc", "lines": [{"count": 2}], "color": "text"}
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


def preflight(origin: str) -> Any:
    application = Application([routes()], guard=Guard(origins=["https://shop.example"]))
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return asyncio.run(Asker(application)("OPTIONS", "/orders", headers=headers))


def test_pages_of_allowed_sites_may_ask_and_read_answers_and_others_may_not() -> None:
    good = preflight("https://shop.example")
    assert (good.status, good.headers["access-control-allow-origin"]) == (200, "https://shop.example")
    assert "POST" in good.headers["access-control-allow-methods"]
    assert good.headers["access-control-allow-headers"] == "authorization,content-type"
    bad = preflight("https://evil.example")
    assert (bad.status, bad.headers.get("access-control-allow-origin")) == (400, None)
    application = Application([routes()], guard=Guard(origins=["https://shop.example"]))
    asked = asyncio.run(Asker(application)("GET", "/nowhere", headers={"origin": "https://shop.example"}))
    assert (asked.status, asked.headers["access-control-allow-origin"]) == (404, "https://shop.example")
    assert "Retry-After" in asked.headers["access-control-expose-headers"]
    posted = asyncio.run(Asker(application)("POST", "/orders", {"id": "x"}, {"origin": "https://evil.example"}))
    assert (posted.status, posted.json["code"]) == (403, "cross-site")
