"""Refusals as REST Proxy's callers know them: `error_code`, which begins with the status, and `message`.

What the gateway and the brokers refuse is a `Problem` everywhere else; a table for each version gives it its number.
"""

from collections.abc import Awaitable, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct

from headrace.web.messages import Answer, BadBody, json_answer
from headrace.web.problem import Problem
from headrace.web.routes import Render, Reply

from ..translate import translate

V2_MEDIA: Final = b"application/vnd.kafka.v2+json"
V3_MEDIA: Final = b"application/json"

Numbers = Mapping[str, tuple[int, int]]
"""Status and `error_code` by the code of a problem."""

_COMMON: Final[Numbers] = {
    "unauthenticated": (401, 40101),
    "topic-forbidden": (403, 40301),
    "internal-topic": (403, 40301),
    "group-forbidden": (403, 40301),
    "cluster-forbidden": (403, 40301),
    "unavailable": (500, 50003),
    "refused-by-brokers": (500, 50002),
    "invalid-request": (404, 404),  # of a path or a query: what is wrong in a body is refused with a number of its own
    "unknown-parameter": (404, 404),
}
V2_NUMBERS: Final[Numbers] = {
    **_COMMON,
    "unknown-topic": (404, 40401),
    "unknown-partition": (404, 40402),
    "unknown-consumer": (404, 40403),
    "unknown-group": (404, 40403),
    "polled-already": (409, 40903),
    "not-assigned": (409, 40903),
    "group-is-full": (409, 40903),
}
V3_NUMBERS: Final[Numbers] = {
    **_COMMON,
    "unknown-topic": (404, 40403),
    "unknown-partition": (404, 40403),
    "unknown-group": (404, 40403),
    "group-has-members": (400, 40002),
    "topic-exists": (400, 40002),
    "invalid-topic": (400, 40002),
    "invalid-partitions": (400, 40002),
    "invalid-replication-factor": (400, 40002),
    "invalid-config": (400, 40002),
    "invalid-record": (400, 40002),
    "invalid-timestamp": (400, 40002),
    "policy-violation": (400, 40002),
}
_BODY_STATUSES: Final = {
    400: "The body is not JSON.",
    401: "Credentials are missing, or the brokers do not take them.",
    403: "Not allowed.",
    404: "There is no such thing, or the path is not one.",
    405: "The path does not take this method.",
    406: "None of the types in `Accept` is served.",
    408: "The body stood still, or the schema could not be registered.",
    409: "Not in this state.",
    413: "The body is too large.",
    415: "The body is of a type that is not taken.",
    421: "`Host` is not a name of this server.",
    422: "The body is not what it must be.",
    429: "Too many requests.",
    500: "The brokers refused, or do not answer.",
    501: "The brokers do not know this request.",
    503: "Too much is going on.",
}


class ErrorBody(Struct):
    """What is wrong, in REST Proxy's way."""

    error_code: Annotated[int, Meta(description="Begins with the status.", examples=[40401])]
    message: Annotated[str, Meta(examples=["Topic not found."])]


class Refusal(Problem):
    """A problem with a number of its own."""

    def __init__(self, status: int, error_code: int, message: str) -> None:
        super().__init__(status, message, more={"error_code": error_code})


def numbered(problem: Problem, numbers: Numbers) -> tuple[int, int]:
    """The status and the `error_code` of a problem."""
    own = problem.more.get("error_code")
    if own is not None:
        return problem.status, own
    return numbers.get(problem.code, (problem.status, problem.status))


def _rendering(numbers: Numbers, media: bytes) -> Render:
    def render(problem: Problem) -> Answer:
        status, number = numbered(problem, numbers)
        return json_answer(ErrorBody(number, problem.detail), status, problem.headers, media)

    return render


render_v2: Final = _rendering(V2_NUMBERS, V2_MEDIA)
"""A problem as v2 has it."""
render_v3: Final = _rendering(V3_NUMBERS, V3_MEDIA)
"""A problem as v3 has it."""


async def in_v2_form(answering: Awaitable[Answer]) -> Answer:
    """An answer that has v2's form also where it is a refusal, on a path that v2 shares with others."""
    try:
        return await answering
    except BadBody as error:
        problem: Problem | None = Problem(error.status, str(error))
    except Exception as error:
        problem = error if isinstance(error, Problem) else translate(error)
        if problem is None:
            raise
    assert problem is not None
    return render_v2(problem)


def failures(media: bytes) -> dict[int, Reply]:
    """What any operation may refuse with."""
    return {status: Reply(about, ErrorBody, (media.decode(),)) for status, about in _BODY_STATUSES.items()}
