"""Makes the first SCRAM users of a cluster that has none: without them nobody could log in to make others.

The request goes to the controller as any change of users does, in the name of this broker. By that the controller
knows that it counts only where there are no users yet, so that of two brokers with other passwords one wins as a whole.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final

import structlog

from headrace.cluster.entries import EntryKind
from headrace.protocol.api import ApiKey
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.security.sasl.first_users import FirstUser

from .clustered.forwarding import Forwarder
from .context import Context, RequestInfo
from .dispatch import decode_body, encoded_answer
from .handlers.scram import handle_alter_user_scram_credentials

WAIT_SECONDS: Final = 30.0
_PAUSE: Final = 0.2
_VERSION: Final = 0

log = structlog.get_logger(__name__)


async def add_first_users(users: Sequence[FirstUser], context: Context, forwarder: Forwarder | None) -> None:
    """Returns once there are users, or when it has failed for `WAIT_SECONDS`, which is logged.

    A lone broker, which has nobody to forward to, is the controller itself.
    """
    broker_id, there = context.config.node_id, context.image.entries[EntryKind.USER]
    clock = asyncio.get_running_loop()
    deadline = clock.time() + WAIT_SECONDS
    request = {"deletions": (), "upsertions": [user.upsertion() for user in users]}
    info = RequestInfo(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS, _VERSION, None, f"Broker:{broker_id}", "", peer_broker=broker_id
    )
    while not there:
        answer = await _ask(info, request, context, forwarder)
        failed = next((result for result in answer.results if result.error_code is not ErrorCode.none), None)
        if failed is None:
            log.info("first users made", users=", ".join(sorted({user.name for user in users})))
            return
        if clock.time() >= deadline or failed.error_code is not ErrorCode.not_controller:
            log.error("first users not made", reason=failed.error_message or failed.error_code.name)
            return
        await asyncio.sleep(_PAUSE)
    log.info("no first users made: the cluster has users already")


async def _ask(info: RequestInfo, values: Mapping[str, Any], context: Context, forwarder: Forwarder | None) -> Any:
    def run_here(entity: Any) -> Awaitable[Mapping[str, Any]]:
        return handle_alter_user_scram_credentials(context, entity, info)

    if forwarder is not None:
        return await forwarder.ask(info, values, run_here)
    entity = decode_body(info.api_key, info.version, memoryview(encode_request(info.api_key, info.version, values)))
    answer = await encoded_answer(info, lambda: run_here(entity))
    return decode_response(info.api_key, info.version, memoryview(answer))
