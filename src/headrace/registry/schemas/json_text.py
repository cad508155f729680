"""JSON in the texts of schemas: only what every reader of JSON takes."""

import json
import math
from typing import Any, NoReturn

from ..errors import InvalidSchemaError


def load(text: str) -> Any:
    """The value in a text; InvalidSchemaError for what is not JSON, also NaN, Infinity and numbers as large."""
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"not JSON: {error}") from error


def _refused(word: str) -> NoReturn:
    raise InvalidSchemaError(f"not JSON: {word} is no number in it")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidSchemaError(f"not JSON: {text[:40]} is too large a number")
    return number
