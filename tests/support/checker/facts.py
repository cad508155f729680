"""A history's events, put together: requests with their answers, by partition, by transaction, by group."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from .history import ACKS_ALL, Event

Place = tuple[str, int]
"""Topic and partition."""
SharePlace = tuple[str, str, int]
"""Group, topic and partition."""


@dataclass(slots=True, kw_only=True)
class Request:
    """Something that was asked for, and what came of it."""

    began: float
    ended: float = inf
    phase: str = "info"
    """ok, fail or info: also of what was never answered."""
    asked: Event
    answer: Event = field(default_factory=dict)

    @property
    def is_ok(self) -> bool:
        return self.phase == "ok"

    @property
    def is_refused(self) -> bool:
        return self.phase == "fail"

    def __getitem__(self, name: str) -> Any:
        return self.asked[name]


@dataclass(slots=True, kw_only=True)
class Poll:
    """What a consumer was given between two times."""

    client: str
    committed_only: bool
    since: float
    at: float
    start: int
    next: int
    records: list[tuple[int, str, str | None]]


@dataclass(slots=True)
class Partition:
    """All that is known of one partition."""

    place: Place
    sends: list[Request] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    resets: list[Event] = field(default_factory=list)
    """Consumers that were told that their position does not exist."""
    deletions: list[Request] = field(default_factory=list)
    elections: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """When every copy that counts was destroyed: what was there before need not be there after."""
    final: Event | None = None

    @property
    def lost_at(self) -> float:
        return self.losses[-1] if self.losses else -inf

    def generation(self, since: float, until: float) -> int | None:
        """Between which losses something happened; None where a loss came meanwhile."""
        first, last = bisect_right(self.losses, since), bisect_right(self.losses, until)
        return first if first == last else None

    def is_current(self, since: float) -> bool:
        """Whether what happened then must be there in the end."""
        return since >= self.lost_at

    def was_led_anew(self, since: float) -> bool:
        return any(at >= since for at in self.elections)


class Facts:
    """Everything in a history."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.partitions: dict[Place, Partition] = {}
        self.transactions: dict[str, list[Request]] = defaultdict(list)
        """Sends by transaction."""
        self.ends: dict[str, Request] = {}
        """How a transaction was to end."""
        self.commits: dict[tuple[str, str, int], list[Request]] = defaultdict(list)
        """By group, topic and partition."""
        self.committed: list[Event] = []
        self.acquired: dict[SharePlace, list[Event]] = defaultdict(list)
        """What members of share groups were given."""
        self.acknowledged: dict[SharePlace, list[Request]] = defaultdict(list)
        self.rewinds: dict[SharePlace, list[Request]] = defaultdict(list)
        """Where share groups were to begin anew."""
        self.left: dict[str, list[float]] = defaultdict(list)
        """Of members of share groups: since when brokers may have taken them for gone."""
        self.letters: dict[SharePlace, list[Event]] = defaultdict(list)
        """Dead letters that are there in the end."""
        self.drained: dict[str, str] = {}
        """Share groups that were done with everything in the end, and the topics of their dead letters."""
        self.deleted: set[str] = set()
        """Topics whose deletion was asked for."""
        self.complaints: list[str] = []
        self.knows_elections = False
        self.stale_seconds = 0.0
        """For how long a leader may not have heard that it is none any more."""
        self._requests: dict[int, Request] = {}
        for event in events:
            getattr(self, f"_take_{event['op']}")(event)

    def partition(self, event: Event) -> Partition:
        place = (event["topic"], event["partition"])
        found = self.partitions.get(place)
        if found is None:
            found = self.partitions[place] = Partition(place)
        return found

    def lost_at(self, topic: str) -> float:
        """When a partition of a topic last lost what it held."""
        return max((p.lost_at for place, p in self.partitions.items() if place[0] == topic), default=-inf)

    def was_lost(self, topic: str, since: float, until: float) -> bool:
        """Whether a partition of a topic lost what it held between two times."""
        return any(
            since <= loss <= until for place, p in self.partitions.items() if place[0] == topic for loss in p.losses
        )

    def _request(self, event: Event) -> Request | None:
        """A new request; None for the answer to one."""
        if event["phase"] == "invoke":
            request = self._requests[event["id"]] = Request(began=event["at"], asked=event)
            return request
        asked = self._requests[event["id"]]
        asked.phase, asked.ended, asked.answer = event["phase"], event["at"], event
        return None

    def _take_send(self, event: Event) -> None:
        request = self._request(event)
        if request is not None:
            self.partition(event).sends.append(request)
            if event["transaction"] is not None:
                self.transactions[event["transaction"]].append(request)

    def _take_poll(self, event: Event) -> None:
        if event["phase"] == "fail":
            self.partition(event).resets.append(event)
            return
        self.partition(event).polls.append(
            Poll(
                client=event["client"],
                committed_only=event["isolation"] == "read_committed",
                since=event["since"],
                at=event["at"],
                start=event["start"],
                next=event["next"],
                records=[(offset, value, key) for offset, value, key in event["records"]],
            )
        )

    def _take_end(self, event: Event) -> None:
        request = self._request(event)
        if request is not None:
            self.ends[event["transaction"]] = request

    def _take_commit(self, event: Event) -> None:
        request = self._request(event)
        if request is not None:
            self.commits[event["group"], event["topic"], event["partition"]].append(request)

    def _take_acquired(self, event: Event) -> None:
        self.acquired[_share_place(event)].append(event)

    def _take_acknowledge(self, event: Event) -> None:
        request = self._request(event)
        if request is not None:
            self.acknowledged[_share_place(event)].append(request)

    def _take_rewind(self, event: Event) -> None:
        request = self._request(event)
        if request is not None:
            self.rewinds[_share_place(event)].append(request)

    def _take_left(self, event: Event) -> None:
        self.left[event["member"]].append(event["since"])

    def _take_letter(self, event: Event) -> None:
        self.letters[_share_place(event)].append(event)

    def _take_drained(self, event: Event) -> None:
        self.drained[event["group"]] = event["letters"]

    def _take_committed(self, event: Event) -> None:
        self.committed.append(event)

    def _take_delete_records(self, event: Event) -> None:
        request = self._request(event)
        if request is not None:
            self.partition(event).deletions.append(request)

    def _take_delete_topic(self, event: Event) -> None:
        if self._request(event) is not None:
            self.deleted.add(event["topic"])

    def _take_terms(self, event: Event) -> None:
        self.stale_seconds = event["stale_seconds"]

    def _take_leader(self, event: Event) -> None:
        self.knows_elections = True
        if event["epoch"] > 0:
            self.partition(event).elections.append(event["at"])

    def _take_loss(self, event: Event) -> None:
        self.partition(event).losses.append(event["at"])

    def _take_final(self, event: Event) -> None:
        self.partition(event).final = event

    def _take_complaint(self, event: Event) -> None:
        self.complaints.append(event["text"])


def _share_place(event: Event) -> SharePlace:
    return event["group"], event["topic"], event["partition"]


def is_promised(facts: "Facts", send: Request, partition: Partition) -> bool:
    """Whether a send was acknowledged in a way that holds.

    With acks=1 only as long as the same leader leads; and a leader may hear a little late that it is none any more.
    """
    if not send.is_ok or send["acks"] == 0:
        return False
    if send["acks"] == ACKS_ALL:
        return True
    return facts.knows_elections and not partition.was_led_anew(send.began - facts.stale_seconds)
