"""What is wrong with a history, given what each partition holds in the end.

| violation | meaning |
|---|---|
| lost write | acknowledged, and not there |
| vanished | a consumer was given it, and it is not there |
| two values | an offset showed two different records |
| duplicate | an idempotent or transactional record stands twice |
| out of order | what one idempotent producer sent stands in another order |
| from nowhere | nobody sent it, or its producer was told that it was not written |
| gap | an offset between two others holds nothing |
| skipped | a consumer was led past a record that is there |
| went back | a consumer was told that a position does not exist at which it, or another, has been |
| not deleted | records are there whose deletion was acknowledged |
| aborted read | a reader of committed records was given one of a transaction that was aborted (G1a) |
| precommitted read | the same before the transaction was to be committed |
| torn | a transaction is there in part |
| lost commit | an acknowledged offset commit is forgotten |
| copied twice | two committed transactions have consumed the same record |
| accepted twice | two members of a share group were told that a record is done with by them |
| delivered again | a share group was given a record after it was accepted or rejected, or while another member had it |
| never done | a share group was not given a record, and has no dead letter of it |
| lost letter | a record was rejected, and has no dead letter |
| wrong letter | a dead letter of a record that was accepted, or was neither rejected nor delivered too often |

What a fault makes legal is said by the history itself, as narrowly as it is known: the loss of a partition's last
copy, an election after acks=1, the deletion of a topic or of records, retention and compaction.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from math import inf

from .facts import Facts, Partition, Place, Poll, Request, is_promised
from .history import Event
from .shares import share_violations

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
_LONGEST_READ_SECONDS = 5.0
"""What is copied was read at most that long before it is first sent."""


def violations(events: Iterable[Event]) -> list[str]:
    """All that is wrong, each beginning with its kind."""
    facts = Facts(events)
    found = list(facts.complaints)
    for partition in facts.partitions.values():
        wrong = list(_of_partition(facts, partition))
        name = f"{partition.place[0]}-{partition.place[1]}"
        found += [f"{problem} ({name})" for problem in wrong]
    transactions = _Transactions(facts)
    found += transactions.violations()
    found += _lost_commits(facts)
    found += share_violations(facts)
    return found


def _of_partition(facts: Facts, partition: Partition) -> Iterator[str]:
    yield from _two_values(facts, partition)
    yield from _went_back(partition)
    yield from _bad_polls(partition)
    if partition.final is None or partition.place[0] in facts.deleted:
        return
    ending = _Ending(partition, partition.final)
    yield from ending.lost(facts)
    yield from ending.vanished()
    yield from ending.duplicates()
    yield from ending.out_of_order()
    yield from ending.from_nowhere()
    yield from ending.gaps()
    yield from ending.skipped()
    yield from ending.not_deleted()


def _values(send: Request) -> list[str]:
    return list(send["values"])


def _at(send: Request) -> Iterator[tuple[int, str]]:
    """Offsets and values of what was acknowledged, where the offset was told."""
    base = send.answer.get("offset", -1)
    if base >= 0:
        yield from enumerate(_values(send), base)


def _two_values(facts: Facts, partition: Partition) -> Iterator[str]:
    seen: dict[tuple[int | None, int], set[str]] = defaultdict(set)
    for poll in partition.polls:
        generation = partition.generation(poll.since, poll.at)
        if generation is not None:
            for offset, value, _ in poll.records:
                seen[generation, offset].add(value)
    for send in partition.sends:
        generation = partition.generation(send.began, send.ended)
        if generation is not None and is_promised(facts, send, partition):
            for offset, value in _at(send):
                seen[generation, offset].add(value)
    if partition.final is not None and partition.place[0] not in facts.deleted:
        for offset, value, _ in partition.final["records"]:
            seen[len(partition.losses), offset].add(value)
    for (_, offset), values in seen.items():
        if len(values) > 1 and not _have_shared_an_epoch(facts, partition, values):
            yield f"two values: offset {offset} was {sorted(values)}"


def _have_shared_an_epoch(facts: Facts, partition: Partition, values: Collection[str]) -> bool:
    """Whether these may have been taken for each other: one transactional producer sent them, and meanwhile the log of
    transactions was lost, and with it that an epoch had been given out.
    """
    sends = [send for send in partition.sends if not set(values).isdisjoint(_values(send))]
    if any(send["transaction"] is None for send in sends) or len({send["client"] for send in sends}) != 1:
        return False
    return facts.was_lost(TRANSACTIONS_TOPIC, min(send.began for send in sends), max(send.ended for send in sends))


def _bad_polls(partition: Partition) -> Iterator[str]:
    for poll in partition.polls:
        offsets = [offset for offset, _, _ in poll.records]
        if offsets != sorted(set(offsets)) or any(offset < poll.start for offset in offsets):
            yield f"went back: {poll.client} at {poll.start} was given offsets {offsets}"


def _went_back(partition: Partition) -> Iterator[str]:
    for reset in partition.resets:
        start, at = reset["start"], reset["at"]
        generation = partition.generation(at, at)
        reached = [
            poll
            for poll in partition.polls
            if poll.next >= start and poll.at <= reset["since"] and partition.generation(poll.since, at) == generation
        ]
        if reached and start >= reset["log_start"]:
            yield (
                f"went back: {reset['client']} was told {reset['error']} at {start} (the log begins at "
                f"{reset['log_start']}), which {reached[-1].client} had reached"
            )


class _Ending:
    """A partition in the end, held against all that was said of it."""

    def __init__(self, partition: Partition, final: Event) -> None:
        self._partition = partition
        self._final = final
        self._records: dict[int, str] = {offset: value for offset, value, _ in final["records"]}
        self._offsets: dict[str, int] = {}
        for offset, value, _ in final["records"]:
            self._offsets.setdefault(value, offset)
        self._last_of_key = {key: offset for offset, _, key in sorted(final["records"]) if key is not None}
        asked = [request["before"] for request in partition.deletions if not request.is_refused]
        self._deleted_below = max(asked, default=0)

    def _may_be_gone(self, offset: int, key: str | None) -> bool:
        """Whether what stood at an offset was deleted, outlived its retention, or was compacted away."""
        final = self._final
        if offset < final["log_start"]:
            return bool(final["retained"]) or offset < self._deleted_below
        return bool(final["compacted"]) and key is not None and self._last_of_key.get(key, -1) > offset

    def lost(self, facts: Facts) -> Iterator[str]:
        partition = self._partition
        for send in partition.sends:
            if send["transaction"] is not None or not partition.is_current(send.began):
                continue
            if is_promised(facts, send, partition):
                yield from self._lost(send)

    def _lost(self, send: Request) -> Iterator[str]:
        values = _values(send)
        keys: list[str | None] = send["keys"] or [None] * len(values)
        base = send.answer.get("offset", -1)
        for index, (value, key) in enumerate(zip(values, keys, strict=True)):
            offset = base + index if base >= 0 else self._offsets.get(value, -1)
            there = self._records.get(offset)
            if there == value:
                continue
            if base < 0 and (self._final["log_start"] or self._final["compacted"]):
                continue  # it may have stood where records were deleted
            if base >= 0 and there is None and self._may_be_gone(offset, key):
                continue
            where = f"at {offset}" if base >= 0 else "somewhere"
            told = f"{value!r} of {send['client']} was acknowledged {where} (acks={send['acks']})"
            yield f"lost write: {told}, there is {there!r}"

    def vanished(self) -> Iterator[str]:
        seen: dict[int, tuple[str, str | None]] = {}
        for poll in self._partition.polls:
            if self._partition.is_current(poll.since):
                seen |= {offset: (value, key) for offset, value, key in poll.records}
        for offset, (value, key) in seen.items():
            if offset not in self._records and not self._may_be_gone(offset, key):
                yield f"vanished: a consumer was given {value!r} at {offset}, where nothing is"

    def duplicates(self) -> Iterator[str]:
        counts = Counter(self._records.values())
        for send in self._partition.sends:
            if send["stream"] is None and send["transaction"] is None:
                continue
            for value in _values(send):
                if counts[value] > 1:
                    yield f"duplicate: {value!r} stands {counts[value]} times"

    def out_of_order(self) -> Iterator[str]:
        """What one idempotent producer sent stands in the order of sending; what is not there does not count."""
        last: dict[str, tuple[int, str]] = {}
        for send in self._partition.sends:
            stream = send["stream"]
            for value in _values(send) if stream is not None else ():
                offset = self._offsets.get(value, -1)
                if offset < 0:
                    continue
                before = last.get(stream, (-1, ""))
                if before[0] > offset:
                    yield f"out of order: {value!r} at {offset} was sent after {before[1]!r} at {before[0]}"
                last[stream] = (offset, value)

    def from_nowhere(self) -> Iterator[str]:
        refused = {value: send.is_refused for send in self._partition.sends for value in _values(send)}
        for offset, value in self._records.items():
            if value not in refused:
                yield f"from nowhere: {value!r} at {offset} was never sent"
            elif refused[value]:
                yield f"from nowhere: {value!r} at {offset} was refused"

    def gaps(self) -> Iterator[str]:
        if self._final["compacted"]:
            return
        held = {*self._records, *self._final["control"]}
        missing = sorted(set(range(self._final["log_start"], self._final["next"])) - held)
        if missing:
            yield f"gap: nothing at {missing[:10]}"

    def skipped(self) -> Iterator[str]:
        committed = self._final["committed"]
        for poll in self._partition.polls:
            if self._partition.is_current(poll.since):
                visible = self._records if committed is None or not poll.committed_only else committed
                yield from self._skipped(poll, visible)

    def _skipped(self, poll: Poll, visible: Iterable[int]) -> Iterator[str]:
        given = {offset for offset, _, _ in poll.records}
        missed = sorted(o for o in visible if poll.start <= o < poll.next and o not in given)
        if missed:
            yield f"skipped: {poll.client} went from {poll.start} to {poll.next} without {missed[:10]}"

    def not_deleted(self) -> Iterator[str]:
        for request in self._partition.deletions:
            if request.is_ok and self._partition.is_current(request.began) and not request.answer.get("short"):
                before = request.answer["low_watermark"]
                if self._final["log_start"] < before:
                    yield f"not deleted: the log begins at {self._final['log_start']}, not at {before}"


class _Transactions:
    """Transactions, as readers of committed records saw them."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._lost_at = facts.lost_at(TRANSACTIONS_TOPIC)
        self._of: dict[str, tuple[str, float]] = {
            value: (name, send.began)
            for name, sends in facts.transactions.items()
            for send in sends
            for value in _values(send)
        }
        """By value: its transaction, and when it was sent."""
        self._visible: dict[str, bool] = {}
        """Of those values whose partitions tell: whether they are committed in the end."""
        for partition in facts.partitions.values():
            self._look(partition)

    def _look(self, partition: Partition) -> None:
        final = partition.final
        if final is None or final["committed"] is None or partition.place[0] in self._facts.deleted:
            return
        values = {offset: value for offset, value, _ in final["records"]}
        committed = {values[offset] for offset in final["committed"]}
        for send in partition.sends:
            if send["transaction"] is None or not partition.is_current(send.began):
                continue
            base = send.answer.get("offset", -1)
            if base < final["log_start"] and final["log_start"] > 0:
                continue  # it may have been deleted
            for offset, value in enumerate(_values(send), base):
                if value in committed or base < 0 or not self._is_taken_for(partition, value, values.get(offset)):
                    self._visible[value] = value in committed

    def _is_taken_for(self, partition: Partition, value: str, there: str | None) -> bool:
        """Whether a value was acknowledged as one that an earlier owner of its epoch had sent."""
        return there not in (None, value) and _have_shared_an_epoch(self._facts, partition, {value, str(there)})

    def violations(self) -> list[str]:
        found: list[str] = []
        for name, sends in self._facts.transactions.items():
            if min(send.began for send in sends) >= self._lost_at:
                found += self._of_transaction(name, sends)
        found += self._bad_reads()
        found += self._copied_twice()
        return found

    def _outcome(self, name: str) -> bool | None:
        """Whether a transaction was committed, by what its producer was told; None where it was not."""
        end = self._facts.ends.get(name)
        if end is None or end.is_refused:
            return False
        if not end["commit"]:
            return False
        return True if end.is_ok else None

    def _of_transaction(self, name: str, sends: list[Request]) -> Iterator[str]:
        seen = {
            v: self._visible[v] for send in sends if not send.is_refused for v in _values(send) if v in self._visible
        }
        outcome = self._outcome(name)
        there = sorted(value for value, is_there in seen.items() if is_there)
        missing = sorted(value for value, is_there in seen.items() if not is_there)
        if outcome is False and there:
            yield f"aborted read: {name} was not committed, and {there[:5]} are there"
        elif outcome and missing:
            yield f"lost write: {name} was committed, and {missing[:5]} are not there"
        elif there and missing:
            yield f"torn: of {name} {there[:5]} are there, {missing[:5]} are not"

    def _bad_reads(self) -> Iterator[str]:
        for partition in self._facts.partitions.values():
            for poll in partition.polls:
                if poll.committed_only and poll.since >= self._lost_at:
                    yield from self._bad_read(partition, poll)

    def _bad_read(self, partition: Partition, poll: Poll) -> Iterator[str]:
        for offset, value, _ in poll.records:
            name, sent_at = self._of.get(value, (None, -inf))
            if name is None or sent_at < self._lost_at or partition.generation(sent_at, poll.at) is None:
                continue  # what was lost meanwhile may have been its abort marker, or that it was to get one
            end = self._facts.ends.get(name)
            if self._outcome(name) is False:
                yield f"aborted read: {poll.client} was given {value!r} at {offset}, of {name}"
            elif end is not None and end.began > poll.at:
                yield f"precommitted read: {poll.client} was given {value!r} at {offset}, of {name}"

    def _copied_twice(self) -> Iterator[str]:
        """No record is consumed by two transactions that were committed."""
        lost_at = max(self._lost_at, self._facts.lost_at(OFFSETS_TOPIC))
        taken: dict[tuple[str, str, int, int], str] = {}
        for name, end in self._facts.ends.items():
            if not self._is_committed(name) or end.began < lost_at:
                continue
            for topic, partition, start, after in end["consumed"]:
                if not self._is_still_there((topic, partition), name, end):
                    continue
                for offset in range(start, after):
                    other = taken.setdefault((end["group"], topic, partition, offset), name)
                    if other != name:
                        yield f"copied twice: {topic}-{partition} at {offset} by {other} and {name}"

    def _is_still_there(self, place: Place, name: str, end: Request) -> bool:
        """Whether what a transaction has consumed was not lost since, so that others now have its offsets."""
        source = self._facts.partitions.get(place)
        sends = self._facts.transactions.get(name, ())
        began = min((send.began for send in sends), default=end.began)
        return source is None or source.is_current(began - _LONGEST_READ_SECONDS)

    def _is_committed(self, name: str) -> bool:
        outcome = self._outcome(name)
        if outcome is not None:
            return outcome
        sends = self._facts.transactions.get(name, ())
        return any(self._visible.get(value, False) for send in sends for value in _values(send))


def _lost_commits(facts: Facts) -> Iterator[str]:
    """What a group has committed last is what it is told, or what it has tried to commit and knows nothing of."""
    lost_at = facts.lost_at(OFFSETS_TOPIC)
    for event in facts.committed:
        commits = facts.commits.get((event["group"], event["topic"], event["partition"]), [])
        known = [c for c in commits if c.is_ok and c.ended <= event["since"]]
        if event["topic"] in facts.deleted or not known or known[-1].began < lost_at:
            continue
        last = known[-1]
        possible = {last["offset"]}
        possible |= {c["offset"] for c in commits if c.began <= event["at"] and c.phase == "info"}
        possible |= {c["offset"] for c in commits if c.is_ok and c.began <= event["at"] and c.ended > event["since"]}
        if event["offset"] not in possible:
            yield (
                f"lost commit: group {event['group']} has committed {last['offset']} of {event['topic']}-"
                f"{event['partition']} and was told {event['offset']}"
            )
