"""What went wrong with a request, as RFC 9457 has it: raised anywhere below a handler, answered in one place."""

from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from .messages import Answer, HeaderList

CONTENT_TYPE: Final = b"application/problem+json"
_encode: Final = msgspec.json.Encoder().encode
CODES: Final[dict[str, str]] = {
    "invalid-request": "Something in the path, the query, a header or the body is not what it must be.",
    "invalid-json": "The body is not JSON.",
    "unknown-member": "The body has a member that does not exist there.",
    "unknown-parameter": "The query has a parameter that does not exist there.",
    "bad-request": "The body is damaged.",
    "not-found": "There is nothing at this path.",
    "method-not-allowed": "The path does not take this method; `Allow` names those that it takes.",
    "request-timeout": "The body stood still for too long.",
    "content-too-large": "The body has too many bytes.",
    "unsupported-media-type": "The body is of a type, or in an encoding, that is not taken here.",
    "wrong-host": "`Host` is not a name of this server.",
    "cross-site": "A page of another site asked.",
    "rate-limited": "Too many requests; `Retry-After` says when the next one is welcome.",
    "service-unavailable": "Too much is going on; try again.",
    "internal": "A defect; the log says more.",
}
"""What each code means, of those that this package raises."""


class Problem(Exception):
    """An answer that says what is wrong. `code` is for programs and stays the same, `detail` is for people.

    `more` are further members of the answer, such as `errors` with one entry per partition.
    """

    def __init__(
        self, status: int, detail: str, *, code: str = "", headers: HeaderList = (), more: dict[str, Any] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code or default_code(status)
        self.headers = headers
        self.more = more or {}


def default_code(status: int) -> str:
    """The code of a problem that names none."""
    return "content-too-large" if status == 413 else HTTPStatus(status).phrase.lower().replace(" ", "-")


def bad_request(detail: str, code: str = "invalid-request") -> Problem:
    """What the caller sent cannot be meant."""
    return Problem(400, detail, code=code)


class ProblemBody(Struct, rename={"type_": "type"}):
    """What is wrong, as RFC 9457 has it."""

    type_: Annotated[str, Meta(description="Where the code is explained.", examples=["/docs#problem-unknown-topic"])]
    title: Annotated[str, Meta(examples=["Not Found"])]
    status: Annotated[int, Meta(examples=[404])]
    detail: Annotated[str, Meta(description="For people.", examples=["topic 'orders': unknown topic or partition"])]
    code: Annotated[str, Meta(description="For programs.", examples=["unknown-topic"])]


def render(problem: Problem) -> Answer:
    """The problem as `application/problem+json`."""
    members = {
        "type": f"/docs#problem-{problem.code}",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
        **problem.more,
    }
    return Answer(problem.status, _encode(members), CONTENT_TYPE, problem.headers)
