"""Data that a query should have read and that is no longer there: an error, or a warning, as the user chose."""

import logging
from collections.abc import Iterable
from typing import Final

from headrace.client.errors import ClientError

LOG: Final = logging.getLogger("headrace.spark")

_WHY: Final = (
    "records were deleted before the query read them: retention expired them, or the topic was deleted or made anew"
)


class DataLost(ClientError):
    """Records are gone that the query had not read."""


def report(losses: Iterable[str], *, fail: bool) -> None:
    """Raise `DataLost` for what was lost, or warn if the query is to go on with what is there."""
    found = "; ".join(losses)
    if not found:
        return
    if fail:
        raise DataLost(f"{found}. Maybe {_WHY}. To go on with what is there, set option failOnDataLoss to false.")
    LOG.warning("%s. Maybe %s. To fail on this, set option failOnDataLoss to true.", found, _WHY)
