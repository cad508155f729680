"""What went wrong with a request, as RFC 9457 has it: raised anywhere below a handler, answered in one place."""

import json
from http import HTTPStatus
from typing import Any, Final

from .messages import Answer, HeaderList

CONTENT_TYPE: Final = b"application/problem+json"


class Problem(Exception):
    """An answer that says what is wrong. `code` is for programs and stays the same, `detail` is for people.

    `more` are further members of the answer, such as `errors` with one entry per record.
    """

    def __init__(
        self, status: int, detail: str, *, code: str = "", headers: HeaderList = (), more: dict[str, Any] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code or HTTPStatus(status).phrase.lower().replace(" ", "-")
        self.headers = headers
        self.more = more or {}


def bad_request(detail: str, code: str = "invalid-request") -> Problem:
    """What the caller sent cannot be meant."""
    return Problem(400, detail, code=code)


def render(problem: Problem) -> Answer:
    """The problem as `application/problem+json`."""
    status = HTTPStatus(problem.status)
    members = {
        "type": f"/docs#problem-{problem.code}",
        "title": status.phrase,
        "status": problem.status,
        "detail": problem.detail,
        "code": problem.code,
        **problem.more,
    }
    body = json.dumps(members, ensure_ascii=False).encode("utf-8", "replace")
    return Answer(problem.status, body, CONTENT_TYPE, problem.headers)
