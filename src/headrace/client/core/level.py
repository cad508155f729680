"""UpdateLevel: raises the feature level of a cluster. Brokers that know no such API close the connection."""

from collections.abc import Mapping
from typing import Any, Final

from headrace.protocol.peer import VERSION as VERSION
from headrace.protocol.peer import Buffer, InternalApi, PeerMessage, checked, decode_message, encode_message

UPDATE_LEVEL: Final = int(InternalApi.UPDATE_LEVEL)


def update_level_request(to: int | None, *, dry_run: bool) -> list[Buffer]:
    """The body of the request; without a level the newest that all brokers speak is asked for."""
    return encode_message(PeerMessage({"to": to, "dry_run": dry_run}))


def read_level_update(body: memoryview) -> Mapping[str, Any]:
    """`before`, `after`, `newest` and `brokers` in the body of an answer; `CodedError` where it was refused."""
    return checked(decode_message(body)).values
