"""OpenAPI 3.1 and a page to read, both from the routes as they are declared.

Schemas are msgspec's, one component for each struct. Examples are made of those that members declare; an operation
gives its own where that would not do.
"""

import json
from collections.abc import Iterable, Mapping
from html import escape
from http import HTTPStatus
from typing import Any, Final

import msgspec

from .messages import Answer, Request, json_answer
from .problem import CODES, CONTENT_TYPE, ProblemBody
from .routes import Body, Operation, Reply, Routes

Schema = dict[str, Any]
COMMON: Final = (400, 403, 405, 408, 413, 415, 421, 429, 503)
"""Problems that any operation may answer with."""
_REF: Final = "#/components/schemas/{name}"
_REF_START: Final = _REF.removesuffix("{name}")
_SECURITY: Final = {
    "basic": {"type": "http", "scheme": "basic"},
    "bearer": {"type": "http", "scheme": "bearer"},
}
_BYTES: Final = "any bytes"


def document(mounted: Iterable[Routes], *, title: str, version: str, about: str = "") -> dict[str, Any]:
    """The OpenAPI document."""
    mounted = list(mounted)
    schemas = Schemas(kind for routes in mounted for operation in routes.operations for kind in _kinds(operation))
    paths: dict[str, dict[str, Any]] = {}
    for operation in (operation for routes in mounted for operation in routes.operations):
        paths.setdefault(operation.url, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version, "description": about, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{}, *({name: []} for name in _SECURITY)],
        "tags": [{"name": routes.tag, "description": routes.about} for routes in mounted if routes.operations],
        "paths": paths,
        "components": {"schemas": schemas.components(_parameter_kinds(mounted)), "securitySchemes": _SECURITY},
    }


def _kinds(operation: Operation) -> Iterable[Any]:
    """Every type that an operation speaks of."""
    yield ProblemBody
    yield from _parameter_kinds_of(operation)
    for reply in operation.answers.values():
        yield from _several(reply.kind)
        yield from reply.also.values()
    if operation.body is not None:
        for kinds in _media(operation.body).values():
            yield from kinds


def _parameter_kinds(mounted: Iterable[Routes]) -> Iterable[Any]:
    for operation in (operation for routes in mounted for operation in routes.operations):
        yield from _parameter_kinds_of(operation)


def _parameter_kinds_of(operation: Operation) -> Iterable[Any]:
    return (kind for kind in (operation.path, operation.query, operation.headers) if kind is not None)


def _media(body: Body) -> dict[str, tuple[Any, ...]]:
    """Types by media type; none for any bytes."""
    media = body.media or {"application/json": body.kind}
    return {name: _several(kind) for name, kind in media.items()}


def _several(kind: Any) -> tuple[Any, ...]:
    return kind if isinstance(kind, tuple) else () if kind is None else (kind,)


class Schemas:
    """JSON Schemas of types, with named components for structs."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        self._kinds: list[Any] = []
        for kind in kinds:
            if not any(kind is known or kind == known for known in self._kinds):
                self._kinds.append(kind)
        found, components = msgspec.json.schema_components(self._kinds, ref_template=_REF)
        self._schemas: list[Schema] = [_portable(schema) for schema in found]
        self._all: dict[str, Schema] = {name: _portable(schema) for name, schema in components.items()}

    def components(self, hidden: Iterable[Any]) -> dict[str, Schema]:
        """All but those of `hidden` kinds, which stand where they are used."""
        names = {self.of(kind)["$ref"].removeprefix(_REF_START) for kind in hidden}
        return {name: schema for name, schema in sorted(self._all.items()) if name not in names}

    def of(self, kind: Any) -> Schema:
        return next(schema for known, schema in zip(self._kinds, self._schemas, strict=True) if known == kind)

    def resolved(self, schema: Schema) -> Schema:
        """What a reference stands for."""
        reference = schema.get("$ref")
        return schema if reference is None else self._all[reference.removeprefix(_REF_START)]

    def example(self, schema: Schema) -> Any:
        """An example made of what members declare."""
        given, schema = schema.get("examples"), self.resolved(schema)
        given = given or schema.get("examples")
        if given:
            return given[0]
        if "default" in schema and schema["default"] is not None:
            return schema["default"]
        if "enum" in schema:
            return schema["enum"][0]
        if "anyOf" in schema:
            return self.example(schema["anyOf"][0])
        return self._example_of_type(schema)

    def _example_of_type(self, schema: Schema) -> Any:
        kind = schema.get("type")
        if kind == "object":
            return {name: self.example(each) for name, each in schema.get("properties", {}).items()}
        if kind == "array":
            return [self.example(schema["items"])] if schema.get("items") else []
        return {"integer": max(schema.get("minimum", 0), 0), "number": 0.5, "boolean": True, "string": "text"}.get(
            kind or ""
        )


def _portable(schema: Any) -> Any:
    """Patterns as every language has them: Python's `\\Z` is `$` elsewhere."""
    if isinstance(schema, dict):
        return {
            name: value.replace("\\Z", "$") if name == "pattern" and isinstance(value, str) else _portable(value)
            for name, value in schema.items()
        }
    return [_portable(each) for each in schema] if isinstance(schema, list) else schema


def _operation(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": operation.about or operation.summary,
        "tags": [operation.tag],
        "parameters": list(_parameters(operation, schemas)),
        "responses": _responses(operation, schemas),
    }
    if operation.body is not None:
        described["requestBody"] = _request_body(operation.body, schemas)
    return described


def _parameters(operation: Operation, schemas: Schemas) -> Iterable[dict[str, Any]]:
    declared = {}
    if operation.path is not None:
        declared = schemas.resolved(schemas.of(operation.path))["properties"]
    for name in (segment[1:-1] for segment in operation.url.split("/") if segment.startswith("{")):
        yield _parameter(name, "path", declared.get(name, {"type": "string", "minLength": 1}), schemas, required=True)
    for place, kind in (("query", operation.query), ("header", operation.headers)):
        if kind is not None:
            whole = schemas.resolved(schemas.of(kind))
            for name, schema in whole["properties"].items():
                yield _parameter(name, place, schema, schemas, required=name in whole["required"])


def _parameter(name: str, place: str, schema: Schema, schemas: Schemas, *, required: bool) -> dict[str, Any]:
    schema = _without_null(schema)
    described = {
        "name": name,
        "in": place,
        "description": schema.pop("description", ""),
        "required": required,
        "schema": schema,
        "example": schemas.example(schema),
    }
    if schema.get("type") == "array":
        described |= {"style": "form", "explode": False}
    return described


def _without_null(schema: Schema) -> Schema:
    """Left out is what null stands for: no parameter is ever null."""
    others = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(others) != 1:
        return dict(schema)
    rest = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
    return {**others[0], **rest}


def _request_body(body: Body, schemas: Schemas) -> dict[str, Any]:
    content = {name: _content(kinds, body.examples.get(name), schemas) for name, kinds in _media(body).items()}
    return {"description": body.about, "required": body.required, "content": content}


def _content(kinds: tuple[Any, ...], example: Any, schemas: Schemas) -> dict[str, Any]:
    if not kinds:
        return {"example": example or _BYTES}
    found = [schemas.of(kind) for kind in kinds]
    schema = found[0] if len(found) == 1 else {"anyOf": found}
    return {"schema": schema, "example": schemas.example(schema) if example is None else example}


def _responses(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    answers: dict[int, Reply] = {status: Reply(HTTPStatus(status).phrase) for status in COMMON}
    answers |= operation.answers
    return {str(status): _response(status, reply, schemas) for status, reply in sorted(answers.items())}


def _response(status: int, reply: Reply, schemas: Schemas) -> dict[str, Any]:
    described: dict[str, Any] = {"description": reply.about}
    if reply.headers:
        described["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in reply.headers.items()
        }
    if status == 204:
        return described
    problem = {CONTENT_TYPE.decode(): {"schema": schemas.of(ProblemBody)}}
    if reply.kind is None and status >= 400:
        described["content"] = problem
    else:
        content = _content(_several(reply.kind), reply.example, schemas)
        described["content"] = dict.fromkeys(reply.media, content) | (problem if status in COMMON else {})
    described["content"] |= {media: _content((kind,), None, schemas) for media, kind in reply.also.items()}
    return described


# The page


def page(spec: Mapping[str, Any], codes: Mapping[str, str] = CODES) -> str:
    """All of a document as one page of HTML, with nothing to load from elsewhere. `codes` are those of problems."""
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
    parts.append("<h2>Problems</h2><p>What the <code>type</code> and <code>code</code> of a problem stand for.</p><dl>")
    parts += [
        f"<dt id='problem-{escape(code)}'><code>{escape(code)}</code></dt><dd>{escape(text)}</dd>"
        for code, text in sorted(codes.items())
    ]
    parts += [f"<h2>Schemas</h2>{_components(spec)}", "</dl></main></body></html>"]
    return "\n".join(parts)


def _components(spec: Mapping[str, Any]) -> str:
    return "".join(
        f"<details id='schema-{escape(name)}'><summary><code>{escape(name)}</code></summary>{_pre(schema)}</details>"
        for name, schema in spec["components"]["schemas"].items()
    )


def _section(method: str, path: str, operation: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(p['name'])}</code></td><td>{p['in']}{', required' if p['required'] else ''}</td>"
        f"<td>{escape(p['description'])} <small>{escape(_short(p['schema']))}</small></td></tr>"
        for p in operation["parameters"]
    )
    body = operation.get("requestBody")
    taken = ""
    if body:
        media = "".join(_example(name, content) for name, content in body["content"].items())
        taken = f"<p><b>Body</b> {escape(body['description'])}</p>{media}"
    answers = "".join(
        f"<tr><td>{status}</td><td>{escape(reply['description'])}{_answer_example(reply)}</td></tr>"
        for status, reply in operation["responses"].items()
        if int(status) not in COMMON
    )
    return (
        f"<details id='{escape(operation['operationId'])}'><summary><b class='{method}'>{method.upper()}</b> "
        f"<code>{escape(path)}</code> {escape(operation['summary'])}</summary>"
        f"<p>{escape(operation['description'])}</p><table>{rows}</table>{taken}"
        f"<table>{answers}</table></details>"
    )


def _answer_example(reply: Mapping[str, Any]) -> str:
    examples = (content for content in reply.get("content", {}).values() if "schema" in content)
    return "".join(_pre(content["example"]) for content in examples if "example" in content)


def _example(media: str, content: Mapping[str, Any]) -> str:
    schemas = content.get("schema", {})
    names = [each["$ref"].removeprefix(_REF_START) for each in schemas.get("anyOf", [schemas]) if "$ref" in each]
    links = ", ".join(f"<a href='#schema-{escape(name)}'>{escape(name)}</a>" for name in names)
    return f"<p><code>{escape(media)}</code> {links}</p>{_pre(content['example'])}"


def _pre(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=1, ensure_ascii=False))}</pre>"


def _short(schema: Mapping[str, Any]) -> str:
    words = [str(schema.get("type", ""))]
    if "enum" in schema:
        words.append(" | ".join(map(str, schema["enum"])))
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


def documented(
    mounted: list[Routes], *, title: str, version: str, about: str, codes: Mapping[str, str] = CODES
) -> Routes:
    """Routes that show all others: `/openapi.json` and `/docs`; both are made once."""
    routes = Routes(tag="Documentation", about="This.")
    made: dict[str, bytes] = {}

    def spec() -> dict[str, Any]:
        return document([*mounted, routes], title=title, version=version, about=about)

    @routes.get("/openapi.json", "OpenAPI 3.1.", answers={200: Reply("The document.", dict[str, Any], example={})})
    async def openapi(request: Request) -> Answer:  # noqa: ARG001 - as every handler
        if "spec" not in made:
            made["spec"] = json_answer(spec()).body
        return Answer(200, made["spec"])

    @routes.get("/docs", "This page.", answers={200: Reply("A page.", media=("text/html",))})
    async def docs(request: Request) -> Answer:  # noqa: ARG001
        if "page" not in made:
            made["page"] = page(spec(), codes).encode()
        policy = b"default-src 'none'; style-src 'unsafe-inline'"
        return Answer(200, made["page"], b"text/html; charset=utf-8", ((b"content-security-policy", policy),))

    return routes
