"""The broker process: puts the parts together, starts them in order, stops them in the reverse order.

Start: lock the data directory, open the store, load the metadata, open the logs, listen.
Stop: listen no more, answer what was asked, bring every log to rest, close the store, unlock.
"""

import asyncio
import gc
import signal
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import structlog
import uvloop

from headrace import __version__
from headrace.cluster.controller import Controller
from headrace.cluster.feature_level import Speaker, check_level, update_level
from headrace.cluster.identity import cluster_id
from headrace.cluster.image import BrokerNode, ClusterImage, Endpoint, Topic
from headrace.cluster.metadata_writer import MetadataWriter
from headrace.cluster.pulse import BEATS, Pulse
from headrace.cluster.sqlite import SqliteStore
from headrace.cluster.store import MetadataStore, SharedStore, StoreError
from headrace.config import BrokerConfig, ConfigError, Reloaded
from headrace.config import ListenerAddress as Address
from headrace.config.audit import AUDIT, AUDIT_LEVEL, AUDIT_RETENTION
from headrace.config.connection_caps import connection_caps
from headrace.config.listeners import INTER_BROKER_NAME
from headrace.config.metrics import MOST_PARTITIONS, REQUEST_METRICS
from headrace.config.sasl import ADD_SCRAM
from headrace.config.setting import MAX_INT
from headrace.coordinator.groups.service import GroupCoordinator
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.runtime.runtime import Coordinators
from headrace.coordinator.share.service import ShareCoordinator, ShareCoordinatorSettings
from headrace.coordinator.share.store import RoutedShareState
from headrace.coordinator.transactions.service import TransactionCoordinator, TransactionSettings
from headrace.coordinator.transactions.verifier import Verifier
from headrace.health import ListenerReport
from headrace.net.address import Address as HostPort
from headrace.net.tasks import Tasks
from headrace.net.turns import SHORT_NS, ask_for_turns
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError
from headrace.replication.cleaner import Cleaner
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.share_leader import ShareGroupSettings
from headrace.replication.share_manager import IDLE_SECONDS, ShareManager
from headrace.replication.share_state import ShareStateStore
from headrace.replication.storage_quota import LOOK_SECONDS, StorageQuotas
from headrace.security.audit import AuditLevel, AuditLog, AuditTarget, login
from headrace.security.authorizer import authorizer_of
from headrace.security.quotas.client_quotas import ClientQuotas, Windows
from headrace.security.sasl.first_users import parse_first_users
from headrace.storage.disk import StorageError
from headrace.storage.flusher import Flusher
from headrace.storage.manager import LogManager
from headrace.storage.retention_clock import RetentionClock

from . import compiled
from .audit_topic import AuditPartition, AuditTopic
from .clustered.identification import Identification
from .clustered.node import FOLLOWERS_SECONDS, Clustered, cluster_secret
from .connection import Connection, Parts, Serve
from .connection_counts import ANY_NUMBER, Caps, ConnectionCounts
from .context import Context
from .dead_letters import DeadLetterTopics, letter_problems
from .descriptors import divide, raise_limit
from .dispatch import Dispatcher, RawHandler, listener_of
from .first_users import add_first_users
from .handlers import HANDLERS
from .handlers.api_versions import unsupported_api_versions
from .handlers.delegation_tokens import remove_expired_tokens
from .handlers.fetch import FetchHandler, FileCaps
from .handlers.fetch_sessions import FetchSessions
from .handlers.health import HealthHandler
from .handlers.level import LevelHandler
from .handlers.produce import ProduceHandler
from .handlers.rights import RightsHandler
from .handlers.share_fetch import ShareHandler
from .handlers.share_sessions import ShareSessions
from .health import WATCH_SECONDS, BrokerHealth
from .listener import Listener, Listeners
from .monitoring.collector import BrokerCollector, BrokerParts
from .monitoring.group_lag import GroupLag
from .monitoring.loop_delay import LoopDelay
from .monitoring.monitor import Monitor
from .monitoring.request_times import RequestTimes
from .partition_ends import PartitionEnds
from .registry_reader import RegistryReader
from .request_memory import RequestMemory
from .sasl import Sasl
from .schema_book import SchemaBook
from .settings_file import Reread, reload_settings, warn_without_effect
from .throttling import Throttling
from .world import World

if TYPE_CHECKING:
    from .tls import ListenerTls

DRAIN_SECONDS: Final = 10.0
SWEEP_SECONDS: Final = 1.0
TLS_SECONDS: Final = 3.0
"""How often certificates and settings of TLS are looked at for changes."""
PATIENCE_SECONDS: Final = 1.0
"""How long a lone broker waits with its first client for logs that have to be recovered."""
METADATA_FILE: Final = "metadata.db"
_SWITCH_SECONDS: Final = 0.0005
_COLLECT_AFTER: Final = (50_000, 4, 250)
"""Allocations between garbage collections: requests make no cycles, so that collecting often only costs latency. One of
the second kind looks at some 200,000 objects: 30 ms.
"""

log = structlog.get_logger(__name__)


class BrokerFailed(Exception):
    """The broker cannot go on."""


class Broker:
    """One broker: alone, on an embedded store, or among others that share one."""

    def __init__(self, config: BrokerConfig, world: World | None = None) -> None:
        self.config = config
        self._world = world or World()
        self._clock = self._world.clock
        self._disk = self._world.disk
        self._rng = self._world.rng
        self._chores = Tasks()
        self._held = AsyncExitStack()
        """What was taken so far, to be let go in the reverse order."""
        self._clustered: Clustered | None = None
        """What a lone broker does without."""
        self._audit: AuditLog | None = None
        self._audit_topic: AuditTopic | None = None
        self._loop_delay = LoopDelay()
        self._ports: dict[str, int] = {}
        """Those that were really bound, by listener."""
        self._failure: tuple[str, Exception] | None = None
        self._has_failed = asyncio.Event()

    @property
    def bootstrap(self) -> str:
        """Where clients connect, with the port that was really bound."""
        advertised = self.config.advertised
        return str(HostPort(advertised.host, self._ports.get(advertised.name, advertised.port)))

    @property
    def replicas(self) -> ReplicaManager:
        """The partitions it holds, once it has started."""
        return self._replicas

    @property
    def share_state(self) -> ShareStateStore:
        """What share groups have done, once it serves."""
        return self._context.share_state

    @property
    def connections(self) -> list[Connection]:
        """Those of all its listeners."""
        return self._listeners.connections

    @property
    def health(self) -> BrokerHealth:
        """How it is, once it serves."""
        return self._health

    async def start(self) -> None:
        """Serve. Raises ConfigError, StorageError, StoreError or OSError with what is in the way."""
        try:
            await self._start()
        except BaseException:
            await self._held.aclose()
            raise

    async def stop(self) -> None:
        """Answer what was asked, bring everything to rest, let go of the data directory."""
        began = self._clock.monotonic()
        log.info("broker stopping", broker=self.config.node_id)
        if self._audit_topic is not None:
            await self._audit_topic.stop()
        if self._clustered is not None:
            await self._clustered.leave()
        self._listeners.stop_listening()
        await self._chores.close()
        self._fetch.wake_all()
        self._share_fetch.wake_all()
        await self._shares.close()
        if self._clustered is not None:
            self._clustered.service.wake_followers()
        await self._share.close()
        await self._transactions.close()
        await self._groups.close()
        await self._listeners.drain(DRAIN_SECONDS)
        await self._share_fetch.close()
        await self._close_audit()
        self._retention_clock.save()
        try:
            self._replicas.close()
        except StorageError as error:
            log.error("the logs could not be closed in order; the next start will check them", reason=str(error))
        finally:
            await self._held.aclose()
        log.info("broker stopped", broker=self.config.node_id, seconds=round(self._clock.monotonic() - began, 1))

    @property
    def metrics(self) -> BrokerCollector:
        """What it counts, once it serves."""
        return self._metrics

    def reload(self, new: BrokerConfig) -> Reloaded:
        """Take over what another reading of the settings file gives for dynamic settings; what came of it.

        While what is known of the cluster is not whole, as after a lost session, none of it is taken up again here: the
        snapshot that is to come brings all of it, and finds the new settings.
        """
        reloaded = self.config.reload(new)
        for tls in self._tls:
            self._chores.spawn(tls.renew())
        if reloaded.changed and self._image.is_whole:
            self._image.version += 1
            for topic in list(self._image.topics()):
                self._hold(topic)
        return reloaded

    async def failed(self) -> None:
        """Waits until something has gone wrong after which this broker must not go on; raises that."""
        await self._has_failed.wait()
        assert self._failure is not None
        name, error = self._failure
        raise BrokerFailed(f"{name} failed: {error}") from error

    def _fail(self, name: str, error: Exception) -> None:
        self._failure = self._failure or (name, error)
        self._has_failed.set()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        config = self.config
        data = str(config["log.dirs"])
        config.refuse_open_listeners()
        advertised = config.advertised_listeners
        self._descriptors = divide(raise_limit())
        self._quotas = ClientQuotas(loop.time, _windows(config))
        self._memory = RequestMemory(loop, lambda: int(config["queued.max.request.bytes"]))
        self._audit = self._make_audit()
        self._sasl = Sasl(config, self._clock, self._world.workers, self._note_login)
        first_users = parse_first_users(config[ADD_SCRAM] or "")
        self._tls: list[ListenerTls] = []
        self._listeners = self._make_listeners(loop)
        self._held.push_async_callback(self._sasl.stop)
        self._held.callback(self._world.workers.close)
        self._held.callback(self._listeners.close)
        self._bind()
        logs = LogManager(
            self._disk,
            self._clock,
            data,
            broker_id=config.node_id,
            most_open_files=self._descriptors.log_files,
        )
        logs.open()
        self._held.callback(logs.release)
        self._logs = logs
        began = self._clock.monotonic()
        self._report_start(logs)
        store = await self._open_store(logs)
        cluster_id_in_store = await cluster_id(store, self._rng, logs.cluster_id, newest_level=self._world.levels.max)
        self._level = await check_level(store, self._world.levels)
        image = ClusterImage(cluster_id=cluster_id_in_store, controller_id=config.node_id)
        self._image = image
        if any(each.asks_for_login for each in config.listeners):
            self._sasl.open(image, await cluster_secret(store, self._rng))
        logs.claim(cluster_id_in_store)
        logs.was_deleted = image.was_deleted
        self._flusher = Flusher(self._world.workers.sync, perf_counter_ns)
        self._retention_clock = self._make_retention_clock(data)
        self._replicas = ReplicaManager(
            broker_id=config.node_id,
            config=config,
            clock=self._clock,
            logs=logs,
            flusher=self._flusher,
            run_in_background=self._world.workers.background,
            retention_clock=self._retention_clock,
        )
        self._held.callback(self._world.workers.close)
        self._held.callback(self._replicas.stop_opening)
        node = self._node = self._describe_node(advertised)
        if config.lone:
            await self._start_alone(store, image, node)
        else:
            await self._start_among_others(cast(SharedStore, store), image, node)
        if first_users:
            forwarder = None if self._clustered is None else self._clustered.relay()
            await add_first_users(first_users, self._context, forwarder)
        self._replicas.write_summaries()
        log.info(
            "broker started",
            broker=config.node_id,
            cluster_id=cluster_id_in_store,
            listener=self.bootstrap,
            partitions=sum(1 for _ in self._replicas.hosted()),
            seconds=round(self._clock.monotonic() - began, 1),
        )

    def _bind(self) -> None:
        """Raises `OSError` which says the address where it cannot be had."""
        for listener, address in zip(self._listeners, self.config.listeners, strict=True):
            try:
                self._ports[address.name] = listener.bind(address.host, address.port)
            except OSError as error:
                error.add_note(str(address))
                raise

    def _describe_node(self, advertised: Sequence[Address]) -> BrokerNode:
        """This broker as others find it, with the ports that were bound where none was given."""
        config = self.config
        endpoints = {
            name: Endpoint(name, protocol, host, port or self._ports[name]) for name, protocol, host, port in advertised
        }
        client = endpoints[config.advertised.name]
        return BrokerNode(
            id=config.node_id,
            host=client.host,
            port=client.port,
            rack=config["broker.rack"],
            endpoints=tuple(endpoints.values()),
            inter_broker=config.inter_broker_listener,
        )

    def _make_retention_clock(self, directory: str) -> RetentionClock:
        world, config = self._world, self.config
        clock = RetentionClock(
            world.clock,
            uptime=world.uptime,
            most_ms=lambda: int(config["headrace.clock.jump.max.ms"]),
            boot_id=world.boot_id,
            disk=world.disk,
            directory=directory,
        )
        clock.load()
        clock.save()
        return clock

    def _report_start(self, logs: LogManager) -> None:
        """Not before the address and the directory are taken: a start that fails says only why."""
        config = self.config
        log.info(
            "broker starting",
            version=__version__,
            broker=config.node_id,
            cluster_id=logs.cluster_id or "unknown",
            directory=logs.data_directory,
            listener=",".join(str(each._replace(port=self._ports[each.name])) for each in config.listeners),
            store="sqlite" if config.lone else f"zookeeper://{config['zookeeper.connect']}",
        )
        if logs.found_logs and not logs.was_closed:
            log.warning("unclean shutdown found", directory=logs.data_directory, logs=logs.found_logs)

    async def _start_alone(self, store: MetadataStore, image: ClusterImage, node: BrokerNode) -> None:
        """As its own controller: all is known before anyone is served, and open where that does not take long."""
        self._store = store
        writer = MetadataWriter(store=store, image=image, config=self.config, node=node, rng=self._rng, listeners=self)
        self._held.push_async_callback(writer.close)
        await writer.load()
        for topic in image.topics():
            self._hold(topic)
        self._set_strays_aside()
        await self._replicas.opened(PATIENCE_SECONDS)
        self._begin_serving(image, writer)
        self._replicas.leadership = Coordinators(self._groups, self._transactions, self._share, self._shares)

    def _hold(self, topic: Topic) -> None:
        """What cannot be opened now is tried again, and keeps nobody from the rest."""
        try:
            self._replicas.apply_topic(topic)
        except (CodedError, StorageError, OSError) as error:
            log.error("topic cannot be served yet", topic=topic.name, reason=str(error))

    async def _start_among_others(self, store: SharedStore, image: ClusterImage, node: BrokerNode) -> None:
        """Others may ask as soon as this broker is registered, so it serves before it knows what it holds."""
        clustered = self._clustered = Clustered(
            config=self.config,
            world=self._world,
            store=store,
            image=image,
            replicas=self._replicas,
            node=node,
            identification=Identification(self._disk, self._logs, self._world.boot_id, self._rng),
            secret=await cluster_secret(store, self._rng),
            level=self._level,
            topic_removed=self.remove_topic,
            on_fatal=self._fail,
            tls=self._tls_of_links,
        )
        self._held.push_async_callback(clustered.stop)
        self._begin_serving(image, clustered.control)
        self._replicas.leadership = Coordinators(self._groups, self._transactions, self._share, self._shares)
        await clustered.start()
        self._set_strays_aside()

    async def _update_level(self, to: int | None, dry_run: bool) -> Mapping[str, Any]:
        """Raise the feature level of the cluster, or of this broker where it is alone; what became of it."""
        if self._clustered is not None:
            return await self._clustered.member.update_level(to, dry_run=dry_run)
        me = {self.config.node_id: Speaker(self._world.levels, __version__)}
        update = await update_level(self._store, self._store.commit, me, to, dry_run=dry_run)
        self._level = update.before if dry_run else update.after
        return update.to_json()

    async def _open_store(self, logs: LogManager) -> MetadataStore:
        if self._world.store is not None:
            return self._world.store
        if not self.config.lone:
            return await self._open_shared_store()
        self._refuse_lost_metadata(logs)
        store = await SqliteStore.open(Path(logs.data_directory) / METADATA_FILE)
        self._held.push_async_callback(store.close)
        return store

    async def _open_shared_store(self) -> SharedStore:
        from headrace.cluster.zookeeper import ZooKeeperStore  # a lone broker does without it
        from headrace.cluster.zookeeper_access import access_of

        seconds = int(self.config["zookeeper.session.timeout.ms"]) / 1000
        url = f"zookeeper://{self.config['zookeeper.connect']}"
        store = await ZooKeeperStore.open(url, session_timeout=seconds, access=access_of(self.config))
        self._held.push_async_callback(store.close)
        return store

    def _refuse_lost_metadata(self, logs: LogManager) -> None:
        """A new store would know none of the topics whose logs are here."""
        path = f"{logs.data_directory}/{METADATA_FILE}"
        if logs.cluster_id and not self._disk.exists(path):
            raise StoreError(
                f"{path} is gone, which names the topics of cluster {logs.cluster_id}, whose logs are here; put it back"
            )

    def _make_tls(self, loop: asyncio.AbstractEventLoop, address: Address) -> "ListenerTls":
        """`ConfigError` where the listener cannot speak TLS."""
        from .tls import ListenerTls  # takes a while to load, and most brokers at their first start do without

        made = ListenerTls(
            loop,
            self.config,
            address.name.lower(),
            address.protocol,
            self._clock.now_ms,
            self._world.workers.background,
        )
        made.handshakes.on_login = self._note_certificate
        return made

    def _listener_reports(self) -> Iterator[ListenerReport]:
        config = self.config
        advertised = {each.name: HostPort(each.host, each.port) for each in self._node.endpoints}
        for each in config.listeners:
            yield ListenerReport(
                name=each.name,
                protocol=each.protocol,
                bound=str(HostPort(each.host, self._ports[each.name])),
                advertised=str(advertised.get(each.name, "")),
                for_brokers=not config.lone and each.name == config.inter_broker_listener,
                anonymous=config.is_anonymous(each),
                remote=not each.is_loopback,
            )

    def _tls_of_links(self, endpoint: Endpoint) -> ssl.SSLContext | None:
        """As this broker's own listener of that name has it: the one for brokers is alike on all of them."""
        if not Address(*endpoint).encrypts:
            return None
        name = endpoint.name.lower()
        tls = next((each for each in self._tls if each.listener == name), self._tls[0] if self._tls else None)
        if tls is None:
            raise ConfigError(
                f"brokers are reached there over {endpoint.protocol}, and this one has no listener with TLS: add the "
                f"listener {endpoint.name} to all of them before {INTER_BROKER_NAME} is set"
            )
        return tls.tls.client_context

    def _make_listeners(self, loop: asyncio.AbstractEventLoop) -> Listeners:
        counts = self._counts = self._make_counts(loop)
        return Listeners([self._make_listener(loop, address, counts) for address in self.config.listeners])

    def _make_listener(self, loop: asyncio.AbstractEventLoop, address: Address, counts: ConnectionCounts) -> Listener:
        config = self.config
        tls = self._make_tls(loop, address) if address.encrypts else None
        if tls is not None:
            self._tls.append(tls)
        return Listener(
            loop,
            self._world.network,
            frame_limit=int(config["socket.request.max.bytes"]),
            counts=counts.of_listener(
                lambda: _own_caps(config, address.name),
                is_for_brokers=config.is_inter_broker_listener_set
                and len(config.listeners) > 1
                and address.name == config.inter_broker_listener,
            ),
            idle_seconds=int(config.of_listener(address.name, "connections.max.idle.ms")) / 1000,
            on_read_failure=lambda error: self._replicas.read_failed(error),  # noqa: PLW0108 - it comes later
            authenticator=self._sasl.authenticator(loop, address.name) if address.asks_for_login else None,
            handshakes=None if tls is None else tls.handshakes,
            name=address.name,
            protocol=address.protocol,
            memory=self._memory,
        )

    def _make_counts(self, loop: asyncio.AbstractEventLoop) -> ConnectionCounts:
        config, most = self.config, self._descriptors.connections

        def caps() -> Caps:
            rate = int(config["max.connection.creation.rate"])
            return Caps(
                all=min(int(config["max.connections"]), most),
                one_address=int(config["max.connections.per.ip"]),
                descriptors=most,
                overrides=connection_caps(config["max.connections.per.ip.overrides"] or ""),
                remote_address=int(config["headrace.max.connections.per.remote.ip"]),
                rate=rate if rate < MAX_INT else ANY_NUMBER,
                remote_rate=int(config["headrace.connection.creation.rate.per.remote.ip"]),
            )

        return ConnectionCounts(
            loop, caps, quota=self._quotas.connection_rate, averaged_seconds=self._quotas.averaged_seconds
        )

    def _set_strays_aside(self) -> None:
        for name in self._replicas.set_strays_aside():
            log.warning("a log of no known topic was set aside; delete it if it is not missed", directory=name)

    def _begin_serving(self, image: ClusterImage, controller: Controller) -> None:
        loop, clustered = asyncio.get_running_loop(), self._clustered
        self._throttling = Throttling(self._quotas, loop.time, perf_counter_ns)
        self._sasl.is_known = None if clustered is None else clustered.member.is_ready
        share_state = self._begin_coordinators(image, controller)
        self._context = context = self._make_context(image, controller, share_state)
        files = FileCaps(self._descriptors.connections, self._descriptors.log_files // 2)
        self._fetch = self._make_fetch_handler(context, files)
        self._health = self._make_health(image)
        self._share_fetch = self._make_share_handler(context, files)
        produce = ProduceHandler(self._replicas, self._make_schema_book(image), context.authorizer)
        audit_partition = AuditPartition(self._replicas, self._clock)
        self._begin_audit(image, controller, audit_partition)
        self._metrics = self._make_metrics(image, produce)
        dispatcher = self._make_dispatcher(context, produce, audit_partition)
        self._held.push_async_callback(dispatcher.close)
        self._hold_to_quotas(loop, image, dispatcher)
        self._cleaner = Cleaner(
            self._replicas,
            self._disk,
            self._retention_clock,
            self._world.workers.aside,
            dedupe_bytes=lambda: int(self.config["log.cleaner.dedupe.buffer.size"]),
        )
        self._begin_chores(loop)
        self._listeners.start(dispatcher.serve if clustered is None else self._with_pulse(clustered, dispatcher))

    def _begin_coordinators(self, image: ClusterImage, controller: Controller) -> RoutedShareState:
        """Of groups, transactions and the state of share groups; what asks the last of these, wherever it is."""
        loop, config, rng, clustered = asyncio.get_running_loop(), self.config, self._rng, self._clustered
        self._share = ShareCoordinator(
            settings=ShareCoordinatorSettings.of(config),
            image=image,
            controller=controller,
            replicas=self._replicas,
            clock=self._clock,
            scheduler=loop,
        )
        self._share.start()
        share_state = RoutedShareState(
            broker_id=config.node_id,
            coordinator=self._share,
            image=image,
            clock=self._clock,
            peers=None if clustered is None else clustered.peers,
        )
        self._groups = GroupCoordinator(
            settings=GroupSettings.of(config),
            image=image,
            controller=controller,
            replicas=self._replicas,
            clock=self._clock,
            scheduler=loop,
            run_in_background=self._world.workers.background,
            serving=None if clustered is None else clustered.member.is_ready,
            new_id=lambda: str(UUID(int=rng.getrandbits(128), version=4)),
            share_state=share_state,
        )
        self._groups.start()
        self._transactions = self._make_transactions(image, controller)
        self._transactions.start()
        self._replicas.on_transaction_end = self._groups.transaction_ended
        return share_state

    def _make_context(self, image: ClusterImage, controller: Controller, share_state: RoutedShareState) -> Context:
        config, clustered = self.config, self._clustered
        return Context(
            config=config,
            clock=self._clock,
            image=image,
            controller=controller,
            replicas=self._replicas,
            groups=self._groups,
            transactions=self._transactions,
            share=self._share,
            share_state=share_state,
            ends=PartitionEnds(
                broker_id=config.node_id,
                image=image,
                replicas=self._replicas,
                peers=None if clustered is None else clustered.peers,
            ),
            active_controller=(lambda: config.node_id) if clustered is None else (lambda: clustered.member.controller),
            authorizer=authorizer_of(config, image, None if self._audit is None else self._audit.denied),
            quotas=self._quotas,
        )

    def _make_fetch_handler(self, context: Context, files: FileCaps) -> FetchHandler:
        config, rng = self.config, self._rng
        sessions = FetchSessions(
            int(config["max.incremental.fetch.session.cache.slots"]), lambda: rng.randrange(1, 2**31)
        )
        return FetchHandler(
            asyncio.get_running_loop(),
            self._replicas,
            sessions,
            int(config["fetch.max.bytes"]),
            (lambda: context.image.brokers) if config["replica.selector.class"] else None,
            files,
            context.authorizer,
            self._throttling,
        )

    def _make_health(self, image: ClusterImage) -> BrokerHealth:
        config, clustered = self.config, self._clustered
        return BrokerHealth(
            broker_id=config.node_id,
            image=image,
            is_controller=self._is_controller,
            clock=self._clock,
            replicas=self._replicas,
            descriptors=self._descriptors,
            listeners=self._listeners,
            loop_delay=self._loop_delay,
            retention_clock=self._retention_clock,
            certificates=lambda: [found for tls in self._tls for found in tls.problems()],
            letters=letter_problems(lambda: self._shares),
            member=None if clustered is None else clustered.member,
            store=config["zookeeper.connect"] or "",
            levels=self._world.levels,
            level=lambda: self._level if clustered is None else clustered.member.level,
            addresses=tuple(self._listener_reports()),
        )

    def _make_dispatcher(
        self, context: Context, produce: ProduceHandler, audit_partition: AuditPartition
    ) -> Dispatcher:
        clustered, authorizer = self._clustered, context.authorizer
        raw: dict[ApiKey, RawHandler] = {
            ApiKey.PRODUCE: produce,
            ApiKey.FETCH: self._fetch,
            ApiKey.SHARE_FETCH: self._share_fetch.fetch,
            ApiKey.SHARE_ACKNOWLEDGE: self._share_fetch.acknowledge,
        }
        return Dispatcher(
            context,
            HANDLERS,
            raw,
            unsupported_api_versions,
            serve_peer=None if clustered is None else clustered.service.open(context, audit_partition.serve),
            relay=None if clustered is None else clustered.relay(),
            ready=None if clustered is None else clustered.member.is_ready,
            is_out_of_touch=lambda: clustered is not None and clustered.member.is_out_of_touch,
            describe_health=HealthHandler(self._health.report, authorizer),
            describe_rights=RightsHandler(authorizer),
            times=self._metrics.watched.times if self.config[REQUEST_METRICS] else None,
            update_level=LevelHandler(self._update_level, authorizer, self._audit),
            audit=self._audit,
        )

    def _make_share_handler(self, context: Context, files: FileCaps) -> ShareHandler:
        config, given = self.config, context.image.group_configs
        settings = ShareGroupSettings.of(config, {})
        known: dict[str, tuple[Mapping[str, str], int, ShareGroupSettings]] = {}

        def settings_of(group_id: str) -> ShareGroupSettings:
            """Asked for again and again: parsed once for each change of the metadata."""
            own, version = given.get(group_id), context.image.version
            if not own:
                known.pop(group_id, None)
                return settings
            found = known.get(group_id)
            if found is None or found[0] is not own or found[1] != version:
                found = known[group_id] = (own, version, ShareGroupSettings.of(config, own))
            return found[2]

        letters = DeadLetterTopics(
            broker_id=config.node_id,
            config=config,
            image=context.image,
            controller=context.controller,
            replicas=self._replicas,
            clock=self._clock,
            peers=None if self._clustered is None else self._clustered.peers,
        )
        self._shares = ShareManager(store=context.share_state, settings=settings_of, clock=self._clock, letters=letters)
        return ShareHandler(
            loop=asyncio.get_running_loop(),
            image=context.image,
            replicas=self._replicas,
            shares=self._shares,
            sessions=ShareSessions(
                int(config["group.share.max.share.sessions"]),
                2 * int(config["group.share.max.size"]),  # of a member that is gone there may be one left
            ),
            most_bytes=int(config["fetch.max.bytes"]),
            files=files,
            authorizer=context.authorizer,
            throttling=self._throttling,
        )

    def _hold_to_quotas(self, loop: asyncio.AbstractEventLoop, image: ClusterImage, dispatcher: Dispatcher) -> None:
        """From now on, and after each change anew: nobody stays muted for a quota that has changed."""

        def changed() -> None:
            dispatcher.throttle = self._throttling if self._quotas.is_on else None
            for connection in self._listeners.connections:
                connection.forget_limits()

        due = False

        def soon() -> None:
            nonlocal due
            if not due:
                due = True
                loop.call_soon(now)

        def now() -> None:
            nonlocal due
            due = False
            changed()

        self._quotas.on_change(soon)
        self._quotas.follow(image)

    def _with_pulse(self, clustered: Clustered, dispatcher: Dispatcher) -> Serve:
        """Serves what comes, after a look at how long this process may have stood still."""
        member, serve = clustered.member, dispatcher.serve
        pulse = Pulse(self._clock.monotonic, member.session_seconds, member.stalled)

        def beat() -> None:
            pulse.beat()
            member.heed_silence()

        self._chores.every(member.session_seconds / BEATS, "pulse", beat)

        def serve_alive(connection: Connection, frame: memoryview) -> Parts | None:
            pulse.beat()
            return serve(connection, frame)

        return serve_alive

    def _is_controller(self) -> bool:
        """A lone broker is its own."""
        return self._clustered is None or self._clustered.member.active_controller is not None

    def _make_transactions(self, image: ClusterImage, controller: Controller) -> TransactionCoordinator:
        config, peers = self.config, None if self._clustered is None else self._clustered.peers
        coordinator = TransactionCoordinator(
            broker_id=config.node_id,
            settings=TransactionSettings.of(config),
            image=image,
            controller=controller,
            replicas=self._replicas,
            clock=self._clock,
            scheduler=asyncio.get_running_loop(),
            append_marker=self._replicas.append_marker,
            peers=peers,
        )
        self._replicas.verifier = Verifier(config.node_id, coordinator, peers)
        return coordinator

    def _make_schema_book(self, image: ClusterImage) -> SchemaBook:
        peers = None if self._clustered is None else self._clustered.peers
        reader = RegistryReader(broker_id=self.config.node_id, image=image, replicas=self._replicas, peers=peers)
        book = SchemaBook(reader.read, self._clock)
        self._chores.keep("follow schemas", book.follow)
        return book

    def _make_audit(self) -> AuditLog | None:
        target = AuditTarget(self.config[AUDIT])
        if target is AuditTarget.OFF:
            return None
        level = AuditLevel[str(self.config[AUDIT_LEVEL]).upper()]
        return AuditLog(broker_id=self.config.node_id, clock=self._clock, target=target, level=level)

    def _begin_audit(self, image: ClusterImage, controller: Controller, partition: AuditPartition) -> None:
        if self._audit is None:
            return
        self._chores.every(SWEEP_SECONDS, "audit", self._audit.sweep)
        if self.config[AUDIT] != AuditTarget.TOPIC:
            return
        self._audit_topic = AuditTopic(
            broker_id=self.config.node_id,
            queued=self._audit.queued,
            image=image,
            controller=controller,
            partition=partition,
            clock=self._clock,
            replication_factor=1 if self.config.lone else int(self.config["offsets.topic.replication.factor"]),
            retention_ms=int(self.config[AUDIT_RETENTION]),
            peers=None if self._clustered is None else self._clustered.peers,
        )
        self._audit_topic.start()

    def _note_login(self, connection: Connection, mechanism: str, principal: str, failure: str) -> None:
        if self._audit is not None:
            self._audit.record(login(principal, connection.peer, listener_of(connection), mechanism, error=failure))

    def _note_certificate(self, listener: str, peer: str, principal: str, failure: str) -> None:
        if self._audit is not None:
            self._audit.record(login(principal, peer, listener.upper(), "TLS", error=failure))

    async def _close_audit(self) -> None:
        if self._audit is not None:
            self._audit.close()
        if self._audit_topic is not None:
            await self._audit_topic.finish()
            self._audit_topic.report_rest()

    def _make_metrics(self, image: ClusterImage, produce: ProduceHandler) -> BrokerCollector:
        config, clustered, replicas = self.config, self._clustered, self._replicas
        lag = GroupLag(
            groups=self._groups,
            share=self._share,
            image=image,
            ends=self._context.ends,
            clock=self._clock,
            most=int(config[MOST_PARTITIONS]),
        )
        return BrokerCollector(
            BrokerParts(
                config=config,
                clock=self._clock,
                image=image,
                replicas=replicas,
                flusher=self._flusher,
                groups=self._groups,
                transactions=self._transactions,
                shares=self._shares,
                health=self._health,
                listeners=self._listeners,
                certificates=self._tls,
                loop_delay=self._loop_delay,
                times=RequestTimes(),
                group_lag=lag,
                produce_errors=produce.errors,
                logins=lambda: self._sasl.counts,
                delayed_fetches=lambda: len(self._fetch.waiting),
                delayed_share_fetches=lambda: len(self._share_fetch.waiting),
                is_controller=self._is_controller,
                counts=self._counts,
                memory=self._memory,
                throttled=self._throttling.times,
                member=None if clustered is None else clustered.member,
                audit=self._audit,
            )
        )

    def _begin_chores(self, loop: asyncio.AbstractEventLoop) -> None:
        config, every = self.config, self._chores.every
        every(SWEEP_SECONDS, "sweep connections", lambda: self._listeners.sweep(loop.time()))
        maintenance = self._replicas.maintenance
        every(SWEEP_SECONDS, "share sessions", self._share_fetch.sweep)
        every(IDLE_SECONDS, "idle share-partitions", self._shares.drop_idle)
        every(SWEEP_SECONDS, "flush", maintenance.flush_due)
        every(FOLLOWERS_SECONDS, "log health", self._replicas.look_after_logs)
        every(WATCH_SECONDS, "health", self._health.watch)
        for tls in self._tls:
            every(TLS_SECONDS, "certificates", tls.watch)
        every(SWEEP_SECONDS, "report recovery", self._replicas.report_recovery)
        every(SWEEP_SECONDS, "bound producers", maintenance.bound_producers)
        storage = StorageQuotas(self._replicas, self._image, lambda: self._quotas.storage)
        every(LOOK_SECONDS, "storage quotas", storage.look)
        if self._clustered is not None:
            every(FOLLOWERS_SECONDS, "followers", self._replicas.look_after_followers)
            every(FOLLOWERS_SECONDS, "synced logs", self._replicas.prove_synced)
            seconds = int(config["leader.imbalance.check.interval.seconds"])
            every(seconds, "preferred leaders", self._clustered.restore_preferred)
        every(int(config["log.retention.check.interval.ms"]) / 1000, "retention", maintenance.retain)
        every(int(config["offsets.retention.check.interval.ms"]) / 1000, "expire offsets", self._expire_offsets)
        self._begin_transaction_chores()
        prune_seconds = int(config["share.coordinator.state.topic.prune.interval.ms"]) / 1000
        every(prune_seconds, "prune the state of share groups", self._share.prune)
        every(int(config["delegation.token.expiry.check.interval.ms"]) / 1000, "expire tokens", self._expire_tokens)
        for follow_keys in self._sasl.follow_keys:
            self._chores.keep("keys of OAuth tokens", follow_keys)
        every(lambda: int(config["log.cleaner.backoff.ms"]) / 1000, "compaction", self._cleaner.clean)
        every(int(config["log.flush.offset.checkpoint.interval.ms"]) / 1000, "checkpoint", maintenance.checkpoint)
        every(int(config["log.flush.offset.checkpoint.interval.ms"]) / 1000, "time of day", self._retention_clock.save)

    def _begin_transaction_chores(self) -> None:
        config, every = self.config, self._chores.every
        seconds = int(config["transaction.abort.timed.out.transaction.cleanup.interval.ms"]) / 1000
        every(seconds, "abort transactions", self._abort_transactions)
        seconds = int(config["transaction.remove.expired.transaction.cleanup.interval.ms"]) / 1000
        every(seconds, "expire transactional ids", self._expire_transactions)

    def apply_topic(self, topic: Topic) -> None:
        """A topic was made or changed. Of a lone broker, whose controller asks."""
        self._replicas.apply_topic(topic)

    def remove_topic(self, topic: Topic) -> None:
        """A topic was deleted: its logs go, and what groups have committed for it."""
        self._replicas.remove_topic(topic)
        self._transactions.topic_deleted(topic.name)
        self._share.topic_deleted(topic.name)
        self._groups.topic_deleted(topic.name)

    def configs_changed(self, kind: str, name: str, configs: Mapping[str, str]) -> None:
        """Settings have changed: the parts that depend on them read them again."""

    async def _expire_offsets(self) -> None:
        await self._groups.offsets.expire(self._retention_clock.now_ms())

    async def _abort_transactions(self) -> None:
        await self._transactions.abort_overdue()

    async def _expire_tokens(self) -> None:
        if self._is_controller():
            await remove_expired_tokens(self._context)

    async def _expire_transactions(self) -> None:
        await self._transactions.expire(self._retention_clock.now_ms())


def run_broker(
    config: BrokerConfig,
    on_ready: Callable[[str], None],
    on_stop: Callable[[], None] = lambda: None,
    reread: Reread | None = None,
) -> int:
    """Serve in this process until SIGTERM or SIGINT; returns the exit code. Both are called on the event loop.

    SIGHUP has the settings read again, where they came from a file: by `reread`.
    """
    return int(uvloop.run(_serve_until_stopped(config, on_ready, on_stop, reread)))


async def _serve_until_stopped(
    config: BrokerConfig, on_ready: Callable[[str], None], on_stop: Callable[[], None], reread: Reread | None
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: log.info("settings not reloaded: the broker is still starting"))
    warn_without_effect(config)
    is_compiled = compiled.load()
    broker, monitor = Broker(config), Monitor(config)
    await monitor.start()
    try:
        return await _run(broker, monitor, stop, on_ready, on_stop, is_compiled, reread)
    finally:
        await monitor.close()


async def _run(
    broker: Broker,
    monitor: Monitor,
    stop: asyncio.Event,
    on_ready: Callable[[str], None],
    on_stop: Callable[[], None],
    is_compiled: bool,
    reread: Reread | None,
) -> int:
    loop = asyncio.get_running_loop()
    if not await _started(broker, stop):
        return 0
    loop.add_signal_handler(signal.SIGHUP, reload_settings, reread, broker.reload)
    _tune()
    monitor.serving(broker.metrics)
    on_ready(broker.bootstrap)
    building = None if is_compiled else loop.create_task(compiled.build())
    code = await _served(broker, stop)
    monitor.stopping()
    on_stop()
    if building is not None:
        building.cancel()
        await asyncio.wait([building])
    await broker.stop()
    return code


async def _served(broker: Broker, stop: asyncio.Event) -> int:
    """Waits until the broker is to stop, or has failed; the exit code."""
    stopping = asyncio.ensure_future(stop.wait())
    failing = asyncio.ensure_future(broker.failed())
    waiting: list[asyncio.Future[Any]] = [stopping, failing]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    failing.cancel()
    if failing.done() and (error := failing.exception()) is not None:
        log.critical("the broker ends", reason=str(error))
        return 1
    return 0


async def _started(broker: Broker, stop: asyncio.Event) -> bool:
    """Whether it serves; False where it was told to stop before, as it may while it waits for its cluster."""
    starting = asyncio.ensure_future(broker.start())
    stopping = asyncio.ensure_future(stop.wait())
    waiting: list[asyncio.Future[Any]] = [starting, stopping]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        await starting
        return True
    starting.cancel()
    await asyncio.wait([starting])
    return False


def _own_caps(config: BrokerConfig, listener: str) -> Caps:
    """What is set for one listener alone."""

    def own(name: str) -> int:
        value = config.own_of_listener(listener, name)
        return ANY_NUMBER if value is None or value >= MAX_INT else int(value)

    return Caps(own("max.connections"), own("max.connections.per.ip"), rate=own("max.connection.creation.rate"))


def _windows(config: BrokerConfig) -> Windows:
    return Windows(
        samples=int(config["quota.window.num"]),
        seconds=int(config["quota.window.size.seconds"]),
        controller_samples=int(config["controller.quota.window.num"]),
        controller_seconds=int(config["controller.quota.window.size.seconds"]),
    )


def _tune() -> None:
    """What is there after the start stays: never look at it again. Threads that work give way to the loop sooner, and
    so do programs on the same processor."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    ask_for_turns(SHORT_NS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
