"""Lists in pages: `limit` and `cursor` asked, `next` answered. A cursor names what the next page comes after."""

import base64
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import UNSET, Struct, UnsetType

from headrace.web.problem import bad_request

from .names import Cursor, Limit

T = TypeVar("T")


class PageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which page of a list."""

    limit: Limit = 1000
    cursor: Cursor | None = None


def page(items: Sequence[T], name: Callable[[T], str], query: PageQuery) -> tuple[list[T], str | UnsetType]:
    """The page of a list in any order, sorted by name, and the cursor of the next."""
    after = "" if query.cursor is None else _decoded(query.cursor)
    left = sorted((item for item in items if name(item) > after or query.cursor is None), key=name)
    found = left[: query.limit]
    return found, _encoded(name(found[-1])) if len(left) > len(found) else UNSET


def _encoded(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _decoded(cursor: str) -> str:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode()
    except ValueError:
        raise bad_request("cursor is not the `next` of a page") from None
