"""Prometheus text from what was collected, by `prometheus-client`.

Owners of counters fill a `Snapshot`, which takes only names of the table; `render` makes text of it, and may run in a
thread: nothing in a snapshot changes any more.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .histogram import BUCKETS, Histogram, upper_seconds
from .names import Metric, MetricType

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

FIRST_BUCKET: Final = 6
"""Durations below 64 microseconds are all in the first bucket that is exported."""
_LEVEL: Final = 1
"""Of compression: metrics repeat themselves, and more effort gains little."""


class Durations(NamedTuple):
    """A histogram as it was when it was collected: counts by bucket, as `Histogram` has them, and seconds."""

    counts: tuple[int, ...]
    sum_seconds: float


def durations(*histograms: Histogram, others: int = 0, others_ns: int = 0) -> Durations:
    """The durations of several histograms, and others that were all below the first bucket's bound."""
    counts = [sum(column) for column in zip(*(histogram.counts for histogram in histograms), strict=True)]
    counts[0] += others
    return Durations(tuple(counts), (others_ns + sum(histogram.sum_ns for histogram in histograms)) / 1e9)


Sample = tuple[tuple[str, ...], float | Durations]


class Snapshot:
    """Values of metrics at one time."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self.metrics = metrics
        self.samples: dict[str, list[Sample]] = {name: [] for name in metrics}

    def put(self, name: str, value: float | Durations, *labels: str) -> None:
        """Take a value in; KeyError for a name that is not in the table."""
        self.samples[name].append((labels, value))

    def families(self) -> "Iterator[Family]":
        """All metrics, also those without a value."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for name, metric in self.metrics.items():
            family: Any
            if metric.kind is MetricType.COUNTER:
                family = CounterMetricFamily(name.removesuffix("_total"), metric.doc, labels=metric.labels)
            elif metric.kind is MetricType.GAUGE:
                family = GaugeMetricFamily(name, metric.doc, labels=metric.labels)
            else:
                family = HistogramMetricFamily(name, metric.doc, labels=metric.labels)
            for labels, value in self.samples[name]:
                if isinstance(value, Durations):
                    family.add_metric(labels, _buckets(value.counts, metric.step), value.sum_seconds)
                else:
                    family.add_metric(labels, value)
            yield family


def _buckets(counts: Sequence[int], step: int) -> list[tuple[str, float]]:
    """Counts of all durations up to a bound, as Prometheus has them."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for number in range(BUCKETS - 1):
        below += counts[number]
        if number >= FIRST_BUCKET and number % step == 0:
            buckets.append((str(upper_seconds(number)), below))
    buckets.append(("+Inf", below + counts[-1]))
    return buckets


class _Collected:
    """What `prometheus-client` calls a collector."""

    def __init__(self, families: "Iterable[Family]") -> None:
        self._families = families

    def collect(self) -> "Iterable[Family]":
        return self._families


def put_process(snapshot: Snapshot) -> None:
    """What the system and Python say of this process: CPU, memory, descriptors, garbage collections."""
    from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR

    for collector in (PROCESS_COLLECTOR, GC_COLLECTOR, PLATFORM_COLLECTOR):
        for family in collector.collect():
            for sample in family.samples:
                labels = snapshot.metrics[sample.name].labels
                snapshot.put(sample.name, sample.value, *(sample.labels[label] for label in labels))


class Page(NamedTuple):
    """An answer to a scrape."""

    body: bytes
    content_type: str


def render(snapshot: Snapshot, accept: str = "") -> Page:
    """The text of a snapshot, in the format that was asked for: Prometheus' or OpenMetrics'."""
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(accept)
    return Page(encode(_Collected(snapshot.families())), content_type)


def gzipped(body: bytes) -> bytes:
    """The same for who accepts gzip."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
    return packer.compress(body) + packer.flush()
