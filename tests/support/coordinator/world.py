"""A coordinator on a simulated disk and in simulated time: everything but sockets is the broker's own."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, TypeVar, cast

from kio.index import load_response_schema
from kio.serial import entity_reader

from headrace.cluster.image import BrokerNode, ClusterImage, Topic
from headrace.cluster.metadata_writer import MetadataWriter, TopicSpec
from headrace.cluster.sqlite import SqliteStore
from headrace.config import BrokerConfig
from headrace.coordinator.groups.service import GroupCoordinator
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.share.service import ShareCoordinator, ShareCoordinatorSettings
from headrace.coordinator.share.store import RoutedShareState
from headrace.coordinator.transactions.service import TransactionCoordinator, TransactionSettings
from headrace.coordinator.transactions.verifier import Verifier
from headrace.protocol.api import ApiKey
from headrace.protocol.encode import blank_response, encode_response
from headrace.protocol.errors import CodedError
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import Context, RequestInfo
from headrace.server.handlers import HANDLERS
from headrace.server.partition_ends import PartitionEnds
from headrace.storage.flusher import Flusher
from headrace.storage.manager import LogManager
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk
from tests.support.handlers import through_the_wire

T = TypeVar("T")
Work = tuple[Callable[[], None], Callable[[BaseException | None], None]]


class ManualScheduler:
    """Timers that go off when the clock is moved."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._timers: list[_Timer] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> "_Timer":
        timer = _Timer(self._clock.monotonic() + delay, callback)
        self._timers.append(timer)
        return timer

    @property
    def due(self) -> list[float]:
        return sorted(timer.at for timer in self._timers if not timer.cancelled)

    def advance(self, milliseconds: int) -> None:
        """Let time pass, with every timer at its time."""
        end = self._clock.monotonic() + milliseconds / 1000
        while True:
            waiting = [timer for timer in self._timers if not timer.cancelled and timer.at <= end]
            if not waiting:
                break
            first = min(waiting, key=lambda timer: timer.at)
            self._timers.remove(first)
            self._clock.advance(max(round((first.at - self._clock.monotonic()) * 1000), 0))
            first.callback()
        self._clock.advance(max(round((end - self._clock.monotonic()) * 1000), 0))


class _Timer:
    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """A lone broker's groups. With `holds_syncs`, nothing reaches stable storage until `sync` is called."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.config = BrokerConfig.parse(
            {
                "offsets.topic.num.partitions": "2",
                "transaction.state.log.num.partitions": "2",
                "share.coordinator.state.topic.num.partitions": "2",
                **(settings or {}),
            }
        )
        self.clock = SimulatedClock()
        self.scheduler = ManualScheduler(self.clock)
        self.disk = SimulatedDisk()
        self.holds_syncs = False
        self.serving: asyncio.Event | None = None
        """Where it is there, members are not late before it is set."""
        self.works = 0
        """How often something was done by a thread."""
        self._held: list[Work] = []
        self._numbers = iter(range(1, 10**9))
        self.store = self.run(SqliteStore.open(":memory:"))
        self.start()

    def start(self, *, load: bool = True) -> None:
        """Begin a life on what the disk has."""
        self.scheduler = ManualScheduler(self.clock)
        self._held.clear()
        logs = LogManager(self.disk, self.clock, "/data", cluster_id="here", broker_id=1)
        logs.open()
        self.image = ClusterImage(cluster_id="here", controller_id=1)
        self.replicas = ReplicaManager(
            broker_id=1, config=self.config, clock=self.clock, logs=logs, flusher=Flusher(self._sync_later)
        )
        self.controller = MetadataWriter(
            store=self.store,
            image=self.image,
            config=self.config,
            node=BrokerNode(id=1, host="localhost", port=9092),
            rng=Random(1),
            listeners=self,
        )
        self.run(self.controller.load())
        for topic in self.image.topics():
            self.replicas.apply_topic(topic)
        self.run(self._start_groups())
        if load:
            self.settle()

    async def _start_groups(self) -> None:
        self.share = ShareCoordinator(
            settings=ShareCoordinatorSettings.of(self.config),
            image=self.image,
            controller=self.controller,
            replicas=self.replicas,
            clock=self.clock,
            scheduler=self.scheduler,
        )
        self.share.start()
        self.share_state = RoutedShareState(
            broker_id=1, coordinator=self.share, image=self.image, clock=self.clock, peers=None
        )
        self.groups = GroupCoordinator(
            settings=GroupSettings.of(self.config),
            image=self.image,
            controller=self.controller,
            replicas=self.replicas,
            clock=self.clock,
            scheduler=self.scheduler,
            new_id=lambda: str(next(self._numbers)),
            share_state=self.share_state,
            run_in_background=self.background,
            serving=self.serving,
        )
        self.groups.start()
        self.transactions = TransactionCoordinator(
            broker_id=1,
            settings=TransactionSettings.of(self.config),
            image=self.image,
            controller=self.controller,
            replicas=self.replicas,
            clock=self.clock,
            scheduler=self.scheduler,
            append_marker=self.replicas.append_marker,
        )
        self.replicas.verifier = Verifier(1, self.transactions, None)
        self.transactions.start()
        self.context = Context(
            config=self.config,
            clock=self.clock,
            image=self.image,
            controller=self.controller,
            replicas=self.replicas,
            groups=self.groups,
            transactions=self.transactions,
            share=self.share,
            share_state=self.share_state,
            ends=PartitionEnds(broker_id=1, image=self.image, replicas=self.replicas, peers=None),
            active_controller=lambda: self.config.node_id,
        )

    async def background(self, work: Callable[[], T]) -> T:
        """What a thread would do."""
        self.works += 1
        await asyncio.sleep(0)
        return work()

    def apply_topic(self, topic: Topic) -> None:
        self.replicas.apply_topic(topic)

    def configs_changed(self, kind: str, name: str, configs: Mapping[str, str]) -> None:
        """Nobody here goes by them."""

    def remove_topic(self, topic: Topic) -> None:
        self.replicas.remove_topic(topic)
        self.transactions.topic_deleted(topic.name)
        self.share.topic_deleted(topic.name)
        self.groups.topic_deleted(topic.name)

    def kill(self, *, load: bool = True) -> None:
        """Die by `kill -9` and start."""
        self._cancel_all()
        self.disk.kill()
        self.start(load=load)

    def crash(self) -> None:
        """Lose power and start."""
        self._cancel_all()
        self.disk.crash(Random(1))
        self.start()

    def close(self) -> None:
        self.run(self.share.close())
        self.run(self.transactions.close())
        self.run(self.groups.close())
        self.settle()
        left = asyncio.all_tasks(self.loop)
        self._cancel_all()
        self.run(self.store.close())
        self.loop.close()
        assert not left, f"tasks are left: {left}"

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.settle()

    def _sync_later(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        self._held.append((work, done))
        if not self.holds_syncs:
            self.loop.call_soon(self.sync)

    def sync(self) -> None:
        """Bring what was written to stable storage, and tell those who wait."""
        while self._held:
            work, done = self._held.pop(0)
            error: BaseException | None = None
            try:
                work()
            except Exception as raised:
                error = raised
            done(error)

    # Requests

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def settle(self) -> None:
        """Let everything run that can."""

        async def turns() -> None:
            for _ in range(200):
                await asyncio.sleep(0)

        self.run(turns())

    def advance(self, milliseconds: int) -> None:
        self.settle()
        self.scheduler.advance(milliseconds)
        self.settle()

    def topic(self, name: str, partitions: int = 4) -> Topic:
        return self.run(self.controller.create_topic(TopicSpec(name=name, partitions=partitions)))

    def send(self, api_key: ApiKey, version: int, **values: Any) -> "asyncio.Task[Any]":
        """A request under way."""
        task = self.loop.create_task(self._serve(api_key, version, values))
        self.settle()
        return task

    def ask(self, api_key: ApiKey, version: int, **values: Any) -> Any:
        """The answer to a request."""
        return self.run(cast(Any, self._serve(api_key, version, values)))

    async def _serve(self, api_key: ApiKey, version: int, values: Mapping[str, Any]) -> Any:
        entity = through_the_wire(api_key, version, values)
        client_id = values.get("client_id", "tests")
        info = RequestInfo(
            api_key, version, client_id, "User:ANONYMOUS", "127.0.0.1", connection=values.get("connection", 0)
        )
        try:
            answer: Any = await HANDLERS[api_key](self.context, entity, info)
        except CodedError as error:
            answer = blank_response(api_key, version, error.code.value) | {"error_message": error.message}
        body = answer if isinstance(answer, bytes | bytearray) else encode_response(api_key, version, answer)
        decoded, end = entity_reader(load_response_schema(api_key, version))(bytes(body), 0)
        assert end == len(body), "the answer has bytes that no client expects"
        return decoded
