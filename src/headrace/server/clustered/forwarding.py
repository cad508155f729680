"""What only the controller can carry out, and how it gets there from any broker.

A broker that is not the controller sends the request on, with the name of who asked, and relays the answer. While no
controller is known, or the one that is known says it is none, it waits for one, but not for long: clients know how to
ask again after NOT_CONTROLLER. When the request was sent and no answer came, nobody knows whether it was carried out:
that is REQUEST_TIMED_OUT.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from headrace.net.peers import Peers, PeerUnreachable, Purpose
from headrace.protocol.api import SUPPORTED, ApiKey
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import blank_response, encode_request
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.peer import InternalApi, PeerMessage

from ..context import Context, RequestInfo
from ..dispatch import Answer, Handler, Work, decode_in_turns, encoded_answer
from ..handlers.configs import is_for_loggers

CONTROLLER_APIS: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.ALTER_CLIENT_QUOTAS,
    }
)
WAIT_SECONDS: Final = 5.0
"""How long a request waits for a controller."""
_PAUSE: Final = 0.05
_LONGEST: Final = 60.0
_USUAL: Final = 30.0
_SPARE: Final = 5.0
"""What an answer may take longer than the client gave the work it asks for."""


class Forwarder:
    """Carries requests to the controller, wherever it is."""

    def __init__(
        self,
        *,
        broker_id: int,
        active_controller: Callable[[], int | None],
        peers: Peers,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._broker_id = broker_id
        self._active_controller = active_controller
        self._peers = peers
        self._wait_seconds = wait_seconds

    def takes(self, api_key: int, entity: Any) -> bool:
        """Whether a request is the controller's: all of these APIs, but not those for a broker's own loggers."""
        if api_key == ApiKey.INCREMENTAL_ALTER_CONFIGS and is_for_loggers(entity):
            return False
        return api_key in CONTROLLER_APIS

    async def answer(self, info: RequestInfo, entity: Any, body: bytes, run_here: Work) -> Answer:
        """The controller's answer to a request, given decoded and in bytes; this broker's own if it is that."""
        clock = asyncio.get_running_loop()
        deadline = clock.time() + self._wait_seconds
        while True:
            controller = self._active_controller()
            if controller == self._broker_id:
                return await run_here()
            if controller is not None:
                try:
                    return await self._relay(controller, info, entity, body)
                except PeerUnreachable as error:
                    if error.was_sent:
                        return refusal(info, entity, ErrorCode.request_timed_out, str(error))
                except CodedError as error:
                    if error.code is not ErrorCode.not_controller:
                        return refusal(info, entity, error.code, error.message)
            if clock.time() >= deadline:
                return refusal(info, entity, ErrorCode.not_controller, "the cluster has no controller at the moment")
            await asyncio.sleep(_PAUSE)

    async def ask(
        self, info: RequestInfo, values: Mapping[str, Any], run_here: Callable[[Any], Awaitable[Answer]]
    ) -> Any:
        """The same for a request that this broker makes by itself for who asked it something else: values in, by the
        newest version's field names, kio's entity out."""
        api_key, version = info.api_key, info.version
        body = bytes(encode_request(api_key, version, values))
        entity = await decode_in_turns(api_key, version, memoryview(body))
        answer = await encoded_answer(info, lambda: self.answer(info, entity, body, lambda: run_here(entity)))
        return decode_response(api_key, version, memoryview(answer))

    async def _relay(self, controller: int, info: RequestInfo, entity: Any, body: bytes) -> bytes:
        facts = info._asdict()
        if not info.by_token:
            del facts["by_token"]  # a broker of an older release does not know it
        del facts["listener"]  # an answer with addresses is not the controller's to give
        message = PeerMessage(facts, body)
        seconds = _seconds_for(entity)
        answer = await self._peers.send(
            controller, InternalApi.FORWARD, message, purpose=Purpose.FORWARD, timeout=seconds
        )
        return bytes(answer.attachment)


class Forwarded:
    """Carries out, on the controller, what other brokers forward. A `PeerHandler`."""

    def __init__(self, broker_id: int, context: Context, handlers: Mapping[ApiKey, Handler]) -> None:
        self._broker_id = broker_id
        self._context = context
        self._handlers = handlers

    async def __call__(self, message: PeerMessage, broker_id: int) -> PeerMessage:
        if self._context.active_controller() != self._broker_id:
            raise CodedError(ErrorCode.not_controller, f"broker {self._broker_id} is not the controller")
        info = _info(message.values)._replace(forwarded_by=broker_id)
        entity = await decode_in_turns(info.api_key, info.version, memoryview(message.attachment))
        handler = self._handlers[ApiKey(info.api_key)]
        body = await encoded_answer(info, lambda: handler(self._context, entity, info))
        return PeerMessage({}, body)


def _info(values: Mapping[str, Any]) -> RequestInfo:
    try:
        info = RequestInfo(**values)
    except TypeError:
        raise CodedError(ErrorCode.invalid_request, "what was forwarded does not say what it is") from None
    if info.api_key not in CONTROLLER_APIS:
        raise CodedError(ErrorCode.invalid_request, f"API {info.api_key} is not the controller's")
    versions = SUPPORTED.get(ApiKey(info.api_key))
    if versions is None or not versions.min <= info.version <= versions.max:
        raise CodedError(ErrorCode.unsupported_version, f"the controller does not know version {info.version}")
    return info


def _seconds_for(entity: Any) -> float:
    timeout = getattr(entity, "timeout", None)
    return _USUAL if timeout is None else min(max(timeout.total_seconds(), 0.0) + _SPARE, _LONGEST)


def refusal(info: RequestInfo, entity: Any, code: ErrorCode, message: str) -> dict[str, Any]:
    """An answer that says of everything that was asked for why it was not done."""
    error = {"error_code": code, "error_message": message}
    values = blank_response(info.api_key, info.version, code.value) | {"error_message": message}
    refuse = _REFUSALS.get(info.api_key)
    return values if refuse is None else values | refuse(entity, error)


def _no_topics_created(entity: Any, error: dict[str, Any]) -> dict[str, Any]:
    nothing = {"topic_id": None, "num_partitions": -1, "replication_factor": -1, "configs": ()}
    return {"topics": [{"name": topic.name, **nothing, **error} for topic in entity.topics or ()]}


def _no_topics_deleted(entity: Any, error: dict[str, Any]) -> dict[str, Any]:
    if hasattr(entity, "topics"):
        asked = [(topic.name, topic.topic_id) for topic in entity.topics or ()]
    else:
        asked = [(name, None) for name in entity.topic_names or ()]
    return {"responses": [{"name": name, "topic_id": topic_id, **error} for name, topic_id in asked]}


def _no_partitions_created(entity: Any, error: dict[str, Any]) -> dict[str, Any]:
    return {"results": [{"name": topic.name, **error} for topic in entity.topics or ()]}


def _no_configs_altered(entity: Any, error: dict[str, Any]) -> dict[str, Any]:
    asked = entity.resources or ()
    return {
        "responses": [
            {"resource_type": resource.resource_type, "resource_name": resource.resource_name, **error}
            for resource in asked
        ]
    }


def _no_leaders_elected(entity: Any, error: dict[str, Any]) -> dict[str, Any]:
    """Version 0 has a place for errors with each partition only."""
    return {
        "replica_election_results": [
            {"topic": topic.topic, "partition_result": [{"partition_id": index, **error} for index in topic.partitions]}
            for topic in entity.topic_partitions or ()
        ]
    }


def _no_acls_created(entity: Any, error: dict[str, Any]) -> dict[str, Any]:
    return {"results": [error for _ in entity.creations or ()]}


def _no_acls_deleted(entity: Any, error: dict[str, Any]) -> dict[str, Any]:
    return {"filter_results": [{**error, "matching_acls": ()} for _ in entity.filters or ()]}


def _no_credentials_altered(entity: Any, error: dict[str, Any]) -> dict[str, Any]:
    users = dict.fromkeys(each.name for each in (*(entity.deletions or ()), *(entity.upsertions or ())))
    return {"results": [{"user": user, **error} for user in users]}


def _no_quotas_altered(entity: Any, error: dict[str, Any]) -> dict[str, Any]:
    def named(parts: Any) -> list[dict[str, Any]]:
        return [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in parts or ()]

    return {"entries": [{"entity": named(entry.entity), **error} for entry in entity.entries or ()]}


_REFUSALS: Final[dict[int, Callable[[Any, dict[str, Any]], dict[str, Any]]]] = {
    ApiKey.CREATE_TOPICS: _no_topics_created,
    ApiKey.DELETE_TOPICS: _no_topics_deleted,
    ApiKey.CREATE_PARTITIONS: _no_partitions_created,
    ApiKey.ALTER_CONFIGS: _no_configs_altered,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _no_configs_altered,
    ApiKey.ELECT_LEADERS: _no_leaders_elected,
    ApiKey.CREATE_ACLS: _no_acls_created,
    ApiKey.DELETE_ACLS: _no_acls_deleted,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _no_credentials_altered,
    ApiKey.ALTER_CLIENT_QUOTAS: _no_quotas_altered,
}
"""For APIs whose answers have no place for an error of the whole."""
