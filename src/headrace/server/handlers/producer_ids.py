"""InitProducerId, versions 0-5, for idempotent producers.

A producer gets an id that no other ever had, with epoch 0.

- v3 lets a producer that lost its place name its old id and epoch (KIP-360). Without a transaction there is nothing
  to keep, so it gets a new id, as from Kafka. One of the two without the other is INVALID_REQUEST.
- Left out: transactional ids. They are INVALID_REQUEST, which every client takes as final, instead of an error that
  it would retry until it times out; they wait for the transaction coordinator, and so does v6.
"""

from typing import Any, Final

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode

from ..context import Context, RequestInfo

NONE: Final = -1


async def handle_init_producer_id(ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:  # noqa: ARG001
    old_id = getattr(request, "producer_id", NONE)
    old_epoch = getattr(request, "producer_epoch", NONE)
    if request.transactional_id is not None or (old_id == NONE) != (old_epoch == NONE):
        return _answer(ErrorCode.invalid_request, NONE, NONE)
    return _answer(ErrorCode.none, await ctx.controller.allocate_producer_id(), 0)


def _answer(code: ErrorCode, producer_id: int, epoch: int) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": code, "producer_id": producer_id, "producer_epoch": epoch}


HANDLERS: Final = {ApiKey.INIT_PRODUCER_ID: handle_init_producer_id}
