"""`headrace config` against a broker."""

import json
from typing import Any

import pytest

from headrace.testing import Broker
from tests.support.cli import Headrace

pytestmark = pytest.mark.slow


def settings_of(answer: bytes) -> dict[str, Any]:
    return {entry["name"]: entry for entry in json.loads(answer)["settings"]}


@pytest.fixture
def topic(cluster: Broker, request: pytest.FixtureRequest) -> str:
    return cluster.create_topic(f"config.{abs(hash(request.node.name)) % 10**9}")


def test_a_setting_of_a_topic_is_set_shown_and_unset(headrace: Headrace, topic: str) -> None:
    assert headrace("config", "set", "topic", topic, "retention.ms=7d", "segment.bytes=10MB").returncode == 0
    found = settings_of(headrace("config", "describe", "topic", topic, "--json").stdout)
    assert (found["retention.ms"]["value"], found["retention.ms"]["source"]) == ("604800000", "dynamic topic")
    assert found["segment.bytes"]["value"] == "10000000"
    assert b"604800000 (7d)" in headrace("config", "describe", "topic", topic).stdout
    assert headrace("config", "unset", "topic", topic, "retention.ms").returncode == 0
    assert "retention.ms" not in settings_of(headrace("config", "describe", "topic", topic, "--json").stdout)


def test_defaults_are_shown_when_asked_for(headrace: Headrace, topic: str) -> None:
    assert "cleanup.policy" not in settings_of(headrace("config", "describe", "topic", topic, "--json").stdout)
    assert settings_of(headrace("config", "describe", "topic", topic, "--all", "--json").stdout)["cleanup.policy"]
    one = headrace("config", "describe", "topic", topic, "cleanup.policy", "--docs").stdout.decode()
    assert "delete" in one
    assert "compact keeps the latest record" in one


def test_brokers_have_settings_of_their_own_and_of_all(headrace: Headrace) -> None:
    assert headrace("config", "set", "broker", "default", "log.retention.ms=2d").returncode == 0
    found = settings_of(headrace("config", "describe", "broker", "default", "--json").stdout)
    assert found["log.retention.ms"]["value"] == "172800000"
    own = settings_of(headrace("config", "describe", "broker", "1", "log.retention.ms", "--json").stdout)
    assert own["log.retention.ms"]["source"] == "dynamic default broker"
    assert headrace("config", "unset", "broker", "default", "log.retention.ms").returncode == 0


def test_groups_have_settings(headrace: Headrace) -> None:
    assert headrace("config", "set", "group", "billing", "consumer.session.timeout.ms=50s").returncode == 0
    found = settings_of(headrace("config", "describe", "group", "billing", "--json").stdout)
    assert found["consumer.session.timeout.ms"]["value"] == "50000"


def test_a_dry_run_changes_nothing(headrace: Headrace, topic: str) -> None:
    result = headrace("config", "set", "topic", topic, "retention.ms=1h", "--dry-run")
    assert (result.returncode, b"would be 3600000 (1h)" in result.stdout) == (0, True)
    assert settings_of(headrace("config", "describe", "topic", topic, "--json").stdout).keys() == set()


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["set", "topic", "no.such.topic", "retention.ms=1h"], 1, "no.such.topic"),
        (["set", "topic", "no.such.topic", "retention.ms=soon"], 2, "is not a time"),
        (["set", "topic", "no.such.topic", "retention.ms"], 2, "is not NAME=VALUE"),
        (["unset", "topic", "no.such.topic", "retention.ms=3"], 2, "has a value"),
        (["describe", "broker", "77"], 1, "there is no broker '77' that is alive; there are 1"),
        (["describe", "broker", "1", "no.such.setting"], 1, "has no setting no.such.setting"),
        (["describe", "toppic", "x"], 2, "toppic"),
        (["set", "broker", "1", "log.dirs=/x"], 1, "log.dirs"),
    ],
)
def test_mistakes_are_told(headrace: Headrace, arguments: list[str], code: int, expected: str) -> None:
    result = headrace("config", *arguments)
    assert (result.returncode, expected in result.stderr.decode()) == (code, True), result.stderr
