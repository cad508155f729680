"""What a broker answered, as kio's entities: for whoever asks one. Fetch has a reader of its own, `fetched`."""

from collections.abc import Callable
from functools import cache
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader

from .errors import ProtocolViolation
from .guard import check_response


@cache
def _reader(api_key: int, version: int) -> Callable[[memoryview | bytes, int], tuple[Any, int]]:
    return entity_reader(load_response_schema(api_key, version))


def decode_response(api_key: int, version: int, data: memoryview) -> Any:
    """The body of an answer as the entity of its version; `ProtocolViolation` when it is none."""
    body = check_response(api_key, version, data.toreadonly())
    try:
        entity, _ = _reader(api_key, version)(body, 0)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the native decoder is not an Exception
        raise ProtocolViolation(f"an answer that does not decode: {error}") from error
    return entity
