"""Which media type a caller takes, and whether it sends one that is read here."""

from typing import Any, Final

from headrace.web.messages import Answer, Request, Stream, json_answer
from headrace.web.routes import Handler

MEDIA: Final = b"application/vnd.schemaregistry.v1+json"
SERVED: Final = (MEDIA, b"application/vnd.schemaregistry+json", b"application/json")
"""In the order of preference."""
TAKEN: Final = (*SERVED, b"application/octet-stream")
_ANYTHING: Final = (b"*/*", b"*", MEDIA)


def negotiating(handler: Handler) -> Handler:
    """Answers in the media type that is asked for; 406 and 415 in words that clients know."""

    async def negotiated(request: Request, **declared: Any) -> Answer | Stream:
        media = acceptable(request.fields.get(b"accept", b"*/*"))
        if media is None:
            return refusal(406, "HTTP 406 Not Acceptable")
        kind = request.media_type.encode("latin-1")
        if kind and kind not in TAKEN and request.method in ("POST", "PUT"):
            return refusal(415, "HTTP 415 Unsupported Media Type")
        answer = await handler(request, **declared)
        is_other = media != MEDIA and isinstance(answer, Answer) and answer.content_type == MEDIA
        return answer._replace(content_type=media) if is_other else answer

    return negotiated


def refusal(status: int, message: str) -> Answer:
    """A refusal by HTTP itself."""
    return json_answer({"error_code": status, "message": message}, status, content_type=MEDIA)


def acceptable(accept: bytes) -> bytes | None:
    """The type to answer in; None where none that is served is taken."""
    if accept in _ANYTHING:
        return MEDIA
    ranges = [_range(part) for part in accept.lower().split(b",")[:50]]
    best, media = 0.0, None
    for served in SERVED:
        weight = max((weight for kind, weight in ranges if _covers(kind, served)), default=0.0)
        if weight > best:
            best, media = weight, served
    return media


def _range(part: bytes) -> tuple[bytes, float]:
    kind, *parameters = (piece.strip() for piece in part.split(b";"))
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                return kind, float(value)
            except ValueError:
                return kind, 0.0
    return kind, 1.0


def _covers(kind: bytes, served: bytes) -> bool:
    family, _, rest = kind.partition(b"/")
    return family == b"*" or kind == served or (family == served.partition(b"/")[0] and rest == b"*")
