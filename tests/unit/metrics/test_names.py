"""The table of names keeps to Prometheus' conventions."""

import re

import pytest

from headrace.metrics.names import BROKER, GATEWAY, Metric, MetricType


@pytest.mark.parametrize("metric", [*BROKER.values(), *GATEWAY.values()], ids=lambda metric: metric.name)
def test_a_metric_is_named_as_prometheus_wants_it(metric: Metric) -> None:
    assert re.fullmatch(r"(headrace|process|python)_[a-z0-9_]+", metric.name)
    assert metric.name.endswith("_total") is (metric.kind is MetricType.COUNTER)
    assert metric.kind is not MetricType.HISTOGRAM or metric.name.endswith("_seconds")
    assert not re.search(r"_(ms|milliseconds|kb|mb|percent)\b", metric.name)
    assert metric.doc
    assert metric.doc.endswith(".")
