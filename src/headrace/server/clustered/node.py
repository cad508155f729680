"""The parts that only a broker of a cluster has: its registration, links to the others, followers and followed."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, Final

import structlog

from headrace import __version__
from headrace.cluster.feature_level import UnsupportedLevel
from headrace.cluster.image import BrokerNode, ClusterImage, Topic
from headrace.cluster.membership import IdInUse
from headrace.cluster.registration import SECRET, Registration
from headrace.cluster.store import AlreadyExists, Create, MetadataStore, SharedStore, StoreError
from headrace.config import BrokerConfig
from headrace.coordinator.transactions.verifier import Verifier
from headrace.net.peers import Purpose
from headrace.net.tasks import Fatal, Tasks
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.levels import level_of
from headrace.protocol.peer import InternalApi
from headrace.replication.fetcher import Fetchers, FetcherTerms
from headrace.replication.isr import IsrKeeper
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.throttle import ReplicationThrottle

from ..connection import Connection, Parts
from ..context import Context
from ..dispatch import ServePeer
from ..handlers import HANDLERS
from ..handlers.peer import PeerGate, PeerHandler
from ..handlers.replicate import ReplicateHandler
from ..world import World
from .controller import ClusterController
from .forwarding import Forwarded, Forwarder
from .identification import Identification
from .member import ClusterMember, MemberParts
from .peers import LinkedPeers, PeerIdentity, TlsContext

REPLICATE_SECONDS: Final = 10.0
FOLLOWERS_SECONDS: Final = 0.5
LEAVE_SECONDS: Final = 10.0

log = structlog.get_logger(__name__)


async def cluster_secret(store: MetadataStore, rng: Random) -> bytes:
    """What only the brokers of the cluster know, made and kept in the store on the first call."""
    stored = await store.get(SECRET)
    if stored is None:
        try:
            await store.commit([Create(SECRET, f"{rng.getrandbits(256):064x}".encode())])
        except AlreadyExists:
            pass
        stored = await store.get(SECRET)
    if stored is None:
        raise StoreError("the cluster's secret could not be stored")
    return stored.value


class Clustered:
    """What a broker of a cluster has beside a lone one: membership, links to peers, the controller."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        world: World,
        store: SharedStore,
        image: ClusterImage,
        replicas: ReplicaManager,
        node: BrokerNode,
        identification: Identification,
        secret: bytes,
        level: int,
        topic_removed: Callable[[Topic], None],
        on_fatal: Fatal,
        tls: TlsContext = lambda _: None,
    ) -> None:
        self._config = config
        self._world = world
        self._image = image
        self._replicas = replicas
        self._node = node
        self._me = PeerIdentity(
            broker_id=self._node.id,
            cluster_id=image.cluster_id,
            secret=secret,
            epoch=lambda: self.member.epoch,
            levels=world.levels,
            level=lambda: self.member.level,
        )
        self.peers = LinkedPeers(me=self._me, network=world.network, find=self._find, rng=world.rng, tls=tls)
        parts = MemberParts(
            config=config,
            store=store,
            image=image,
            replicas=replicas,
            peers=self.peers,
            rng=world.rng,
            topic_removed=topic_removed,
            registered=self._tell_again,
            identification=identification,
        )
        registration = Registration(
            node=node,
            directory=identification.directory,
            place=identification.place(node.host, node.port),
            levels=world.levels,
            version=__version__,
        )
        self.member = ClusterMember(parts, registration, level)
        self.control = ClusterController(self.member, image, self.peers, store)
        self._tasks = Tasks(on_fatal)
        self._belonging: list[asyncio.Task[None]] = []
        """What keeps this broker in its cluster."""
        sending = self._throttle("leader.replication.throttled.rate")
        self.service = PeerService(self._me, world.rng, self.member, replicas, sending)
        self._join_replicas()

    def _join_replicas(self) -> None:
        terms = FetcherTerms(
            new_session=lambda: self._world.rng.getrandbits(62),
            broker_epoch=lambda: self.member.epoch,
            max_bytes=int(self._config["replica.fetch.response.max.bytes"]),
            slowly=(self._throttle("follower.replication.throttled.rate"), self._node.id),
        )
        self._fetchers = Fetchers(self._replicate, self._tasks.keep, terms)
        self._isr = IsrKeeper(
            self.member.alter_isr,
            self._replicas.apply_state,
            lambda: self.member.epoch,
            self._world.clock.monotonic,
        )
        self._replicas.following = self._fetchers
        self._replicas.isr = self._isr
        self._replicas.report_faults = self.member.report_logs
        self._replicas.is_known = self._is_known

    def _tell_again(self) -> None:
        self._fetchers.tell_again()

    def _throttle(self, setting: str) -> ReplicationThrottle:
        return ReplicationThrottle(lambda: int(self._config[setting]), self._world.clock.monotonic)

    def _find(self, broker: int) -> BrokerNode | None:
        return self.member.find(broker)

    def _is_known(self, topic: str, index: int) -> bool:
        """While this broker does not know its cluster it cannot say of anything that it does not exist."""
        found = self._image.topic(topic)
        if found is None and not self.member.is_ready.is_set():
            return True
        return found is not None and 0 <= index < len(found.partitions)

    async def _replicate(self, leader: int, body: bytearray) -> memoryview:
        return await self.peers.exchange(
            leader, InternalApi.REPLICATE, body, purpose=Purpose.FETCH, timeout=REPLICATE_SECONDS
        )

    def relay(self) -> Forwarder:
        """Who carries requests to the controller."""
        return Forwarder(broker_id=self._node.id, peers=self.peers, active_controller=lambda: self.member.controller)

    async def start(self) -> None:
        """Join the cluster; returns when everything in it is known here."""
        keep = self._tasks.keep
        keep("ISR changes", self._isr.run)
        self._belonging = [
            keep("membership", self.member.stay, is_fatal=self._is_fatal),
            keep("metadata feed", self.member.follow_feed, is_fatal=self._is_fatal),
        ]
        keep("marks in the store", self.member.keep_marked)
        ready = asyncio.ensure_future(self.member.is_ready.wait())
        waiting: list[asyncio.Future[Any]] = [ready, *self._belonging]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            raise next(_failures(self._belonging), StoreError("the broker is no longer in its cluster"))

    def _is_fatal(self, error: Exception) -> bool:
        """A start that fails says so; later another broker of this number ends this one, and a cluster whose formats it
        does not know.
        """
        return isinstance(error, IdInUse | UnsupportedLevel) or not self.member.is_ready.is_set()

    async def leave(self) -> None:
        """Controlled shutdown: hand over leaderships, resign as controller, deregister; requests are still served."""
        if self._config["controlled.shutdown.enable"]:
            await self.member.resign(LEAVE_SECONDS)
        for task in self._belonging:
            task.cancel()
        await asyncio.gather(*self._belonging, return_exceptions=True)
        await self.member.withdraw()
        self._replicas.step_down()

    async def stop(self) -> None:
        """Stop fetchers and links to other brokers."""
        self._fetchers.close()
        await self._tasks.close()
        await self.service.close()
        await self.peers.close()

    async def restore_preferred(self) -> None:
        """Let first replicas lead again, if this broker is the controller and that is wanted."""
        active = self.member.active_controller
        if active is not None and self._config["auto.leader.rebalance.enable"]:
            await active.restore_preferred(int(self._config["leader.imbalance.per.broker.percentage"]))


def _failures(tasks: Iterable["asyncio.Task[None]"]) -> Iterator[BaseException]:
    return (error for task in tasks if task.done() and (error := task.exception()) is not None)


class PeerService:
    """Serves what only brokers ask."""

    def __init__(
        self,
        me: PeerIdentity,
        rng: Random,
        member: ClusterMember,
        replicas: ReplicaManager,
        sending: ReplicationThrottle,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._me = me
        self._rng = rng
        self._member = member
        self._replicate = ReplicateHandler(self._loop, replicas, sending)
        self._gate: PeerGate | None = None

    def open(self, context: Context, audit: PeerHandler) -> ServePeer:
        """What the dispatcher calls, once there is a context."""
        config = context.config
        verifier = Verifier(self._me.broker_id, context.transactions, None)
        handlers: dict[int, PeerHandler] = {
            InternalApi.FEED: self._member.serve_feed,
            InternalApi.ALTER_ISR: self._member.serve_alter_isr,
            InternalApi.RESIGN: self._member.serve_resign,
            InternalApi.BUSY: self._member.serve_busy,
            InternalApi.REPORT_LOGS: self._member.serve_report_logs,
            InternalApi.LOG_ENDS: self._member.serve_log_ends,
            InternalApi.UPDATE_LEVEL: self._member.serve_update_level,
            InternalApi.VERIFY: lambda message, _: verifier.serve(message),
            InternalApi.AUDIT: audit,
            InternalApi.FORWARD: Forwarded(self._me.broker_id, context, HANDLERS),
        }
        only = config.inter_broker_listener if config.is_inter_broker_listener_set else None
        self._gate = PeerGate(self._me, self._rng, handlers, only)
        return self.serve

    def serve(
        self, connection: Connection, api_key: int, version: int, correlation_id: int, body: memoryview
    ) -> Parts | None:
        if api_key == InternalApi.REPLICATE and connection.peer_broker is not None:
            if level_of(version) not in self._me.levels:
                raise ProtocolViolation(f"replication in feature level {level_of(version)}, which is not spoken here")
            return self._replicate(connection, correlation_id, body)
        assert self._gate is not None
        return self._gate.serve(connection, api_key, version, correlation_id, body)

    def wake_followers(self) -> None:
        """Answer followers that wait: the broker stops."""
        self._replicate.close()

    async def close(self) -> None:
        """End the work on what other brokers have asked and nobody waits for any more."""
        if self._gate is not None:
            await self._gate.close()
