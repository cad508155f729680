"""The planner's side of a streaming query: how far the logs go, what the next micro-batch takes, what is finished.

Spark keeps one of these alive for each source of a query and asks it many times a second for the latest offsets, also
when nothing happens. Each look at the cluster costs a request to every leader, so looks become rarer the longer it is
quiet; new partitions are looked for once a second.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from headrace.client.columnar.model import EARLIEST, LATEST, Range, TopicPartition

from . import data_loss
from .logs import AssignedPartitions, Logs, assigned, ends, ends_left, resolve, still_assigned
from .offsets import Offsets, TopicIds, named
from .options import AtEnd, AtOffsets, SourceOptions, TriggerLimits
from .planning import (
    Limit,
    bounded,
    lost,
    made_anew,
    records_between,
    replaced,
    step,
    total_bytes,
    unsettled,
    without,
)
from .sizes import Sizes

_LONGEST_WAIT: Final = 0.05
_DISCOVERY_SECONDS: Final = 1.0
_MUCH: Final = 8

NO_IDS: Final[Mapping[str, bytes]] = {}

Clock = Callable[[], float]


class OffsetPollPace:
    """How often to look: at once while records arrive, then ever less often, but twenty times a second at least.

    Whoever looks too soon is held up for a moment rather than told what was seen before: an answer is always fresh, and
    a query that was told that all is read has read it. Micro-batches that follow each other never wait here.
    """

    def __init__(self, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._looked = -_LONGEST_WAIT
        self._changed = clock()

    def wait(self) -> None:
        """Return when it is time to look again."""
        now = self._clock()
        early = self._looked + min(_LONGEST_WAIT, (now - self._changed) / 10) - now
        if early > 0:
            self._sleep(early)

    def looked(self, *, found_news: bool) -> None:
        """Remember that someone looked."""
        self._looked = self._clock()
        if found_news:
            self._changed = self._looked


class Tracker:
    """Follows the partitions of one streaming query."""

    def __init__(
        self,
        options: SourceOptions,
        logs: Logs,
        sizes: Sizes | None = None,
        *,
        clock: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._logs = logs
        self._sizes = sizes
        self._clock = clock
        self._sleep = sleep
        self._pace = OffsetPollPace(clock, sleep)
        self._discovered = clock()
        self._assigned: AssignedPartitions | None = None
        self._anew: set[str] = set()
        self._initial: Offsets | None = None
        self._target: Offsets | None = None
        self._planned: Offsets | None = None
        self._cut: set[TopicPartition] = set()
        """Of the micro-batch that was planned last: see `_cut_since`."""
        self._triggered = -float("inf")
        self.seen: Offsets = {}
        """The ends of all partitions, as last seen."""

    def initial(self) -> Offsets:
        """Where a new query starts; the same each time."""
        if self._initial is None:
            position = self._options.starting or AtEnd(LATEST)
            partitions = assigned(self._logs, self._options)
            start = resolve(self._logs, position, partitions, self._options, starting=True)
            self._initial = self._within_the_logs(start) if isinstance(position, AtOffsets) else start
            self._present()
        return self._initial

    def _within_the_logs(self, start: Offsets) -> Offsets:
        """`start`, which a user named, or the beginning of the log where it does not have that offset.

        A wrong one is told now: once the checkpoint has it, correcting the option would not help.
        """
        first, last = ends(self._logs, start, EARLIEST), ends(self._logs, start, LATEST)
        outside = [
            partition for partition in sorted(start) if not first[partition] <= start[partition] <= last[partition]
        ]
        self._report(
            [
                f"startingOffsets has {start[partition]} for {named([partition])}, but the log has {first[partition]} "
                f"up to {last[partition]}"
                for partition in outside
            ]
        )
        return start | {partition: first[partition] for partition in outside}

    def stop_at_present_end(self) -> None:
        """Read no further than the logs go now."""
        self.seen = self._target = self._look()

    def latest(self, start: Offsets, trigger: TriggerLimits | None, ids: Mapping[str, bytes] = NO_IDS) -> Offsets:
        """Where the micro-batch from `start`, which is of the topics of these ids, ends: as far as the logs go, or as
        far as `trigger` lets it.

        `start` itself if there is nothing to read, or too little yet.
        """
        end = self._without_anew(start, self._ends(start), ids)
        losses = made_anew(self._anew) + lost(without(start, self._anew), end)
        self._report(losses)
        self._cut = self._cut_since(start, end, ids)
        if trigger is not None:
            begin = start | self._begin(start, end)
            if not losses and self._is_too_early(begin, end, trigger):
                return start
            end = bounded(begin, end, self._limits(begin, end, trigger))
        self._planned = end
        return end

    def ids(self, offsets: Offsets) -> TopicIds:
        """The ids of the topics of these offsets, as last seen."""
        known = self._seen_ids
        return {topic: one for topic in {where.topic for where in offsets} if (one := known.get(topic)) is not None}

    def ranges(self, start: Offsets, end: Offsets, ids: Mapping[str, bytes] = NO_IDS) -> list[Range]:
        """What to read from `start` to `end`, which may have been planned by an earlier run of the query, of the topics
        of these ids."""
        losses: list[str] = []
        if end != self._planned:
            self._cut = set()
            if start == self._initial:  # partitions that were added since are found later, as any new one
                start = {where: offset for where, offset in start.items() if where in end}
            there = self._surely(end)
            others = replaced(ids, self._seen_ids)
            start, end = without(start, others), without(end, others)
            losses = made_anew(others) + _cut_short(end, there)
            end = {where: min(stop, there[where]) for where, stop in end.items() if where in there}
        ranges, more = step(start, end, self._begin(start, end))
        self._report(losses + more)
        return ranges

    @property
    def _seen_ids(self) -> Mapping[str, bytes | None]:
        return self._assigned.ids if self._assigned is not None else {}

    def _ends(self, start: Offsets) -> Offsets:
        if self._target is not None:
            if lost(start, self._target):
                self._target = self.seen = self._surely(start)
            return self._target
        self._pace.wait()
        before, self.seen = self.seen, self._surely(start)
        self._pace.looked(found_news=self.seen != before)
        return self.seen

    def _surely(self, least: Offsets) -> Offsets:
        """The ends as they are now; what looks like a loss is looked at again, since a new leader may lag."""
        logs = self._look_from(least)
        for _ in range(self._options.retries):
            losses = lost(least, logs)
            if not losses:
                break
            data_loss.LOG.warning("%s; looking again", "; ".join(losses))
            self._sleep(self._options.retry_seconds)
            self._discovered = -float("inf")
            logs = self._look_from(least)
        return logs

    def _look_from(self, least: Offsets) -> Offsets:
        """The ends as they are now. Where a transaction that is open holds what is committed back behind `least`, as
        it may when an earlier run read what was not, there is nothing to read yet; nothing is lost.
        """
        found = self._look()
        behind = {where for where, stop in found.items() if stop < least.get(where, 0)}
        if not (behind and self._options.read_committed):
            return found
        whole = ends_left(self._logs, behind, LATEST)
        return found | {where: least[where] for where in behind if whole.get(where, -1) >= least[where]}

    def _look(self) -> Offsets:
        """Where the partitions end, and no further than the query goes."""
        found = ends_left(self._logs, self._present(), LATEST, read_committed=self._options.read_committed)
        stop_at = self._options.stop_at or {}
        return {where: min(stop, stop_at.get(where, stop)) for where, stop in found.items()}

    def _present(self) -> set[TopicPartition]:
        now = self._clock()
        if self._assigned is None or now - self._discovered >= _DISCOVERY_SECONDS:
            before = self._assigned.ids if self._assigned is not None else {}
            self._assigned = still_assigned(self._logs, self._options)
            self._discovered = now
            self._anew |= {topic for topic, id_ in self._assigned.ids.items() if before.get(topic, id_) != id_}
        return self._assigned.partitions

    def _without_anew(self, start: Offsets, end: Offsets, ids: Mapping[str, bytes]) -> Offsets:
        """`end` without the topics that were made anew since `start`, of which `ids` may be the ids.

        Offsets of the old topic say nothing of the new one, however far it has come. It is left out of one micro-batch
        and then found like any new topic, so that it is read from its beginning.
        """
        self._anew |= set(replaced(ids, self._seen_ids))
        self._anew &= {where.topic for where in start}
        return without(end, self._anew)

    def _cut_since(self, start: Offsets, end: Offsets, read: Mapping[str, bytes]) -> set[TopicPartition]:
        """The partitions that were truncated behind where the query had read them to.

        The topic is the one that it was, by the id it had when it was read or because this run has read it, so what is
        left of its log has been read, and the query goes on at its end. Without an id, a run that has just started
        cannot tell such a log from that of a topic made anew, which it would have to read.
        """
        if not self._options.retries:
            return set()  # the topics were not looked at again since their ends seemed to be lost
        planned = self._planned or {}
        present = {topic: one for topic, one in self._seen_ids.items() if one is not None}
        back = {where for where, stop in end.items() if start.get(where, -1) > stop and where.topic in present}
        return {
            where
            for where in back
            if planned.get(where) == start[where] or read.get(where.topic) == present[where.topic]
        }

    def _begin(self, start: Offsets, end: Offsets) -> Offsets:
        """Where to read partitions from that have no place in `start`, or none that their logs still have."""
        anew = unsettled(start, end) - self._cut
        return ends_left(self._logs, anew, EARLIEST) | {where: end[where] for where in self._cut & end.keys()}

    def _is_too_early(self, begin: Offsets, end: Offsets, trigger: TriggerLimits) -> bool:
        if trigger.min_records is None or self._target is not None:
            return False  # a query that ends with what is there has nothing to wait for
        ahead = records_between(begin, end)
        now = self._clock()
        too_early = ahead == 0 or (ahead < trigger.min_records and now - self._triggered < trigger.max_delay)
        if not too_early:
            self._triggered = now
        return too_early

    def _limits(self, begin: Offsets, end: Offsets, trigger: TriggerLimits) -> list[Limit]:
        limits = []
        if trigger.max_records is not None:
            limits.append(Limit(trigger.max_records, records_between(begin, end)))
        if trigger.max_bytes is not None and self._sizes is not None:
            limits += self._limit_of_bytes(self._sizes, begin, end, trigger.max_bytes)
        return limits

    def _limit_of_bytes(self, sizes: Sizes, begin: Offsets, end: Offsets, most: int) -> list[Limit]:
        """No new sample is taken where records had to have grown much for the limit to matter."""
        remembered = sizes.remembered(begin, end)
        if remembered is not None and total_bytes(begin, end, remembered) * _MUCH <= most:
            return []
        return [Limit(most, total_bytes(begin, end, sizes.estimate(begin, end)))]

    def _report(self, losses: list[str]) -> None:
        data_loss.report(losses, fail=self._options.fail_on_data_loss)


def _cut_short(end: Offsets, there: Offsets) -> list[str]:
    """What is missing of a micro-batch that was planned up to `end`, in words."""
    return [
        f"{named([where])} ends at offset {there[where]}, before {stop} where a micro-batch was planned to end"
        for where, stop in sorted(end.items())
        if where in there and there[where] < stop
    ]
