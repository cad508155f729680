"""Brokers of a cluster as far as the network sees them: a listener, a dispatcher, peers, and almost nothing to do."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from headrace.cluster.image import BrokerNode
from headrace.net.address import Address
from headrace.net.network import Network
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.levels import SUPPORTED, LevelRange
from headrace.protocol.peer import InternalApi, PeerMessage
from headrace.security.sasl import PLAIN, Mechanism, PlainUsers, plain
from headrace.server.authentication import Authenticator
from headrace.server.clustered.forwarding import Forwarded, Forwarder
from headrace.server.clustered.peers import LinkedPeers, PeerIdentity
from headrace.server.connection import Connection, Parts
from headrace.server.connection_counts import Caps, ConnectionCounts
from headrace.server.context import Context, RequestInfo
from headrace.server.dispatch import Dispatcher, Handler
from headrace.server.handlers.peer import PeerGate, PeerHandler
from headrace.server.listener import Listener

SECRET = b"the cluster's secret"
CLUSTER = "vPeOCWypqUOSepEvx0cbog"
Work = Callable[[Any, RequestInfo], Awaitable[None]]


class Cluster:
    """What the brokers of a test have in common: who is where, who is the controller."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerNode] = {}
        self.controller: int | None = None
        self.epoch = 7
        self.level = 1


class Node:
    """One broker. It answers FEED with what it was told, and CreateTopics with what `work` leaves of it."""

    def __init__(
        self,
        cluster: Cluster,
        network: Network,
        broker_id: int,
        *,
        host: str,
        secret: bytes = SECRET,
        cluster_id: str = CLUSTER,
        users: dict[str, str] | None = None,
        session_ms: int = 0,
        mechanisms: dict[str, Mechanism] | None = None,
        work: Work | None = None,
        levels: LevelRange = SUPPORTED,
        only_listener: str | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.cluster = cluster
        self.network = network
        self.broker_id = broker_id
        self.host = host
        self.told: list[tuple[int, dict[str, Any]]] = []
        self.asked: list[RequestInfo] = []
        self.versions: list[int] = []
        """Of what brokers have asked."""
        self.work = work
        self.believed: int | None = None
        """Who is the controller, as far as this broker knows, when that is not the truth."""
        me = PeerIdentity(
            broker_id=broker_id,
            cluster_id=cluster_id,
            secret=secret,
            epoch=lambda: cluster.epoch,
            levels=levels,
            level=lambda: cluster.level,
        )
        self.peers = LinkedPeers(me=me, network=network, find=cluster.brokers.get, rng=Random(broker_id))
        authenticator = self.authenticator = None
        if users is not None or mechanisms is not None:
            known = mechanisms or {PLAIN: plain(PlainUsers(users or {}))}
            authenticator = Authenticator(loop, known, 1 << 20, session_ms=dict.fromkeys(known, session_ms))
            self.authenticator = authenticator
        self.context = cast(Context, SimpleNamespace(active_controller=self.active_controller))
        handlers: dict[ApiKey, Handler] = {
            ApiKey.CREATE_TOPICS: self.create_topics,
            ApiKey.ALTER_PARTITION: self._alter_partition,
        }
        internal: dict[int, PeerHandler] = {
            InternalApi.FEED: self._feed,
            InternalApi.FORWARD: Forwarded(broker_id, self.context, handlers),
        }
        self.gate = PeerGate(me, Random(broker_id + 100), internal, only_listener)
        self.forwarder = Forwarder(broker_id=broker_id, active_controller=self.active_controller, peers=self.peers)
        self.dispatcher = Dispatcher(
            self.context,
            handlers,
            {},
            lambda: b"",
            serve_peer=self._serve_peer,
            relay=self.forwarder,
        )
        self.listener = Listener(
            loop,
            network,
            frame_limit=1 << 20,
            counts=ConnectionCounts(loop, lambda: Caps(100, 100)),
            idle_seconds=600,
            on_read_failure=lambda _: None,
            authenticator=authenticator,
        )

    def active_controller(self) -> int | None:
        return self.cluster.controller if self.believed is None else self.believed

    def _serve_peer(
        self, connection: Connection, api_key: int, version: int, correlation_id: int, body: memoryview
    ) -> Parts | None:
        if connection.peer_broker is not None:
            self.versions.append(version)
        return self.gate.serve(connection, api_key, version, correlation_id, body)

    async def start(self, port: int = 0) -> None:
        port = self.listener.bind(self.host, port)
        self.cluster.brokers[self.broker_id] = BrokerNode(id=self.broker_id, host=self.host, port=port)
        self.listener.start(self.dispatcher.serve)

    async def stop(self) -> None:
        await self.peers.close()
        self.listener.close()
        await self.dispatcher.close()
        await self.gate.close()

    @property
    def address(self) -> Address:
        node = self.cluster.brokers[self.broker_id]
        return Address(node.host, node.port)

    async def _feed(self, message: PeerMessage, broker_id: int) -> PeerMessage:
        self.told.append((broker_id, dict(message.values)))
        await asyncio.sleep(message.values.get("wait", 0))
        if "fail" in message.values:
            raise CodedError(ErrorCode.stale_broker_epoch, "as was wished")
        if "defect" in message.values:
            raise ZeroDivisionError
        return PeerMessage({"from": self.broker_id, **message.values}, bytes(reversed(bytes(message.attachment))))

    async def create_topics(self, ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
        self.asked.append(info)
        if self.work is not None:
            await self.work(request, info)
        topics = [{"name": topic.name, "topic_id": None, "error_code": 0} for topic in request.topics]
        values = {"error_message": None, "num_partitions": 1, "replication_factor": 1, "configs": ()}
        return {"throttle_time": 0, "topics": [{**topic, **values} for topic in topics]}

    async def _alter_partition(self, ctx: Context, request: Any, info: RequestInfo) -> dict[str, Any]:
        assert info.peer_broker == request.broker_id
        return {"throttle_time": 0, "error_code": ErrorCode.stale_broker_epoch, "topics": ()}


def topics_request(*names: str, padding: int = 0) -> dict[str, Any]:
    """A CreateTopics request."""
    configs = [{"name": "x" * 1000, "value": ""} for _ in range(padding)]
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": configs}
    return {"topics": [{"name": name, **topic} for name in names], "timeout": 10_000, "validate_only": False}
