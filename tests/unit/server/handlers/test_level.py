"""UpdateLevel, asked of a lone broker."""

from struct import pack
from typing import Any

import pytest

from headrace.protocol.levels import SUPPORTED
from headrace.protocol.peer import InternalApi, PeerMessage, decode_message, encode_message
from headrace.testing import Broker
from tests.support.wire import Wire


def asked(broker: Broker, body: bytes, version: int = 0) -> dict[str, Any]:
    with Wire(broker.bootstrap) as wire:
        wire.send_frame(pack(">hhih", InternalApi.UPDATE_LEVEL, version, 5, -1) + body)
        frame = wire.receive_frame()
    assert frame[:4] == pack(">i", 5)
    return dict(decode_message(memoryview(frame)[4:]).values)


def message(**values: Any) -> bytes:
    return b"".join(bytes(part) for part in encode_message(PeerMessage(values)))


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_new_broker_has_the_newest_level_already(headrace_broker: Broker, dry_run: bool) -> None:
    answer = asked(headrace_broker, message(to=None, dry_run=dry_run))
    assert (answer["before"], answer["after"], answer["newest"]) == (SUPPORTED.max,) * 3
    ((levels, version),) = ((broker["levels"], broker["version"]) for broker in answer["brokers"].values())
    assert levels == list(SUPPORTED)
    assert version


def test_a_level_that_the_broker_does_not_speak_is_refused(headrace_broker: Broker) -> None:
    answer = asked(headrace_broker, message(to=SUPPORTED.max + 1, dry_run=False))
    assert answer["error"] == "feature_update_failed"
    assert "replace them" in answer["message"]


@pytest.mark.parametrize(
    ("body", "version", "error"),
    [
        (message(to="2"), 0, "invalid_request"),
        (message(to=True), 0, "invalid_request"),
        (message(to=1, dry_run="yes"), 0, "invalid_request"),
        (b"\0\0\0\5[", 0, "invalid_request"),
        (b"", 0, "invalid_request"),
        (message(to=1, padding="x" * 5000), 0, "invalid_request"),
        (message(to=1), 1, "unsupported_version"),
    ],
)
def test_what_is_no_such_request_is_answered_with_what_is_wrong(
    headrace_broker: Broker, body: bytes, version: int, error: str
) -> None:
    assert asked(headrace_broker, body, version)["error"] == error
