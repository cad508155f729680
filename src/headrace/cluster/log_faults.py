"""Faulty logs that brokers report to the controller, and the partitions that they are offline for."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from .image import PartitionState

LogKey: TypeAlias = tuple[UUID, int]
"""A partition by the id of its topic and its index."""
_NOBODY: Final = frozenset[int]()


class FaultKind(Enum):
    """Why a broker cannot serve a log."""

    LOST = "lost"
    """What it held is gone. It is fetched again; until then nobody may count on it."""
    FULL = "full"
    """It can be read, and takes nothing before there is space on the disk."""
    FAILED = "failed"
    """It can be neither written nor read."""


class FaultyLog(NamedTuple):
    """A log of the broker that reports it. Its values are what JSON can hold."""

    topic: str
    topic_id: str
    """In hexadecimal."""
    partition: int
    fault: str


class LogFaults:
    """What all brokers have reported to this controller. A report replaces what its broker had reported before."""

    def __init__(self) -> None:
        self._by_broker: dict[int, dict[LogKey, FaultKind]] = {}
        self._by_log: dict[LogKey, dict[int, FaultKind]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_log)

    def of(self, broker: int) -> Mapping[LogKey, FaultKind]:
        """What a broker has reported."""
        return self._by_broker.get(broker, {})

    def replace(self, broker: int, faults: Mapping[LogKey, FaultKind]) -> None:
        """Take a broker's report: the logs that are not in it any more are well again."""
        for key in self._by_broker.pop(broker, {}):
            self._by_log[key].pop(broker, None)
            if not self._by_log[key]:
                del self._by_log[key]
        if faults:
            self._by_broker[broker] = dict(faults)
        for key, fault in faults.items():
            self._by_log.setdefault(key, {})[broker] = fault

    def forget(self, brokers: Iterable[int]) -> None:
        """Forget the reports of brokers that are gone, or registered again."""
        for broker in brokers:
            self.replace(broker, {})

    def offline(self, key: LogKey, state: PartitionState, alive: AbstractSet[int]) -> frozenset[int]:
        """The live brokers that cannot serve a partition: for it they count as dead.

        One whose disk is full can still be read: it is dead only where another member of the ISR has space.
        """
        faults = self._by_log.get(key)
        if faults is None:
            return _NOBODY
        has_spare = any(r in alive and r not in faults for r in state.isr)
        return frozenset(r for r, fault in faults.items() if has_spare or fault is not FaultKind.FULL)
