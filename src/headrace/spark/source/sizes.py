"""How large records are, as far as one can tell before reading them: a few at the front of each partition."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.client.columnar.model import Range, TopicPartition

from .offsets import Offsets

SAMPLE_RECORDS: Final = 100
"""As many tell enough."""
_GOOD_FOR_SECONDS: Final = 5.0


class Sample(NamedTuple):
    """Some records that were read, and the bytes of their keys and values."""

    records: int
    size: int


class _Known(NamedTuple):
    per_record: float
    at: float


class Sizes:
    """Estimates bytes per record from samples, which are taken anew every few seconds while a partition is read."""

    def __init__(self, sample: Callable[[Range], Sample], clock: Callable[[], float] = time.monotonic) -> None:
        self._sample = sample
        self._clock = clock
        self._known: dict[TopicPartition, _Known] = {}

    def remembered(self, begin: Offsets, end: Offsets) -> dict[TopicPartition, float] | None:
        """The same without a new sample, however old the last one is; None where a partition has none."""
        ahead = [where for where, stop in end.items() if begin.get(where, 0) < stop]
        known = {where: self._known[where].per_record for where in ahead if where in self._known}
        return known if len(known) == len(ahead) else None

    def estimate(self, begin: Offsets, end: Offsets) -> dict[TopicPartition, float]:
        """Bytes per record of each partition that has records between `begin` and `end`."""
        return {
            where: self._per_record(where, begin.get(where, 0), stop)
            for where, stop in end.items()
            if begin.get(where, 0) < stop
        }

    def _per_record(self, topic_partition: TopicPartition, start: int, stop: int) -> float:
        known, now = self._known.get(topic_partition), self._clock()
        if known is not None and now - known.at < _GOOD_FOR_SECONDS:
            return known.per_record
        sample = self._sample(Range(*topic_partition, start, min(stop, start + SAMPLE_RECORDS)))
        if not sample.records:  # what compaction, retention or an abort emptied says nothing of what is behind it
            sample = self._sample(Range(*topic_partition, start, stop))
        fresh = sample.size / sample.records if sample.records else None
        if fresh is None:
            return known.per_record if known is not None else 0.0
        # Half old, half new: one odd record at the front must not decide alone how much is read.
        per_record = fresh if known is None else (known.per_record + fresh) / 2
        self._known[topic_partition] = _Known(per_record, now)
        return per_record
