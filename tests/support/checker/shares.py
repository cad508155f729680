"""What is wrong with what a share group was given, and with what became of it.

A record that was accepted, as its member was told, is done with: nobody else is told so, and nobody is given it from
then on. A record that a member has is nobody else's before its lock has expired, unless the member has said what
becomes of it, or is gone. A leader that has heard late that it is none any more may give out what its successor does,
too; but what it then accepts is not committed. Where an operator has the group begin anew, nothing of before counts,
and all from there on is to be done with again. At last every record is accepted, or has a dead letter, as every one
that was rejected has.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import NamedTuple

from .facts import Facts, Partition, Request, SharePlace
from .history import Event

STATE_TOPIC = "__share_group_state"
OFFSETS_TOPIC = "__consumer_offsets"
_SLACK = 0.001
"""Times of a history are rounded."""


class _Delivery(NamedTuple):
    member: str
    since: float
    at: float
    until: float
    """Before which its lock cannot expire."""


def share_violations(facts: Facts) -> list[str]:
    """All that is wrong, each beginning with its kind."""
    found: list[str] = []
    for place in sorted({*facts.acquired, *facts.acknowledged, *facts.letters, *_drained(facts)}):
        name = f"{place[0]}: {place[1]}-{place[2]}"
        found += [f"{problem} ({name})" for problem in _SharePartition(facts, place).violations()]
    return found


def _drained(facts: Facts) -> Iterator[SharePlace]:
    """The partitions that a group is done with in the end."""
    topics = {(group, topic) for group, topic, _ in facts.acquired}
    for group, topic in topics:
        if group in facts.drained:
            yield from ((group, topic, index) for name, index in facts.partitions if name == topic)


class _SharePartition:
    def __init__(self, facts: Facts, place: SharePlace) -> None:
        self._facts = facts
        self._group = place[0]
        self._partition = facts.partitions.get(place[1:], Partition(place[1:]))
        self._letters: dict[int, list[Event]] = defaultdict(list)
        for letter in facts.letters.get(place, ()):
            self._letters[letter["offset"]].append(letter)
        self._deliveries: dict[int, list[_Delivery]] = defaultdict(list)
        for event in facts.acquired.get(place, ()):
            for first, last in event["ranges"]:
                for offset in range(first, last + 1):
                    until = event["since"] + event["lock"]
                    self._deliveries[offset].append(_Delivery(event["member"], event["since"], event["at"], until))
        self._said: dict[int, list[Request]] = defaultdict(list)
        self._rewinds = facts.rewinds.get(place, [])
        for request in facts.acknowledged.get(place, ()):
            for offset in request["offsets"]:
                self._said[offset].append(request)

    def violations(self) -> Iterator[str]:
        if self._is_lost():
            return
        for offset in sorted({*self._deliveries, *self._said}):
            yield from self._of_record(offset)
        if self._group in self._facts.drained and self._partition.final is not None:
            yield from self._ending(self._partition.final)

    def _is_lost(self) -> bool:
        """Whether what the group has done, the records themselves or its dead letters were lost at any time."""
        letters = self._facts.drained.get(self._group, "")
        return bool(self._partition.losses) or any(
            self._facts.lost_at(topic) > -inf for topic in (STATE_TOPIC, OFFSETS_TOPIC, letters)
        )

    # One record

    def _of_record(self, offset: int) -> Iterator[str]:
        accepts = [each for each in self._told(offset) if each["kind"] == "accept"]
        accepts.sort(key=lambda each: each.began)
        if any(not self._was_begun_anew(a.began, b.ended) for a, b in pairwise(accepts)):
            members = [each["member"][:8] for each in accepts]
            yield f"accepted twice: offset {offset} by {members}, answered at {[each.ended for each in accepts]}"
        done = [each for each in self._said[offset] if each["kind"] in ("accept", "reject") and each.is_ok]
        deliveries = sorted(self._deliveries[offset], key=lambda each: each.at)
        for index, each in enumerate(deliveries):
            done_at = min((d.ended for d in done if not self._was_begun_anew(d.began, each.at)), default=inf)
            if each.since > done_at + _SLACK and not self._was_led_anew(each.since, each.at):
                yield f"delivered again: offset {offset} at {each.at}, done with since {done_at}"
            for before in deliveries[:index]:
                if each.at < self._held_until(before, offset, each.at) - _SLACK:
                    yield (
                        f"delivered again: offset {offset} to {each.member[:8]} at {each.at}, while "
                        f"{before.member[:8]} had it since {before.since}"
                    )

    def _told(self, offset: int) -> list[Request]:
        """What was said of a record by a member that certainly had it, and was told that it holds.

        Who is too late is told so, too, once the group is past the record: it has nothing to do with it any more.
        """
        found: dict[_Delivery, Request] = {}
        for each in self._said[offset]:
            had = [d for d in self._deliveries[offset] if d.member == each["member"] and d.at <= each.began + _SLACK]
            if not (each.is_ok and had) or each["kind"] == "renew":
                continue
            delivery = max(had, key=lambda d: d.at)
            if self._was_led_anew(delivery.since, each.ended) or self._was_begun_anew(delivery.since, each.ended):
                continue  # the next leader may have given it to others, who were done with it
            if each.ended <= self._until(delivery, offset, each.ended):
                found.setdefault(delivery, each)
        return list(found.values())

    def _until(self, delivery: _Delivery, offset: int, at: float) -> float:
        """Before which a lock cannot have expired, with what was said of it until then."""
        until = delivery.until
        for each in self._said[offset]:
            is_renewed = each["kind"] == "renew" and each.is_ok and each["member"] == delivery.member
            if is_renewed and delivery.at - _SLACK <= each.began <= at:
                until = max(until, each.began + delivery.until - delivery.since)
        return until

    def _held_until(self, before: _Delivery, offset: int, at: float) -> float:
        """Until when a record was certainly its member's, as far as that was before another time."""
        if self._was_led_anew(before.since, at) or self._was_begun_anew(before.since, at):
            return -inf
        left = [since for since in self._facts.left.get(before.member, ()) if since >= before.since - _SLACK]
        said = [
            each
            for each in self._said[offset]
            if each["member"] == before.member and each.began >= before.at - _SLACK and each.began <= at
        ]
        ended = [each.began for each in said if each["kind"] != "renew" and not each.is_refused]
        return min([self._until(before, offset, at), *ended, *left])

    def _was_led_anew(self, since: float, until: float) -> bool:
        """Whether another leader may have served meanwhile."""
        first = since - self._facts.stale_seconds - _SLACK
        return any(first <= at <= until + _SLACK for at in self._partition.elections)

    def _was_begun_anew(self, since: float, until: float) -> bool:
        """Whether the group may have begun anew meanwhile, as far as leaders have heard, who may hear of it late."""
        heard = since - self._facts.stale_seconds - _SLACK
        return any(each.began <= until + _SLACK and (not each.is_ok or each.ended >= heard) for each in self._rewinds)

    # The end

    def _ending(self, final: Event) -> Iterator[str]:
        committed = None if final["committed"] is None else set(final["committed"])
        values = {offset: value for offset, value, _ in final["records"]}
        for offset, value in values.items():
            if offset < final["log_start"] or (committed is not None and offset not in committed):
                continue
            anew = max((each.began for each in self._rewinds if each.is_ok and each["offset"] <= offset), default=-inf)
            said = [each for each in self._said[offset] if not each.is_refused and each.ended >= anew]
            kinds = {each["kind"] for each in said}
            letters = self._letters.get(offset, [])
            if "accept" not in kinds and not letters:
                times = [each.at for each in self._deliveries[offset]]
                yield f"never done: offset {offset}, delivered at {times}, said {sorted(kinds)}"
            yield from self._bad_letters(offset, value, letters)

    def _bad_letters(self, offset: int, value: str, letters: list[Event]) -> Iterator[str]:
        oks = {each["kind"] for each in self._told(offset) if not self._was_begun_anew(each.began, inf)}
        if "reject" in oks and not letters:
            yield f"lost letter: offset {offset} was rejected"
        if not letters:
            return
        if "accept" in oks and not self._rewinds:
            yield f"wrong letter: offset {offset} was accepted"
        if any(letter["value"] != value for letter in letters):
            yield f"wrong letter: of offset {offset} it has {letters[0]['value']!r}, there is {value!r}"
