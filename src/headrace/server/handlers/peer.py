"""Hello, and what else only brokers of one cluster ask each other: the API keys from 20000 on.

A connection becomes a broker's by the handshake of `headrace.security.hello`, once, and before anything else is known
of it: on the listener for brokers where one is configured, and nowhere else; on any where none is. Who fails is told so
and the connection closed. Until then every other key from 20000 on, but for that of `handlers.health`, closes the
connection: no client has one. Requests of brokers run side by side; answers keep their order.
"""

from collections.abc import Awaitable, Callable, Mapping
from random import Random
from struct import Struct
from typing import Any, Final
from weakref import WeakKeyDictionary

import structlog

from headrace.net.tasks import Tasks
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.levels import level_of
from headrace.protocol.peer import InternalApi, PeerMessage, decode_message, encode_message, failure
from headrace.security.hello import NONCE_BYTES, Greeting, Role

from ..clustered.peers import PeerIdentity, spoken_levels
from ..connection import Connection, Parts, Slot

LONGEST_HELLO: Final = 4096
_HEAD: Final = Struct(">ii")

log = structlog.get_logger(__name__)

PeerHandler = Callable[[PeerMessage, int], Awaitable[PeerMessage]]
"""Carries out what a broker, named by its id, asks; raises `CodedError` when it cannot."""


def broker_principal(broker_id: int) -> str:
    """Who a broker is to those who look at principals; no user can have such a name."""
    return f"Broker:{broker_id}"


class PeerGate:
    """Lets brokers in, and serves what only they may ask; owns the tasks of the requests that run."""

    def __init__(
        self,
        me: PeerIdentity,
        rng: Random,
        handlers: Mapping[int, PeerHandler],
        only_listener: str | None = None,
    ) -> None:
        self._me = me
        self._rng = rng
        self._handlers = handlers
        self._only_listener = only_listener
        """The listener that brokers come in by; None for any."""
        self._greetings: WeakKeyDictionary[Connection, Greeting] = WeakKeyDictionary()
        """What was said on connections whose other end has not proved yet who it is."""
        self._running = Tasks()

    def serve(
        self, connection: Connection, api_key: int, version: int, correlation_id: int, body: memoryview
    ) -> Parts | None:
        """Answer one request with such a key: now, or later through a slot of the connection."""
        if api_key == InternalApi.HELLO:
            return framed_message(correlation_id, self._hello(connection, body))
        if connection.peer_broker is None:
            raise ProtocolViolation(f"API {api_key} from somebody who is no broker of this cluster")
        handler = self._handlers.get(api_key)
        if handler is None or level_of(version) not in self._me.levels:
            unknown = f"API {api_key}" if handler is None else f"feature level {level_of(version)}"
            refusal = CodedError(ErrorCode.unsupported_version, f"this broker does not know {unknown}")
            return framed_message(correlation_id, failure(refusal))
        message = decode_message(body)
        kept = PeerMessage(message.values, bytes(message.attachment))
        slot = connection.open_slot()
        self._running.spawn(self._run(handler, kept, connection.peer_broker, slot, correlation_id))
        return None

    async def close(self) -> None:
        """End the work on requests that are not answered yet."""
        await self._running.close()

    async def _run(
        self, handler: PeerHandler, message: PeerMessage, broker_id: int, slot: Slot, correlation_id: int
    ) -> None:
        try:
            answer = await handler(message, broker_id)
        except CodedError as error:
            answer = failure(error)
        except Exception:
            log.exception("request of a broker failed", broker=broker_id)
            answer = failure(CodedError(ErrorCode.unknown_server_error))
        if not slot.connection.is_closed:
            slot.answer(framed_message(correlation_id, answer))

    def _hello(self, connection: Connection, body: memoryview) -> PeerMessage:
        if len(body) > LONGEST_HELLO:
            raise ProtocolViolation(f"a greeting of {len(body)} bytes")
        if self._only_listener not in (None, connection.listener_name):
            raise ProtocolViolation(
                f"a greeting on the listener {connection.listener_name}; brokers come in by {self._only_listener}"
            )
        if connection.peer_broker is not None or (connection.authenticator is not None and connection.is_known):
            raise ProtocolViolation("a greeting on a connection that is known already")
        values = decode_message(body).values
        greeting = self._greetings.pop(connection, None)
        try:
            return self._open(connection, values) if greeting is None else self._prove(connection, greeting, values)
        except CodedError as error:
            log.warning("not a broker of this cluster", peer=connection.peer, reason=error.message)
            connection.drain()
            return failure(error)

    def _open(self, connection: Connection, values: Mapping[str, Any]) -> PeerMessage:
        me = self._me
        if values.get("cluster") != me.cluster_id or values.get("to") != me.broker_id:
            raise _refused(f"this is broker {me.broker_id} of cluster {me.cluster_id}")
        asker, epoch, nonce = values.get("from"), values.get("epoch"), values.get("nonce")
        if not isinstance(asker, int) or not isinstance(epoch, int) or not isinstance(nonce, str):
            raise ProtocolViolation("a greeting that is not whole")
        if asker == me.broker_id:
            raise _refused(f"broker {asker} is this one: each broker needs an id of its own")
        spoken = spoken_levels(values)
        if spoken.max < me.level():
            raise _refused(f"broker {asker} speaks feature level {spoken}, and the cluster's is {me.level()}")
        greeting = Greeting(
            cluster_id=me.cluster_id,
            asker=asker,
            answerer=me.broker_id,
            asker_epoch=epoch,
            answerer_epoch=me.epoch(),
            asker_nonce=nonce,
            answerer_nonce=self._rng.randbytes(NONCE_BYTES).hex(),
        )
        self._greetings[connection] = greeting
        proof = greeting.proof(me.secret, Role.ANSWERER)
        answer = {"epoch": greeting.answerer_epoch, "nonce": greeting.answerer_nonce, "proof": proof}
        return PeerMessage({**answer, "levels": me.levels})

    def _prove(self, connection: Connection, greeting: Greeting, values: Mapping[str, Any]) -> PeerMessage:
        if not greeting.is_proved(self._me.secret, Role.ASKER, str(values.get("proof"))):
            raise _refused("it does not know the cluster's secret")
        principal = broker_principal(greeting.asker)
        if connection.authenticator is not None:
            connection.authenticator.admit(connection, principal)
        connection.principal = principal
        connection.peer_broker = greeting.asker
        return PeerMessage({})


def _refused(message: str) -> CodedError:
    return CodedError(ErrorCode.cluster_authorization_failed, message)


def framed_message(correlation_id: int, message: PeerMessage) -> Parts:
    """A whole answer of one of the APIs from 20000 on."""
    body = encode_message(message)
    size = sum(map(len, body))
    parts: Parts = [_HEAD.pack(4 + size, correlation_id)]
    for part in body:
        parts.append(bytes(part) if isinstance(part, memoryview) else part)
    return parts
