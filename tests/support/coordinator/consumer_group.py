"""A group with a log and a clock, and members that speak to it."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any
from uuid import UUID, uuid5

from headrace.cluster.image import BrokerNode, ClusterImage, PartitionState, Topic
from headrace.coordinator.groups.classic import ClassicGroup, ClassicSettings
from headrace.coordinator.groups.consumer import CONSUMER, ConsumerGroup, ConsumerSettings, HeartbeatRequest
from headrace.coordinator.groups.consumer.target import TargetAssignment
from headrace.coordinator.groups.resolver import Resolver
from headrace.coordinator.runtime.decision import CoordinatorRecord, Decision
from headrace.coordinator.runtime.fields import key_kind
from headrace.protocol.errors import ErrorCode

SPACE = UUID(int=1)
GROUP = "group"
CLASSIC = ClassicSettings(
    min_session_timeout_ms=1, max_session_timeout_ms=60_000, initial_rebalance_delay_ms=0, max_size=100
)
Owned = dict[UUID, frozenset[int]]


def topic_id(name: str, life: int = 0) -> UUID:
    return uuid5(SPACE, f"{name}/{life}")


def make_image(topics: Mapping[str, int], racks: Mapping[int, str] | None = None) -> ClusterImage:
    image = ClusterImage(cluster_id="test", controller_id=1)
    for broker in (1, 2, 3):
        image.brokers[broker] = BrokerNode(id=broker, host="h", port=1, rack=(racks or {}).get(broker))
    for name, partition_count in topics.items():
        put_topic(image, name, partition_count)
    return image


def put_topic(image: ClusterImage, name: str, partition_count: int, life: int = 0) -> None:
    brokers = [index % 3 + 1 for index in range(partition_count)]
    partitions = tuple(PartitionState(replicas=(broker,), isr=(broker,), leader=broker) for broker in brokers)
    image.put_topic(Topic(name=name, id=topic_id(name, life), partitions=partitions, internal=name.startswith("__")))


class Host:
    """Does for one group what the coordinator does: keeps its records, its timers and its answers."""

    def __init__(self, image: ClusterImage, settings: ConsumerSettings | None = None) -> None:
        self.image = image
        self.settings = settings or ConsumerSettings()
        self.now_ms = 1_000
        self._ids = count()
        self.log: list[CoordinatorRecord] = []
        self.timers: dict[Any, int] = {}
        self.answers: dict[Any, Mapping[str, Any]] = {}
        self.group = self.new_group()
        self._mirror = self.new_group()
        """Knows only what the log says."""
        self.aside: list[tuple[Callable[[], TargetAssignment], Callable[[TargetAssignment | None], None]]] = []
        """Targets that a thread is to make."""

    def new_group(self) -> ConsumerGroup:
        return ConsumerGroup(
            GROUP,
            image=self.image,
            resolver=Resolver(self.image, asyncio.run),
            in_background=self._run_aside,
            settings=lambda: self.settings,
            new_id=self.new_id,
            new_classic=self.new_classic,
        )

    def _run_aside(self, make: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.aside.append((make, done))

    def finish_aside(self) -> None:
        """The thread has made what it was to make."""
        for make, done in self.aside:
            done(make())
        self.aside.clear()

    def new_id(self) -> str:
        return str(next(self._ids))

    def new_classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, CLASSIC, wall_ms=lambda: self.now_ms, new_id=self.new_id)

    def carry_out(self, decision: Decision, *, is_unseen: bool = False) -> None:
        """Let a decision take effect; one of a group that nobody has seen yet may have changed it already."""
        if not is_unseen:
            self._check_memory()
        self.log += [CoordinatorRecord(*record) for record in decision.records]
        for key, value in decision.records:
            if key_kind(key) in CONSUMER.records:
                self._mirror.replay(key, value)
        decision.take_effect()
        self._check_memory()
        for name, at_ms in decision.timers:
            if at_ms is None:
                self.timers.pop(name, None)
            else:
                self.timers[name] = at_ms
        for token, values in decision.replies:
            assert token not in self.answers
            self.answers[token] = values

    def _check_memory(self) -> None:
        """The group is what its log says, before a decision is written and after."""
        if self.group.successor is None and not self._mirror.is_dead:
            mirror, state = self._mirror.state, self.group.state
            assert (mirror.epoch, mirror.target_epoch) == (state.epoch, state.target_epoch)
            assert mirror.members == state.members
            assert mirror.targets == state.targets

    def beat(self, member_id: str, epoch: int, **fields: Any) -> Mapping[str, Any]:
        """One heartbeat, answered."""
        token = object()
        request = HeartbeatRequest(token=token, member_id=member_id, member_epoch=epoch, **fields)
        self.carry_out(self.group.heartbeat(request, self.now_ms))
        return self.answers.pop(token)

    def join(self, member_id: str, *topics: str, **fields: Any) -> Mapping[str, Any]:
        """A first heartbeat."""
        names = frozenset(topics) if topics else None
        known = {"rebalance_timeout_ms": 60_000, "owned": {}, "subscribed_topic_names": names}
        return self.beat(member_id, 0, **{**known, **fields})

    def advance(self, ms: int) -> None:
        """Time goes by; timers expire in their order."""
        end = self.now_ms + ms
        while True:
            name, at_ms = min(self.timers.items(), key=lambda timer: timer[1], default=(None, end + 1))
            if at_ms > end:
                break
            del self.timers[name]
            self.now_ms = max(self.now_ms, at_ms)
            self.carry_out(self.group.on_timer(name, self.now_ms))
        self.now_ms = end

    def replayed(self, *, compacted: bool = False) -> ConsumerGroup:
        """A group read back from the log."""
        records = {record.key: record for record in self.log}
        group = self.new_group()
        for record in self.log:
            is_ours = key_kind(record.key) in CONSUMER.records
            if is_ours and (not compacted or records[record.key] is record):
                group.replay(*record)
        return group

    def restart(self, *, compacted: bool = False) -> None:
        self.group = self.replayed(compacted=compacted)
        self.timers.clear()
        self.carry_out(self.group.on_loaded(self.now_ms))


def owned(answer: Mapping[str, Any]) -> Owned | None:
    """What an answer gives a member; None where it says nothing of it."""
    assignment = answer["assignment"]
    if assignment is None:
        return None
    return {topic["topic_id"]: frozenset(topic["partitions"]) for topic in assignment["topic_partitions"]}


def code(answer: Mapping[str, Any]) -> ErrorCode:
    found: ErrorCode = answer["error_code"]
    return found
