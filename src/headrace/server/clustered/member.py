"""What being in a cluster means to a broker: it follows the controller's feed, leads and follows what that says, asks
for ISRs, and is the controller itself when elected.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar
from uuid import UUID

import structlog

from headrace.cluster.active_controller import POLL_SECONDS, ActiveController
from headrace.cluster.alter_partition import AlteredPartition, AlterPartitionResult
from headrace.cluster.election import LogEnd
from headrace.cluster.feature_level import UnsupportedLevel
from headrace.cluster.feed import Feed, FeedPosition
from headrace.cluster.fenced import FencedStore
from headrace.cluster.image import BrokerNode, ClusterImage, Topic
from headrace.cluster.leaders import rules_of
from headrace.cluster.log_faults import FaultyLog
from headrace.cluster.membership import IdInUse, Membership
from headrace.cluster.metadata_writer import ALL_BROKERS, MetadataWriter
from headrace.cluster.pulse import BEATS
from headrace.cluster.recovery import ASK_SECONDS, WantedLog
from headrace.cluster.registration import (
    CONTROLLER_EPOCH,
    Registration,
    decode_registration,
    registration_key,
)
from headrace.cluster.store import SharedStore, StoreError
from headrace.cluster.subscriber import Subscriber
from headrace.cluster.topics import decode_state, encode_state
from headrace.config import BrokerConfig
from headrace.net.peers import Purpose
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.levels import FIRST
from headrace.protocol.peer import InternalApi, PeerMessage
from headrace.replication.isr import IsrChange
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.disk import StorageError

from .identification import Identification
from .peers import LinkedPeers

FEED_TIMEOUT: Final = 15.0
STALE_SECONDS: Final = 30.0
"""How old metadata may be before clients that ask for it are sent away to ask others."""
ISR_TIMEOUT: Final = 10.0
RETRY_SECONDS: Final = 0.1

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberParts:
    """The parts of the broker that its membership works on."""

    config: BrokerConfig
    store: SharedStore
    image: ClusterImage
    replicas: ReplicaManager
    peers: LinkedPeers
    rng: Random
    topic_removed: Callable[[Topic], None]
    registered: Callable[[], None]
    """Called with each registration of this broker."""
    identification: Identification


class ClusterMember:
    """This broker as a member of a cluster. A `cluster.membership.Member` and a `cluster.subscriber.Listener`."""

    def __init__(self, parts: MemberParts, registration: Registration, level: int = FIRST) -> None:
        self._parts = parts
        self.level = level
        """The cluster's feature level, as it was heard last."""
        self._registration = registration
        self._id = registration.node.id
        self.epoch = -1
        """Of this broker's registration."""
        self.is_apart = False
        """From the loss of a session until this broker is registered again."""
        self.active_controller: ActiveController | None = None
        """While this broker is the controller."""
        self._controller: tuple[int | None, int] = (None, -1)
        """Who it is, and its controller epoch."""
        self._changed = asyncio.Event()
        """Set when there is another controller, or another controller epoch, or none any more."""
        self._controller_node: BrokerNode | None = None
        self._reports = 0
        self._reported: tuple[tuple[tuple[int | None, int], int], AbstractSet[FaultyLog] | None] = (
            (self._controller, -1),
            frozenset(),
        )
        """Which logs were reported as faulty last, to which controller, and with which registration. None where it is
        not known whether it has heard: it may then take logs for faulty that are well again."""
        self._subscriber = Subscriber(parts.image, self)
        self._left_out: set[str] = set()
        """Topics that could not be taken up, for a reason that nobody has foreseen."""
        self.is_ready = asyncio.Event()
        """Set once everything in the cluster is known here."""
        self.session_seconds = parts.store.session_seconds
        self._lineage: str | None = None
        """The store's lineage as it was heard last."""
        self._heard_at = asyncio.get_running_loop().time()
        """When the controller's feed was last heard, or taken up."""
        self._is_accounted_for = False
        """Whether everyone knows what this broker's registration means to partitions."""
        self._membership = Membership(
            parts.store,
            registration,
            self,
            cluster_id=parts.image.cluster_id,
            memory=parts.identification,
            rng=parts.rng,
        )

    @property
    def is_out_of_touch(self) -> bool:
        """Whether what this broker knows of the cluster is old: it is not registered, or does not hear the controller,
        as when only the links between them are cut.
        """
        return self.is_apart or asyncio.get_running_loop().time() - self._heard_at > STALE_SECONDS

    @property
    def is_registered(self) -> bool:
        """Whether this broker has a registration, and knows its cluster."""
        return self.epoch >= 0 and not self.is_apart and self.is_ready.is_set()

    def store_silence(self) -> float:
        """The seconds since anything was heard of the metadata store."""
        return self._parts.store.silence()

    def find(self, broker: int) -> BrokerNode | None:
        """The address of a broker. The controller's is known before the feed has sent any."""
        found = self._parts.image.brokers.get(broker)
        if found is None and self._controller_node is not None and self._controller_node.id == broker:
            return self._controller_node
        return found

    async def stay(self) -> None:
        """Be a member until cancelled; raises `IdInUse` when another broker has this one's number."""
        await self._membership.run()

    async def keep_marked(self) -> None:
        """Renew this broker's mark in the store until cancelled."""
        await self._membership.keep_marked()

    async def resign(self, patience: float) -> None:
        """Before stopping: let others lead. Asks again while there is no controller, or others have yet to catch up."""
        reason = ""
        try:
            async with asyncio.timeout(patience):
                while reason := await self._hand_over():
                    if not self._leads_for_others():
                        break
                    await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            log.warning("the controller could not move what this broker leads", reason=reason)

    async def _hand_over(self) -> str:
        """Ask the controller once to let others lead; what is in the way of that, if anything is."""
        try:
            left = await self._under_this_controller(self._resign())
        except (OSError, CodedError, StoreError) as error:
            return str(error) or type(error).__name__
        return f"nobody else is in sync in {left} partition(s)" if left else ""

    def _leads_for_others(self) -> bool:
        """Whether it leads anything that others could lead."""
        return any(p.is_leader and p.followers is not None for p in self._parts.replicas.hosted())

    async def withdraw(self) -> None:
        """Delete this broker's registration, so that nobody waits for its session to expire."""
        await self._membership.withdraw()

    async def _resign(self) -> int:
        """Ask the controller to let others lead; how many partitions are left that others could lead later."""
        controller_here = self._active_controller_here()
        if controller_here is not None:
            return await controller_here.shut_down(self._id, self.epoch)
        answer = await self._tell_controller(InternalApi.RESIGN, {"broker_epoch": self.epoch})
        return int(answer["left"])

    def stalled(self, seconds: float) -> None:
        """This process stood still for longer than its session lasts: it leads nothing until it is registered anew."""
        self._step_aside("this broker stood still for longer than its session lasts", seconds)

    def heed_silence(self) -> None:
        """To be called `BEATS` times in a session. When nothing was heard of the store for nearly as long as a session
        lasts, others are about to lead what this broker leads, whether or not its connection is known to be broken.
        """
        silence = self._parts.store.silence()
        if silence >= self._parts.store.session_seconds * (BEATS - 1) / BEATS:
            self._step_aside("nothing is heard of the metadata store", silence)

    def _step_aside(self, reason: str, seconds: float) -> None:
        if self.epoch >= 0 and not self.is_apart:
            log.warning(reason, seconds=round(seconds, 1))
            self.step_down()
            self._membership.presume_lost()

    # As a `MemberHealth`

    def registered(self, epoch: int) -> None:
        self.epoch = epoch
        self.is_apart = self._is_accounted_for = False
        self._subscriber.forget_place()
        self._parts.registered()
        log.info("broker registered", broker=self._id, epoch=epoch)

    def step_down(self) -> None:
        self.is_apart = True
        self._parts.replicas.step_down()
        self._subscriber.forget_place()

    def store_set_back(self) -> None:
        self._parts.replicas.forget_states()
        self._subscriber.forget_controllers()

    def controller_is(self, broker: int | None, epoch: int) -> None:
        if (broker, epoch) == self._controller:
            return
        if broker is not None:
            log.info("controller elected", broker=broker, epoch=epoch)
        elif self._controller[0] is not None:
            log.info("controller unknown", was=self._controller[0])
        self._controller = (broker, epoch)
        self._parts.image.controller_id = -1 if broker is None else broker
        self._parts.image.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def controller(self) -> int | None:
        """Who the controller is, as far as is known."""
        return self._controller[0]

    async def rule(self, epoch: int, epoch_version: int) -> None:
        parts = self._parts
        store = FencedStore(parts.store, CONTROLLER_EPOCH, epoch_version)
        image = ClusterImage(cluster_id=parts.image.cluster_id, controller_id=self._id)
        feed = Feed(image, epoch, lambda topic: rules_of(topic, parts.config).min_insync_replicas)
        writer = MetadataWriter(
            store=store,
            image=image,
            config=parts.config,
            node=self._registration.node,
            rng=parts.rng,
            listeners=feed,
        )
        active = ActiveController(
            broker_id=self._id,
            store=parts.store,
            writer=writer,
            image=image,
            feed=feed,
            ask_ends=self._ask_ends,
            rng=parts.rng,
            clock=parts.replicas.clock,
        )
        self.active_controller = active
        try:
            await _first_to_end(active.run(), _set(store.ended))
        finally:
            self.active_controller = None
            active.close()
            await store.close()
            await writer.close()

    # The feed

    async def follow_feed(self) -> None:
        """Take up what the controller tells until cancelled. Where that fails, everything has to be told anew."""
        try:
            await self._follow_feed()
        except Exception:
            self._left_out.clear()
            self._subscriber.forget_place()
            raise

    async def _follow_feed(self) -> None:
        failure = ""
        while True:
            position = self._subscriber.position
            try:
                answer = await self._under_this_controller(self._poll(position))
            except (OSError, CodedError, StoreError) as error:
                if str(error) != failure:
                    failure = str(error)
                    log.info("the controller's feed cannot be followed now", reason=failure)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            failure = ""
            if self._is_other_history(answer["lineage"]):
                self.store_set_back()
                continue
            if not await self._take(answer, position):
                await asyncio.sleep(RETRY_SECONDS)  # of a controller that has had a successor
                continue
            self._heard_at = asyncio.get_running_loop().time()
            self._heed_level(answer.get("level", self.level))
            if self._subscriber.is_current and not self._is_accounted_for:
                self._is_accounted_for = True
                self._parts.identification.note_lineage(answer["lineage"])
                self._parts.identification.confirm()
                self.is_ready.set()
            if self._left_out:
                raise RuntimeError(f"{len(self._left_out)} topic(s) could not be taken up, as {min(self._left_out)}")

    def _heed_level(self, level: int) -> None:
        """A controller of before there were levels tells none."""
        if level not in self._registration.levels:
            raise UnsupportedLevel(level, self._registration.levels)
        if level != self.level:
            log.info("feature level raised" if level > self.level else "feature level set back", level=level)
            self.level = level

    async def update_level(self, to: int | None, *, dry_run: bool) -> Mapping[str, Any]:
        """Have the controller raise the cluster's feature level; what became, or would become, of it."""
        controller_here = self._active_controller_here()
        if controller_here is not None:
            return (await controller_here.update_level(to, dry_run=dry_run)).to_json()
        return await self._tell_controller(InternalApi.UPDATE_LEVEL, {"to": to, "dry_run": dry_run})

    async def serve_update_level(self, message: PeerMessage, broker: int) -> PeerMessage:  # noqa: ARG002 - for whoever it is
        """A `PeerHandler`."""
        values = message.values
        return PeerMessage((await self._elected().update_level(values["to"], dry_run=values["dry_run"])).to_json())

    def _is_other_history(self, lineage: str) -> bool:
        """Whether others have found the store set back since this broker, which need not have noticed, last heard."""
        known, self._lineage = self._lineage, lineage
        return known not in (None, lineage)

    async def _take(self, answer: Mapping[str, Any], position: FeedPosition) -> bool:
        """Take up an answer, if it counts. Where that takes long the controller hears of this broker meanwhile."""
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._tell_that_busy())
            is_taken = await self._subscriber.take(answer, position)
            telling.cancel()
        return is_taken

    async def _tell_that_busy(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                if self._active_controller_here() is None:
                    await self._tell_controller(InternalApi.BUSY, {})
            except (OSError, CodedError, StoreError) as error:
                log.info("the controller could not be told that this broker is busy", reason=str(error))

    async def _under_this_controller(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives, which asks the controller; NOT_CONTROLLER as soon as there is another one, or none.

        One that is gone without a word would not answer before a deadline that is meant for one that is busy.
        """
        asking = asyncio.ensure_future(work)
        changed = asyncio.ensure_future(self._changed.wait())
        waiting: list[asyncio.Future[Any]] = [asking, changed]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise CodedError(ErrorCode.not_controller, "there is another controller")
        finally:
            for future in waiting:
                future.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _poll(self, position: FeedPosition) -> Mapping[str, Any]:
        controller_here = self._active_controller_here()
        if controller_here is not None:
            return await controller_here.poll(self._id, self.epoch, position)
        controller = await self._find_controller()
        request = {"broker_epoch": self.epoch, "place": position}
        peers = self._parts.peers
        return await peers.tell(controller, InternalApi.FEED, request, purpose=Purpose.FEED, timeout=FEED_TIMEOUT)

    def _active_controller_here(self) -> ActiveController | None:
        """The controller, if it is this broker; None where it is another. `CodedError` where there is none."""
        controller = self.controller
        if controller is None:
            raise CodedError(ErrorCode.not_controller, "there is no controller")
        if controller == self._id and self.active_controller is None:
            raise CodedError(ErrorCode.not_controller, "not elected any more")
        return self.active_controller if controller == self._id else None

    async def _find_controller(self) -> int:
        controller = self.controller
        assert controller is not None
        if self.find(controller) is None:
            key = registration_key(controller)
            stored = await self._parts.store.get(key)
            if stored is None:
                raise CodedError(ErrorCode.not_controller, f"broker {controller} is not registered")
            self._controller_node = decode_registration(key, stored).node
        return controller

    # As a `Listener`

    def apply_topic(self, topic: Topic, changed: Iterable[int] | None = None) -> None:
        try:
            self._parts.replicas.apply_topic(topic, changed)
        except (OSError, CodedError, StorageError) as error:
            log.error("a topic cannot be held as the cluster says", topic=topic.name, reason=str(error))
        except Exception:  # whatever it is, the other topics come first; then this one is tried again
            log.exception("a topic cannot be held as the cluster says", topic=topic.name)
            self._left_out.add(topic.name)

    def remove_topic(self, topic: Topic) -> None:
        try:
            self._parts.topic_removed(topic)
        except (OSError, CodedError, StorageError) as error:
            log.error("a topic could not be removed", topic=topic.name, reason=str(error))

    def set_topic_aside(self, topic: Topic) -> None:
        log.error(
            "a topic is gone from the cluster's metadata and was not deleted: its logs are set aside; was the metadata "
            "store set back, or put back from an old copy?",
            topic=topic.name,
            topic_id=topic.id.hex,
        )
        try:
            self._parts.replicas.set_topic_aside(topic)
        except (OSError, CodedError, StorageError) as error:
            log.error("a topic's logs could not be set aside", topic=topic.name, reason=str(error))

    def brokers_changed(self, gone: AbstractSet[int]) -> None:
        """Fail the pending requests to brokers that are gone."""
        for broker in gone - {self._id}:
            self._parts.peers.drop(broker)

    def configs_changed(self, kind: str, name: str) -> None:  # noqa: ARG002 - all are read anew
        if kind == "broker":
            configs = self._parts.image.broker_configs
            own = configs.get(str(self._id), {})
            self._parts.config.use_dynamic(cluster=configs.get(ALL_BROKERS, {}), own=own)
            for topic in self._parts.image.topics():
                self.apply_topic(topic)

    # ISRs

    async def alter_isr(self, number: int, changes: Sequence[IsrChange]) -> list[AlterPartitionResult]:
        """Ask the controller for ISRs. An `AlterIsr`."""
        asked = [change._asdict() | {"topic_id": change.topic_id.hex()} for change in changes]
        return await self._under_this_controller(self._alter_isr(number, asked))

    async def _alter_isr(self, number: int, changes: Sequence[Mapping[str, Any]]) -> list[AlterPartitionResult]:
        controller_here = self._active_controller_here()
        if controller_here is not None:
            return await controller_here.alter_isr(self._id, self.epoch, number, changes)
        message = {"broker_epoch": self.epoch, "number": number, "changes": changes}
        answer = await self._tell_controller(InternalApi.ALTER_ISR, message)
        return [_outcome(values) for values in answer["outcomes"]]

    async def _tell_controller(self, api: InternalApi, message: Mapping[str, Any]) -> Mapping[str, Any]:
        controller = await self._find_controller()
        return await self._parts.peers.tell(controller, api, message, timeout=ISR_TIMEOUT)

    async def report_logs(self, faulty: AbstractSet[FaultyLog]) -> None:
        """Tell the controller which logs this broker cannot serve, unless it knows. A `ReportFaults`.

        A new controller knows nothing, nor does any controller of a broker that has registered anew.
        """
        audience = (self._controller, self.epoch)
        if (audience, faulty) == self._reported or not (faulty or self._reported[0] == audience):
            return
        self._reports += 1
        self._reported = (audience, None)
        try:
            await self._under_this_controller(self._report_logs(self._reports, sorted(faulty)))
            self._reported = (audience, faulty)
        except (OSError, CodedError, StoreError) as error:
            log.warning("the controller could not be told of faulty logs", logs=len(faulty), reason=str(error))

    async def _report_logs(self, number: int, logs: Sequence[FaultyLog]) -> None:
        controller_here = self._active_controller_here()
        if controller_here is not None:
            await controller_here.report_logs(self._id, self.epoch, number, logs)
        else:
            report = {"broker_epoch": self.epoch, "number": number, "logs": logs}
            await self._tell_controller(InternalApi.REPORT_LOGS, report)

    # The ends of logs

    async def _ask_ends(self, broker: int, logs_wanted: Sequence[WantedLog]) -> list[LogEnd | None]:
        """Ask a broker how far its logs reach. An `AskEnds`, of the controller that this broker is."""
        if broker == self._id:
            return self._log_ends(logs_wanted)
        logs = [(topic_id.hex, partition, epoch) for topic_id, partition, epoch in logs_wanted]
        message = {"logs": logs}
        answer = await self._parts.peers.tell(broker, InternalApi.LOG_ENDS, message, timeout=ASK_SECONDS)
        return [None if end is None else LogEnd(*end) for end in answer["ends"]]

    def _log_ends(self, wanted: Iterable[WantedLog]) -> list[LogEnd | None]:
        """What this broker can tell; nothing while it is not registered, as it may then not know of a new leader."""
        if self.is_apart:
            return [None for _ in wanted]
        return [self._parts.replicas.log_end(t.bytes, index, epoch) for t, index, epoch in wanted]

    async def serve_log_ends(self, message: PeerMessage, broker: int) -> PeerMessage:  # noqa: ARG002 - whoever it is
        """A `PeerHandler`."""
        wanted = [WantedLog(UUID(hex=topic_id), index, epoch) for topic_id, index, epoch in message.values["logs"]]
        return PeerMessage({"ends": self._log_ends(wanted)})

    # What other brokers ask of the controller

    def _elected(self) -> ActiveController:
        if self.active_controller is None:
            raise CodedError(ErrorCode.not_controller, f"broker {self._id} is not the controller")
        return self.active_controller

    async def serve_feed(self, message: PeerMessage, broker: int) -> PeerMessage:
        """A `PeerHandler`."""
        values = message.values
        return PeerMessage(await self._elected().poll(broker, values["broker_epoch"], FeedPosition(*values["place"])))

    async def serve_alter_isr(self, message: PeerMessage, broker: int) -> PeerMessage:
        """A `PeerHandler`."""
        values = message.values
        outcomes = await self._elected().alter_isr(broker, values["broker_epoch"], values["number"], values["changes"])
        return PeerMessage({"outcomes": [_wire_result(result) for result in outcomes]})

    async def serve_resign(self, message: PeerMessage, broker: int) -> PeerMessage:
        """A `PeerHandler`."""
        return PeerMessage({"left": await self._elected().shut_down(broker, message.values["broker_epoch"])})

    async def serve_busy(self, message: PeerMessage, broker: int) -> PeerMessage:  # noqa: ARG002 - that it came says all
        """A `PeerHandler`."""
        self._elected().hear(broker)
        return PeerMessage({})

    async def serve_report_logs(self, message: PeerMessage, broker: int) -> PeerMessage:
        """A `PeerHandler`."""
        values = message.values
        logs = [FaultyLog(*entry) for entry in values["logs"]]
        await self._elected().report_logs(broker, values["broker_epoch"], values["number"], logs)
        return PeerMessage({})


def _wire_result(result: AlterPartitionResult) -> list[Any]:
    if isinstance(result, AlteredPartition):
        return [0, encode_state(result.state), result.least_isr]
    return [result.code.value, result.message, 0]


def _outcome(values: Sequence[Any]) -> AlterPartitionResult:
    code, rest, least_isr = values
    return AlteredPartition(decode_state(rest), least_isr) if code == 0 else CodedError(ErrorCode(code), rest)


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
            raise root_cause(result)


def root_cause(error: BaseException) -> BaseException:
    """What ended a task group, without the group around it."""
    while isinstance(error, BaseExceptionGroup):
        error = next((e for e in error.exceptions if isinstance(e, IdInUse)), error.exceptions[0])
    return error
