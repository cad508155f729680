"""Reports go to JSON and back, the worst problem first, and say whether a broker should get traffic."""

import json
from dataclasses import replace

import pytest

from headrace.health import HealthReport, ListenerReport, NotAReport, ProblemCode, Severity, problem
from headrace.health.problem import KINDS
from headrace.health.report import worst_first

PROBLEMS = [
    problem(ProblemCode.UNDER_REPLICATED, "broker 1", "2 partitions"),
    problem(ProblemCode.LOG_DIR_FULL, "/data", "no space"),
]
REPORT = HealthReport(
    broker_id=1,
    cluster_id="c",
    version="1.2",
    uptime_seconds=7.5,
    ready=False,
    problems=worst_first(PROBLEMS),
    numbers={"partitions": 3, "load": 0.5},
    listeners=(
        ListenerReport(
            name="INSIDE",
            protocol="SSL",
            bound="[::1]:9091",
            advertised="",
            for_brokers=True,
            anonymous=False,
            remote=False,
        ),
    ),
)


def test_a_report_is_the_same_after_json() -> None:
    assert HealthReport.from_json(json.loads(json.dumps(REPORT.to_json()))) == REPORT


def test_a_report_of_a_release_that_does_not_tell_of_listeners_has_none() -> None:
    values = REPORT.to_json()
    del values["listeners"]
    assert HealthReport.from_json(values) == replace(REPORT, listeners=())


def test_the_worst_problem_comes_first_and_is_the_severity() -> None:
    assert [p.code for p in REPORT.problems] == [ProblemCode.LOG_DIR_FULL, ProblemCode.UNDER_REPLICATED]
    assert REPORT.severity is Severity.CRITICAL
    assert replace(REPORT, problems=()).severity is Severity.OK


def test_every_code_says_how_bad_it_is_and_what_to_do() -> None:
    assert set(KINDS) == set(ProblemCode)
    assert all(kind.title and kind.advice and kind.severity is not Severity.OK for kind in KINDS.values())


def test_a_problem_of_a_newer_broker_is_left_out() -> None:
    values = REPORT.to_json()
    values["problems"].append({"code": "from-the-future", "severity": "critical"})
    assert HealthReport.from_json(values) == REPORT


@pytest.mark.parametrize("wrong", [None, [], {}, {**REPORT.to_json(), "numbers": {"a": "b"}}, {"broker_id": "x"}])
def test_what_is_no_report_is_refused(wrong: object) -> None:
    with pytest.raises(NotAReport):
        HealthReport.from_json(wrong)
