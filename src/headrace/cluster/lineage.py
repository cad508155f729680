"""Whether the metadata store is older than what was seen of it: set back, or put back from an old copy.

Each broker leaves a mark in the store, a number that grows and something random, renews it every minute and with each
registration, and remembers it in its data directory. A store that holds an older mark of it than it remembers was set
back; a store that holds a newer one has seen this broker do more than its directory knows: that one was set back.

After the store was set back nothing it says of partitions can be relied on. Who finds that out says so with its
registration; the controller then lets nobody lead before all replicas of a partition have told how far their logs
reach, and adds an id to the store's lineage. By that one who says so later is known to say nothing new.
"""

import json
from enum import Enum
from random import Random
from typing import Final, NamedTuple, Protocol

from .store import Create, MetadataStore, Operation, Put, StoreError

LINEAGE: Final = "/cluster/lineage"
MARKS: Final = "/brokers/marks"
MARK_SECONDS: Final = 60.0
MOST_KEPT: Final = 100


class Mark(NamedTuple):
    """What a broker leaves in the store."""

    number: int
    token: str

    def encode(self) -> str:
        return f"{self.number} {self.token}"

    @classmethod
    def decode(cls, text: str) -> "Mark":
        """The mark as it was encoded; `StoreError` when it is none."""
        number, _, token = text.partition(" ")
        if not number.isdecimal():
            raise StoreError(f"{text!r} in the metadata store is not the mark of a broker")
        return cls(int(number), token)


class LineageVerdict(Enum):
    """How the store and a broker's data directory compare."""

    TOGETHER = "together"
    STORE_SET_BACK = "store set back"
    DIRECTORY_SET_BACK = "directory set back"


class StoreMemory(Protocol):
    """What a broker remembers of the store, in its data directory. Every call is durable when it returns."""

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Those that the store may hold: the last one that it is known to hold, then one that was on its way."""
        ...

    @property
    def lineage(self) -> str:
        """The latest id of the store's lineage that this broker has heard of."""
        ...

    def expect_mark(self, mark: Mark) -> None: ...
    def settle_mark(self) -> None:
        """The store is known to hold the one expected last."""
        ...

    def note_lineage(self, lineage: str) -> None: ...
    def note_verdict(self, verdict: LineageVerdict) -> None:
        """To be told with this registration and the next, until the cluster has taken account of it."""
        ...


def mark_key(broker: int) -> str:
    return f"{MARKS}/{broker}"


def compare(stored: Mark | None, remembered: tuple[Mark, ...]) -> LineageVerdict:
    """How a broker's memory compares with the mark in the store."""
    if not remembered or stored in remembered:
        return LineageVerdict.TOGETHER
    if stored is not None and stored.number > remembered[-1].number:
        return LineageVerdict.DIRECTORY_SET_BACK
    return LineageVerdict.STORE_SET_BACK


class Marking(NamedTuple):
    """A look at the mark in the store: what to make of it, and the operation that renews it."""

    verdict: LineageVerdict
    renewal: Operation


async def look(store: MetadataStore, broker: int, memory: StoreMemory, rng: Random) -> Marking:
    """Compare, and prepare a new mark: the memory expects it from now on."""
    entry = await store.get(mark_key(broker))
    stored = None if entry is None else Mark.decode(entry.value.decode())
    verdict = compare(stored, memory.marks)
    number = max(mark.number for mark in (Mark(0, ""), *memory.marks, *([stored] if stored else [])))
    mark = Mark(number + 1, f"{rng.getrandbits(64):016x}")
    value = mark.encode().encode()
    key = mark_key(broker)
    memory.expect_mark(mark)
    return Marking(verdict, Create(key, value) if entry is None else Put(key, value, entry.version))


class Lineage(NamedTuple):
    """The ids of a store's lineage, the latest last, and the version of their key (None before it is made)."""

    ids: tuple[str, ...] = ("",)
    version: int | None = None

    @property
    def latest(self) -> str:
        return self.ids[-1]

    @property
    def was_set_back(self) -> bool:
        """Whether the store ever was, as far as it knows itself."""
        return self.version is not None

    def is_news(self, known: str) -> bool:
        """Whether somebody who has heard of the lineage as far as `known` tells something new of a set-back.

        It does not where the lineage goes on after that: a later id was added when others had told.
        """
        return known not in self.ids or known == self.latest

    def extension(self, rng: Random) -> tuple[Operation, "Lineage"]:
        """What adds an id, and the lineage with it."""
        after = self.extended(rng)
        if self.version is None:
            return Create(LINEAGE, after.encode()), after._replace(version=0)
        return Put(LINEAGE, after.encode(), self.version), after._replace(version=self.version + 1)

    def extended(self, rng: Random) -> "Lineage":
        """It with one more id, and the oldest dropped where there are very many."""
        return self._replace(ids=(*self.ids, f"{rng.getrandbits(64):016x}")[-MOST_KEPT:])

    def encode(self) -> bytes:
        return json.dumps(self.ids).encode()


async def load_lineage(store: MetadataStore) -> Lineage:
    """The store's lineage; that of a store that was never set back has the one id "" and no key."""
    stored = await store.get(LINEAGE)
    return Lineage() if stored is None else Lineage(tuple(json.loads(stored.value)), stored.version)
