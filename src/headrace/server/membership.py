"""What being in a cluster means to a broker: it follows the controller's feed, leads and follows what that says, asks
for ISRs, and is the controller itself when elected.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import structlog

from headrace.cluster.controller import ALL_BROKERS, Controller
from headrace.cluster.feed import Feed
from headrace.cluster.fenced import FencedStore
from headrace.cluster.image import BrokerNode, ClusterImage, PartitionState, Topic
from headrace.cluster.membership import Membership
from headrace.cluster.overseer import Overseer
from headrace.cluster.registration import CONTROLLER_EPOCH, Registration, decode_registration, registration_key
from headrace.cluster.store import SharedStore, StoreError
from headrace.cluster.subscriber import Subscriber
from headrace.cluster.topics import decode_state, encode_state
from headrace.config import BrokerConfig
from headrace.net.peers import Peers, Purpose
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.peer import InternalApi, Message
from headrace.replication.isr import IsrChange, Outcome
from headrace.replication.replica_manager import ReplicaManager

FEED_TIMEOUT: Final = 15.0
ISR_TIMEOUT: Final = 10.0
RETRY_SECONDS: Final = 0.1

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberParts:
    """The parts of the broker that its membership works on."""

    config: BrokerConfig
    store: SharedStore
    image: ClusterImage
    replicas: ReplicaManager
    peers: Peers
    rng: Random
    topic_removed: Callable[[Topic], None]


class ClusterMember:
    """This broker as a member of a cluster. A `cluster.membership.Member` and a `cluster.subscriber.Listener`."""

    def __init__(self, parts: MemberParts, registration: Registration) -> None:
        self._parts = parts
        self._registration = registration
        self._id = registration.node.id
        self.epoch = -1
        """Of this broker's registration."""
        self.overseer: Overseer | None = None
        """While this broker is the controller."""
        self.controller: int | None = None
        self._controller_node: BrokerNode | None = None
        self._controller_known = asyncio.Event()
        self._subscriber = Subscriber(parts.image, self)
        self.is_ready = asyncio.Event()
        """Set once everything in the cluster is known here."""
        session_seconds = int(parts.config["zookeeper.session.timeout.ms"]) / 1000
        self._membership = Membership(parts.store, registration, self, session_seconds=session_seconds)

    def find(self, broker: int) -> BrokerNode | None:
        """Where a broker is. The controller is known before the feed tells of anyone."""
        found = self._parts.image.brokers.get(broker)
        if found is None and self._controller_node is not None and self._controller_node.id == broker:
            return self._controller_node
        return found

    async def run(self) -> None:
        """Be a member until cancelled; raises `IdInUse` when another broker has this one's number."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._membership.run(), name="membership")
            tasks.create_task(self._follow_feed(), name="feed")

    async def resign(self, patience: float) -> None:
        """Before stopping: let others lead."""
        try:
            async with asyncio.timeout(patience):
                await self._resign()
        except (OSError, CodedError, TimeoutError) as error:
            log.warning("the controller could not move what this broker leads", reason=str(error))

    async def withdraw(self) -> None:
        """Be gone from the cluster, so that nobody has to wait for the session to end."""
        await self._membership.withdraw()

    async def _resign(self) -> None:
        controller = self.controller
        if controller is None or (controller == self._id and self.overseer is None):
            return
        if self.overseer is not None:
            left = await self.overseer.shut_down(self._id, self.epoch)
        else:
            answer = await self._parts.peers.tell(controller, InternalApi.RESIGN, {"broker_epoch": self.epoch})
            left = int(answer["left"])
        log.info("others lead what this broker led", only_here=left)

    # As a `Member`

    async def registered(self, epoch: int) -> None:
        self.epoch = epoch
        self._subscriber.forget_place()
        log.info("registered in the cluster", broker=self._id, epoch=epoch)

    async def step_down(self) -> None:
        self._parts.replicas.step_down()
        self._subscriber.forget_place()

    def controller_is(self, broker: int | None, epoch: int) -> None:
        if broker != self.controller:
            log.info("the controller is", broker=broker, epoch=epoch)
        self.controller = broker
        self._parts.image.controller_id = -1 if broker is None else broker
        self._parts.image.version += 1
        if broker is None:
            self._controller_known.clear()
        else:
            self._controller_known.set()

    async def rule(self, epoch: int, epoch_version: int) -> None:
        parts = self._parts
        store = FencedStore(parts.store, CONTROLLER_EPOCH, epoch_version)
        image = ClusterImage(cluster_id=parts.image.cluster_id, controller_id=self._id)
        feed = Feed(image, epoch)
        controller = Controller(
            store=store,
            image=image,
            config=parts.config,
            node=self._registration.node,
            rng=parts.rng,
            listeners=feed,
        )
        overseer = Overseer(store=parts.store, controller=controller, image=image, feed=feed)
        self.overseer = overseer
        try:
            await _first_to_end(overseer.run(), _set(store.ended))
        finally:
            self.overseer = None
            feed.close()
            await store.close()

    # The feed

    async def _follow_feed(self) -> None:
        failure = ""
        while True:
            await self._controller_known.wait()
            try:
                answer = await self._poll()
            except (OSError, CodedError, StoreError) as error:
                if str(error) != failure:
                    failure = str(error)
                    log.info("the controller's feed cannot be followed now", reason=failure)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            failure = ""
            self._subscriber.take(answer)
            if self._subscriber.is_current and not self.is_ready.is_set():
                self.is_ready.set()

    async def _poll(self) -> Mapping[str, Any]:
        place = self._subscriber
        controller = self.controller
        if controller is None:
            raise CodedError(ErrorCode.not_controller, "there is no controller")
        if controller == self._id:
            if self.overseer is None:
                raise CodedError(ErrorCode.not_controller, "not elected any more")
            return await self.overseer.poll(self._id, self.epoch, place.epoch, place.version)
        await self._find_controller(controller)
        asked = {"broker_epoch": self.epoch, "epoch": place.epoch, "version": place.version}
        peers = self._parts.peers
        return await peers.tell(controller, InternalApi.FEED, asked, purpose=Purpose.FEED, timeout=FEED_TIMEOUT)

    async def _find_controller(self, controller: int) -> None:
        if self.find(controller) is None:
            key = registration_key(controller)
            stored = await self._parts.store.get(key)
            if stored is None:
                raise CodedError(ErrorCode.not_controller, f"broker {controller} is not registered")
            self._controller_node = decode_registration(key, stored).node

    # As a `Listener`

    def apply_topic(self, topic: Topic, changed: Iterable[int] | None = None) -> None:
        try:
            self._parts.replicas.apply_topic(topic, changed)
        except (OSError, CodedError) as error:
            log.error("a topic cannot be held as the cluster says", topic=topic.name, reason=str(error))

    def remove_topic(self, topic: Topic) -> None:
        try:
            self._parts.topic_removed(topic)
        except (OSError, CodedError) as error:
            log.error("a topic could not be removed", topic=topic.name, reason=str(error))

    def brokers_changed(self) -> None:
        """Links to those who are gone end by themselves."""

    def configs_changed(self, kind: str, name: str) -> None:  # noqa: ARG002 - all are read anew
        if kind == "broker":
            configs = self._parts.image.broker_configs
            own = configs.get(str(self._id), {})
            self._parts.config.use_dynamic(cluster=configs.get(ALL_BROKERS, {}), own=own)
            for topic in self._parts.image.topics():
                self.apply_topic(topic)

    # ISRs

    async def alter_isr(self, changes: Sequence[IsrChange]) -> list[Outcome]:
        """Ask the controller for ISRs. An `AlterIsr`."""
        controller = self.controller
        asked = [change._asdict() | {"topic_id": change.topic_id.hex()} for change in changes]
        if controller is None:
            raise CodedError(ErrorCode.not_controller, "there is no controller")
        if controller == self._id:
            if self.overseer is None:
                raise CodedError(ErrorCode.not_controller, "not elected any more")
            return await self.overseer.alter_isr(self._id, self.epoch, asked)
        message = {"broker_epoch": self.epoch, "changes": asked}
        answer = await self._parts.peers.tell(controller, InternalApi.ALTER_ISR, message, timeout=ISR_TIMEOUT)
        return [_outcome(values) for values in answer["outcomes"]]

    # What other brokers ask of the controller

    def _ruling(self) -> Overseer:
        if self.overseer is None:
            raise CodedError(ErrorCode.not_controller, f"broker {self._id} is not the controller")
        return self.overseer

    async def serve_feed(self, message: Message, broker: int) -> Message:
        """A `PeerHandler`."""
        values = message.values
        return Message(await self._ruling().poll(broker, values["broker_epoch"], values["epoch"], values["version"]))

    async def serve_alter_isr(self, message: Message, broker: int) -> Message:
        """A `PeerHandler`."""
        values = message.values
        outcomes = await self._ruling().alter_isr(broker, values["broker_epoch"], values["changes"])
        return Message({"outcomes": [_told(outcome) for outcome in outcomes]})

    async def serve_resign(self, message: Message, broker: int) -> Message:
        """A `PeerHandler`."""
        return Message({"left": await self._ruling().shut_down(broker, message.values["broker_epoch"])})


def _told(outcome: Outcome) -> list[Any]:
    if isinstance(outcome, PartitionState):
        return [0, encode_state(outcome)]
    return [outcome.code.value, outcome.message]


def _outcome(values: Sequence[Any]) -> Outcome:
    code, rest = values
    return decode_state(rest) if code == 0 else CodedError(ErrorCode(code), rest)


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _first_to_end(*works: Any) -> None:
    """Runs works side by side until one ends, or fails; the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
