"""A broker that does not tell of some of what it serves, as older ones do not serve it."""

import pytest

from headrace.protocol.api import ApiKey
from headrace.server.handlers import api_versions

_TRANSACTIONS = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)


def hide_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no broker of this process tells clients that it has transactions."""
    left = tuple(entry for entry in api_versions._api_keys() if entry["api_key"] not in _TRANSACTIONS)
    monkeypatch.setattr(api_versions, "_api_keys", lambda: left)
