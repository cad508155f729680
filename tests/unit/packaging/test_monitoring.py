"""What `packaging/monitoring` brings: alert rules that fire and resolve, a dashboard of metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from headrace.health.problem import ProblemCode
from headrace.metrics.names import BROKER, GATEWAY, MetricType
from tests.support.promql import Series, firing, metric_names, seconds

ROOT: Final = Path(__file__).resolve().parents[3]
MONITORING: Final = ROOT / "packaging" / "monitoring"
RULES: Final[list[dict[str, Any]]] = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
TESTS: Final[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())
DASHBOARD: Final[dict[str, Any]] = json.loads((MONITORING / "dashboard.json").read_text())
METRICS: Final = {**BROKER, **GATEWAY}
OF_PROMETHEUS: Final = {"up"}


def base_name(series: str) -> str:
    """The name in the table of a series: a histogram has several."""
    name = re.sub(r"_(bucket|sum|count)$", "", series)
    return name if name in METRICS and METRICS[name].kind is MetricType.HISTOGRAM else series


def unknown(expression: str) -> set[str]:
    return set(map(base_name, metric_names(expression))) - METRICS.keys() - OF_PROMETHEUS


def labels_of(expression: str) -> set[str]:
    """The labels that an expression selects or groups by."""
    selected = re.findall(r'(\w+)(?:=~|=|!=)"', expression)
    grouped = [name.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for name in group.split(",")]
    return {*selected, *grouped} - {"job", "instance", "le", ""}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_about_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    assert not unknown(rule["expr"])
    known = {label for name in metric_names(rule["expr"]) - OF_PROMETHEUS for label in METRICS[base_name(name)].labels}
    assert labels_of(rule["expr"]) <= known


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_the_page_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]
    assert f"### {rule['alert']}\n" in (ROOT / "docs" / "monitoring.md").read_text()


def test_codes_of_problems_in_alerts_exist() -> None:
    codes = {code for rule in RULES for code in re.findall(r'code="([^"]+)"', rule["expr"])}
    assert codes <= {code.value for code in ProblemCode}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_fires_and_resolves_on_recorded_series(rule: dict[str, Any]) -> None:
    (test,) = (test for test in TESTS["tests"] if test["name"] == rule["alert"])
    series = [Series.parse(given["series"], given["values"]) for given in test["input_series"]]
    outcomes = []
    for check in test["alert_rule_test"]:
        assert check["alertname"] == rule["alert"]
        at = seconds(check["eval_time"])
        fires = firing(rule, series, at, seconds(test["interval"]), seconds(TESTS["evaluation_interval"]))
        expected = {frozenset(alert["exp_labels"].items()) for alert in check.get("exp_alerts", ())}
        assert fires == expected, check["eval_time"]
        outcomes.append(bool(expected))
    assert outcomes == [False, True, False]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_comes_to_the_same() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", "alerts_test.yml"], cwd=MONITORING, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_shows_metrics_that_exist(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        assert not unknown(target["expr"].replace("$__rate_interval", "5m"))
        legend = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
        known = {label for name in metric_names(target["expr"]) for label in METRICS[base_name(name)].labels}
        assert legend <= known | {"instance", "job"}


def test_panels_lie_beside_each_other() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    taken = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(taken) == len(set(taken))
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(places)
