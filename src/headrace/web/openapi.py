"""OpenAPI 3.1 and a page to read, both from the routes as they are declared."""

import json
from collections.abc import Iterable, Mapping
from html import escape
from http import HTTPStatus
from typing import Any, Final

from .messages import Answer, Request, json_answer
from .problem import CONTENT_TYPE
from .routes import REQUIRED, Body, Operation, Query, Reply, Routes
from .shapes import Array, Object, Text

PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
    },
    "required": ["type", "title", "status", "detail", "code"],
}
COMMON: Final = (400, 403, 405, 408, 413, 415, 421, 429, 503)
"""Problems that any operation may answer with."""
_SECURITY: Final = {
    "basic": {"type": "http", "scheme": "basic"},
    "bearer": {"type": "http", "scheme": "bearer"},
}


def document(mounted: Iterable[Routes], *, title: str, version: str, about: str = "") -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    tags = []
    for routes in mounted:
        shown = [operation for operation in routes.operations if not operation.hidden]
        if shown:
            tags.append({"name": routes.tag, "description": routes.about})
        for operation in shown:
            paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": about, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{}, *({name: []} for name in _SECURITY)],
        "tags": tags,
        "paths": paths,
        "components": {"schemas": {"Problem": PROBLEM}, "securitySchemes": _SECURITY},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": list(_parameters(operation)),
        "responses": _responses(operation),
    }
    if operation.about:
        described["description"] = operation.about
    if operation.body is not None:
        described["requestBody"] = _request_body(operation.body)
    return described


def _parameters(operation: Operation) -> Iterable[dict[str, Any]]:
    for segment in operation.path.split("/"):
        if segment.startswith("{"):
            name = segment[1:-1]
            shape = operation.path_shapes.get(name, Text(least=1))
            yield {"name": name, "in": "path", "required": True, "schema": shape.schema()}
    for name, query in operation.query.items():
        yield _parameter(name, "query", query)
    for name, header in operation.headers.items():
        yield _parameter(name, "header", header)


def _parameter(name: str, location: str, query: Query) -> dict[str, Any]:
    schema = query.shape.schema()
    if query.default is not REQUIRED and query.default is not None:
        schema["default"] = query.default
    parameter = {
        "name": name,
        "in": location,
        "description": query.about,
        "required": query.default is REQUIRED,
        "schema": schema,
    }
    if isinstance(query.shape, Array):
        parameter |= {"style": "form", "explode": False}
    return parameter


def _request_body(body: Body) -> dict[str, Any]:
    content = {media: {} if shape is None else {"schema": shape.schema()} for media, shape in body.media.items()}
    return {"description": body.about, "required": body.required, "content": content}


def _responses(operation: Operation) -> dict[str, Any]:
    answers: dict[int, Reply] = {status: Reply(HTTPStatus(status).phrase) for status in COMMON}
    answers |= operation.answers
    return {str(status): _response(status, reply) for status, reply in sorted(answers.items())}


def _response(status: int, reply: Reply) -> dict[str, Any]:
    described: dict[str, Any] = {"description": reply.about}
    if reply.headers:
        described["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in reply.headers.items()
        }
    if status == 204:
        return described
    problem = {CONTENT_TYPE.decode(): {"schema": {"$ref": "#/components/schemas/Problem"}}}
    if reply.shape is None and status >= 400:
        described["content"] = problem
    else:
        schema = {} if reply.shape is None else {"schema": reply.shape.schema()}
        described["content"] = dict.fromkeys(reply.media, schema) | (problem if status in COMMON else {})
    return described


# The page


def page(spec: Mapping[str, Any]) -> str:
    """All of a document as one page of HTML, with nothing to load from elsewhere."""
    info = spec["info"]
    parts = [_HEAD.format(title=escape(info["title"])), f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"]
    parts.append(f"<p>{escape(info['description'])}</p><p><a href='/openapi.json'>OpenAPI document</a></p>")
    for tag in spec["tags"]:
        parts.append(f"<h2>{escape(tag['name'])}</h2><p>{escape(tag['description'])}</p>")
        parts += [
            _section(method, path, operation)
            for path, methods in spec["paths"].items()
            for method, operation in methods.items()
            if tag["name"] in operation["tags"]
        ]
    parts.append("</main></body></html>")
    return "\n".join(parts)


def _section(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(p['name'])}</code></td><td>{p['in']}{', required' if p['required'] else ''}</td>"
        f"<td>{escape(p.get('description', ''))} <small>{escape(_short(p['schema']))}</small></td></tr>"
        for p in operation["parameters"]
    )
    body = operation.get("requestBody")
    taken = ""
    if body:
        media = ", ".join(f"<code>{escape(name)}</code>" for name in body["content"])
        schemas = "".join(_schema(content.get("schema")) for content in body["content"].values())
        taken = f"<p><b>Body</b> {escape(body['description'])} ({media})</p>{schemas}"
    answers = "".join(
        f"<tr><td>{status}</td><td>{escape(reply['description'])}</td></tr>"
        for status, reply in operation["responses"].items()
        if int(status) not in COMMON
    )
    return (
        f"<details id='{escape(operation['operationId'])}'><summary><b class='{method}'>{method.upper()}</b> "
        f"<code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"<p>{escape(operation.get('description', ''))}</p><table>{rows}</table>{taken}"
        f"<table>{answers}</table></details>"
    )


def _schema(schema: Mapping[str, Any] | None) -> str:
    return "" if not schema else f"<pre>{escape(json.dumps(schema, indent=1))}</pre>"


def _short(schema: Mapping[str, Any]) -> str:
    words = [str(schema.get("type", ""))]
    if "enum" in schema:
        words.append(" | ".join(schema["enum"]))
    if "default" in schema:
        words.append(f"default {schema['default']}")
    return ", ".join(word for word in words if word)


_HEAD: Final = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #1c2733; background: #fbfcfd; margin: 0 }}
main {{ max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
details {{ border: 1px solid #d7dee6; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; background: #fff }}
summary {{ cursor: pointer }} td {{ padding: .15rem .8rem .15rem 0; vertical-align: top }}
pre {{ background: #f1f4f7; padding: .6rem; overflow: auto; max-height: 20rem }}
b.get {{ color: #14694a }} b.post {{ color: #1f5fa8 }} b.delete {{ color: #a3262c }}
</style></head><body><main>"""


def documented(mounted: list[Routes], *, title: str, version: str, about: str) -> Routes:
    """Routes that show all others: `/openapi.json` and `/docs`."""
    routes = Routes(tag="Documentation", about="This.")
    spec = document([*mounted, routes], title=title, version=version, about=about)
    shown: dict[str, bytes] = {}

    @routes.get("/openapi.json", "OpenAPI 3.1.", answers={200: Reply("The document.", Object({}, open=True))})
    async def openapi(request: Request) -> Answer:  # noqa: ARG001 - as every handler
        return json_answer(document([*mounted, routes], title=title, version=version, about=about))

    @routes.get("/docs", "This page.", answers={200: Reply("A page.", media=("text/html",))})
    async def docs(request: Request) -> Answer:  # noqa: ARG001
        if "page" not in shown:
            shown["page"] = page(spec).encode()
        policy = b"default-src 'none'; style-src 'unsafe-inline'"
        return Answer(200, shown["page"], b"text/html; charset=utf-8", ((b"content-security-policy", policy),))

    return routes
