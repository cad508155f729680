"""Faults at random, from a seed, in virtual time: whatever happens, a cluster loses, doubles and swaps nothing."""

import pytest

from tests.support.simulation.runs import Plan, with_faults


@pytest.mark.parametrize("seed", range(6))
def test_a_cluster_under_faults_keeps_what_it_acknowledged_and_heals(seed: int) -> None:
    report = with_faults(Plan(seed=seed))
    assert not report.problems, "\n".join([*report.problems, *report.faults])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_clusters_under_faults_keep_what_they_acknowledged_and_heal(seed: int) -> None:
    report = with_faults(Plan(seed=seed))
    assert not report.problems, "\n".join([*report.problems, *report.faults])
