"""When a query that failed starts again."""

from ..errors import is_unreachable
from .model import Restart

_TOO_SLOW = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start, which a busy machine may not have."""


def passes_by_itself(failure: BaseException) -> bool:
    """Whether nothing is wrong with the query: the cluster was away, or the machine too busy."""
    told = [failure, failure.__cause__] if failure.__cause__ is not None else [failure]
    return any(is_unreachable(one) or _TOO_SLOW in str(one) for one in told)


def delay_before(restart: Restart, failure: BaseException, failed: int) -> float | None:
    """The seconds until a query starts again that failed `failed` times since its last batch, or None: never."""
    if restart.attempts is not None and failed > restart.attempts:
        return None
    if restart.on != "any" and not passes_by_itself(failure):
        return None
    return float(min(restart.delay * 2.0 ** min(failed - 1, 30), restart.max_delay))
