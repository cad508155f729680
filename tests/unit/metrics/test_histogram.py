"""Durations in buckets."""

import pytest

from headrace.metrics.exposition import Snapshot, durations, render
from headrace.metrics.histogram import BUCKETS, Histogram, upper_seconds
from headrace.metrics.names import Metric, MetricType


@pytest.mark.parametrize("microseconds", [0, 1, 63, 64, 65, 1_000, 1_000_000, 16_777_215])
def test_a_duration_is_in_the_bucket_below_whose_bound_it_is(microseconds: int) -> None:
    histogram = Histogram()
    histogram.add(microseconds * 1_000 + 999)
    (bucket,) = (number for number, count in enumerate(histogram.counts) if count)
    assert microseconds / 1e6 < upper_seconds(bucket)
    assert bucket == 0 or microseconds / 1e6 >= upper_seconds(bucket - 1)


def test_what_lasts_for_ever_is_in_the_last_bucket_and_in_the_sum() -> None:
    histogram = Histogram()
    histogram.add(3600 * 10**9, 2)
    assert histogram.counts[BUCKETS - 1] == histogram.count == 2
    assert histogram.sum_seconds == 7200


def test_buckets_are_exported_with_all_that_is_below_their_bound() -> None:
    metric = Metric(name="t_seconds", kind=MetricType.HISTOGRAM, labels=(), doc="", section="")
    histogram = Histogram()
    for microseconds in (1, 100, 100, 2_000_000, 10**9):
        histogram.add(microseconds * 1_000)
    snapshot = Snapshot({metric.name: metric})
    snapshot.put("t_seconds", durations(histogram, others=5))
    lines = dict(
        line.rsplit(" ", 1) for line in render(snapshot).body.decode().splitlines() if not line.startswith("#")
    )
    assert float(lines['t_seconds_bucket{le="6.4e-05"}']) == 6
    assert float(lines['t_seconds_bucket{le="0.000128"}']) == 8
    assert float(lines['t_seconds_bucket{le="1.048576"}']) == 8
    assert float(lines['t_seconds_bucket{le="2.097152"}']) == 9
    assert float(lines['t_seconds_bucket{le="+Inf"}']) == float(lines["t_seconds_count"]) == 10


def test_a_name_that_is_not_in_the_table_cannot_be_exported() -> None:
    with pytest.raises(KeyError):
        Snapshot({}).put("made_up_total", 1)
