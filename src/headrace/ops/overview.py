"""A cluster as those see it who run it: brokers, who holds and leads what, what is wrong, what is on its way."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.protocol.topic_partition import TopicPartition

from .moves import Racks, Replicas


class PartitionProblem(StrEnum):
    """What is wrong with a partition, the worst first."""

    OFFLINE = "offline"
    """Nobody leads it: it can be neither written nor read."""
    UNDER_MIN_ISR = "under min ISR"
    """Too few replicas are in sync for acks=all: it can only be read."""
    UNDER_REPLICATED = "under-replicated"
    """A replica is missing or behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """A broker; of one that is gone only the number is known, by what it still should hold."""

    id: int
    host: str = ""
    port: int = 0
    rack: str | None = None
    is_alive: bool = True
    version: str = ""
    """Of its software; empty where it was not asked or does not tell."""
    levels: tuple[int, int] | None = None
    """The feature levels that it speaks, from the lowest to the highest."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}" if self.is_alive else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition and who holds it."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: Replicas
    """Its preferred leader first; while it moves, also those who come and those who go."""
    isr: Replicas
    offline: Replicas = ()
    """Replicas on brokers that do not live."""
    elr: Replicas = ()
    """Those who may lead when nobody of the ISR can."""
    adding: Replicas = ()
    removing: Replicas = ()
    min_isr: int = 1

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> Replicas:
        """Who holds it once its move is over."""
        return tuple(r for r in self.replicas if r not in self.removing)

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def problem(self) -> PartitionProblem | None:
        if self.leader is None:
            return PartitionProblem.OFFLINE
        if len(self.isr) < min(self.min_isr, len(self.replicas) - len(self.adding)):
            return PartitionProblem.UNDER_MIN_ISR
        settled = set(self.replicas).difference(self.adding)
        return None if settled <= set(self.isr) else PartitionProblem.UNDER_REPLICATED

    @property
    def is_led_by_another(self) -> bool:
        """Whether the preferred replica could lead it and does not."""
        return self.leader is not None and self.leader != self.replicas[0] and self.replicas[0] in self.isr


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """All of it, at one time."""

    cluster_id: str
    controller: int | None
    brokers: tuple[BrokerView, ...]
    partitions: tuple[PartitionView, ...]
    level: int | None = None
    """Its feature level, where that was asked and told."""

    @property
    def versions(self) -> dict[str, list[int]]:
        """The brokers that live, by the version of their software."""
        found: dict[str, list[int]] = {}
        for broker in self.brokers:
            if broker.is_alive:
                found.setdefault(broker.version, []).append(broker.id)
        return found

    @property
    def racks(self) -> Racks:
        """The brokers that live, and where."""
        return {broker.id: broker.rack for broker in self.brokers if broker.is_alive}

    @property
    def layout(self) -> dict[TopicPartition, Replicas]:
        """Who holds what, or will once what moves has moved."""
        return {p.key: p.target for p in self.partitions}

    @property
    def moving(self) -> list[PartitionView]:
        return [p for p in self.partitions if p.is_moving]

    def with_problem(self, problem: PartitionProblem) -> list[PartitionView]:
        return [p for p in self.partitions if p.problem is problem]

    def led_by(self, broker: int) -> int:
        return sum(p.leader == broker for p in self.partitions)

    def held_by(self, broker: int) -> int:
        return sum(broker in p.replicas for p in self.partitions)

    def in_sync_on(self, broker: int) -> int:
        return sum(broker in p.isr for p in self.partitions)


def all_brokers(living: Iterable[BrokerView], partitions: Iterable[PartitionView]) -> tuple[BrokerView, ...]:
    """The living, and those who should hold something and are gone; by number."""
    known = {broker.id: broker for broker in living}
    for partition in partitions:
        for broker in partition.replicas:
            known.setdefault(broker, BrokerView(id=broker, is_alive=False))
    return tuple(known[broker] for broker in sorted(known))


Sizes = Mapping[int, Mapping[TopicPartition, int]]
"""Bytes of each partition on each broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProgress:
    """How far the moves of some partitions have come, in bytes."""

    done: int = 0
    total: int = 0
    left: tuple[PartitionView, ...] = field(default=())
    """What still moves."""

    @property
    def share(self) -> float:
        return 1.0 if not self.left else self.done / self.total if self.total else 0.0


def progress_of(partitions: Iterable[PartitionView], sizes: Sizes) -> MoveProgress:
    """How much of what those who come are to hold they hold already. A log that grows meanwhile moves the end."""
    done = total = 0
    left = []
    for partition in partitions:
        if partition.is_moving:
            left.append(partition)
            whole = sizes.get(partition.leader if partition.leader is not None else -1, {}).get(partition.key, 0)
            total += whole * len(partition.adding)
            done += sum(min(sizes.get(b, {}).get(partition.key, 0), whole) for b in partition.adding)
    return MoveProgress(done=done, total=total, left=tuple(left))
