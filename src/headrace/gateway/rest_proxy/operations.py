"""What operations of REST Proxy have in common: types asked and answered, bodies and how they are refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct

from headrace.web.checking import check_counts, decoder
from headrace.web.messages import JSON, Answer, Request, Stream
from headrace.web.problem import Problem
from headrace.web.routes import Body, Handler, Render, Reply, Routes

from .failures import V2_MEDIA, V3_MEDIA, Refusal, failures, render_v2, render_v3
from .media import accepted, require_json, require_json_accepted, require_taken


class Anything(Struct, frozen=True):
    """Parameters that are not known are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One version."""

    name: str
    answer_types: tuple[str, ...]
    """What answers are in, the usual one first."""
    choose: Callable[[Request], bytes]
    """The type to answer a request in; `Refusal` 406 where the caller takes none."""
    require_taken: Callable[[Request], None]
    """`Refusal` 415 for a body of another type."""
    render: Render
    unfit: int
    """The status for JSON that is not what it must be."""
    below: tuple[str, ...]
    """Where paths begin that are this version's alone."""

    def routes(self, tag: str, about: str) -> Routes:
        """Routes whose problems look as this version has them."""
        return Routes(tag=tag, about=about, render=self.render, below=self.below)

    def add(
        self,
        routes: Routes,
        method: str,
        url: str,
        summary: str,
        handler: Handler,
        *,
        kind: Any = None,
        required: bool = True,
        unfit: int = 0,
        query: type[Struct] | None = None,
        name: str = "",
        answers: Mapping[int, Reply],
        **more: Any,
    ) -> None:
        """An operation; with a `kind` of body its handler gets that as `body`. One that is not so is refused with the
        number `unfit`."""
        if kind is not None:
            media = dict.fromkeys(self.answer_types, kind)
            more["body"] = Body("See the summary.", media=media, required=required)
        refusals = failures(self.answer_types[0].encode())
        routes.add(
            method,
            url,
            summary,
            self._serving(handler, kind, required=required, unfit=unfit, passes_query=query is not None),
            name=f"{self.name}_{name or handler.__name__.strip('_')}",
            query=query or Anything,
            answers={**refusals, **answers},
            **more,
        )

    def answered(self, about: str, kind: Any, status: int = 200, example: Any = None) -> dict[int, Reply]:
        """The answer where all is well."""
        return {status: Reply(about, kind, self.answer_types, example=example)}

    def body_of(self, data: bytes, read: Callable[[bytes], Any], unfit: int = 0) -> Any:
        """A body; JSON that is not what it must be has a status of its own."""
        try:
            return read(data)
        except Problem as problem:
            if problem.code == "invalid-json":
                raise Refusal(400, 400, problem.detail) from None
            raise Refusal(self.unfit, unfit or self.unfit, problem.detail) from None

    async def check_counts(self, data: bytes) -> None:
        """`Refusal` for a body whose lists are too long to be read at all."""
        try:
            await check_counts(data)
        except Problem as problem:
            raise Refusal(self.unfit, self.unfit, problem.detail) from None

    def _serving(self, handler: Handler, kind: Any, *, required: bool, unfit: int, passes_query: bool) -> Handler:
        read = None if kind is None else decoder(kind, "the body", strict=False)

        async def serve(request: Request, query: Any, **declared: Any) -> Answer | Stream:
            media = self.choose(request)
            if passes_query:
                declared["query"] = query
            if read is not None:
                self.require_taken(request)
                data = await request.body()
                await self.check_counts(data)
                declared["body"] = self.body_of(data, read, unfit) if data or required else None
            answer = await handler(request, **declared)
            if isinstance(answer, Answer) and answer.content_type == JSON:
                return answer._replace(content_type=media)
            return answer

        return serve


V2: Final = Api(
    name="v2",
    answer_types=(V2_MEDIA.decode(), "application/json"),
    choose=lambda request: accepted(request)[0].encode(),
    require_taken=require_taken,
    render=render_v2,
    unfit=422,
    below=("/consumers", "/brokers"),
)
V3: Final = Api(
    name="v3",
    answer_types=(V3_MEDIA.decode(),),
    choose=require_json_accepted,
    require_taken=require_json,
    render=render_v3,
    unfit=400,
    below=("/v3",),
)
DONE: Final = {204: Reply("Done.")}
