"""What must hold in the logs of a group's members, whatever happened to them.

A member owns a partition from the time it was told so until it gave it up, began to close, or was killed. All
members stamp their lines with the one monotonic clock of the machine, so their times can be compared.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .member import MemberLog, Place

_NS = 1_000_000_000
_FEW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """A member owned a partition from `start` until `end`; None while it still does."""

    member: str
    start: int
    end: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a partition may be without an owner, and how late a member may stamp its lines."""

    gap_seconds: float
    stamp_seconds: float = 0.0


def check(logs: Sequence[MemberLog], produced: Iterable[str], until: int, limits: Limits) -> None:
    """Raise AssertionError unless every value was processed, partitions had one owner at a time, and never none for
    longer than the limit between their first owner and `until`."""
    slack = int(limits.stamp_seconds * _NS)
    check_processed(logs, produced)
    for log in logs:
        _check_records(log, slack)
    for place, spans in sorted(_by_place(logs).items()):
        _check_one_owner(place, spans, slack)
        _check_gaps(place, spans, until, limits.gap_seconds)


def check_processed(logs: Sequence[MemberLog], produced: Iterable[str]) -> None:
    """Raise AssertionError unless each value is in the log of some member."""
    missing = sorted(set(produced).difference(*(log.values() for log in logs)))
    assert not missing, f"{len(missing)} records were never processed: {', '.join(missing[:_FEW])}, ..."


def ownerships(log: MemberLog) -> Iterator[tuple[Place, Ownership]]:
    """Every time the member owned a partition."""
    began: dict[Place, int] = {}
    end = log.ended
    for event in log.events:
        if event.kind == "closing":
            # Some clients go on with a rebalance while they close; the member polls no more.
            end = event.at
            break
        if event.kind == "assigned":
            for place in event.places:
                began.setdefault(place, event.at)
        elif event.kind in ("revoked", "lost"):
            for place in event.places:
                if place in began:
                    yield place, Ownership(member=log.name, start=began.pop(place), end=event.at)
    for place, start in began.items():
        yield place, Ownership(member=log.name, start=start, end=end)


def _by_place(logs: Sequence[MemberLog]) -> dict[Place, list[Ownership]]:
    found: defaultdict[Place, list[Ownership]] = defaultdict(list)
    for log in logs:
        for place, span in ownerships(log):
            found[place].append(span)
    for spans in found.values():
        spans.sort(key=lambda span: span.start)
    return found


def _check_one_owner(place: Place, spans: Sequence[Ownership], slack: int) -> None:
    for earlier, later in pairwise(spans):
        over = later.start - earlier.end if earlier.end is not None else None
        if over is None:
            raise AssertionError(f"{_name(place)} was given to {later.member} while {earlier.member} kept it")
        assert over >= -slack, (
            f"{_name(place)} was given to {later.member} {-over / _NS * 1000:.1f} ms before {earlier.member} gave it up"
        )


def _check_gaps(place: Place, spans: Sequence[Ownership], until: int, limit: float) -> None:
    ends = [(span.end, following.start) for span, following in pairwise(spans)]
    if spans[-1].end is not None:
        ends.append((spans[-1].end, until))
    for end, start in ends:
        gap = (start - (end or start)) / _NS
        assert gap <= limit, f"{_name(place)} had no owner for {gap:.1f} s; {limit:.1f} s are allowed"


def _check_records(log: MemberLog, slack: int) -> None:
    owned: defaultdict[Place, list[Ownership]] = defaultdict(list)
    for place, span in ownerships(log):
        owned[place].append(span)
    for event in log.events:
        if event.kind != "record":
            continue
        inside = any(
            span.start - slack <= event.at and (span.end is None or event.at <= span.end + slack)
            for span in owned[event.places[0]]
        )
        assert inside, f"{log.name} processed {event.value} of {_name(event.places[0])}, which it did not own then"


def _name(place: Place) -> str:
    return f"{place[0]}[{place[1]}]"
