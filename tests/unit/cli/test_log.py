"""`headrace log` against a broker."""

import json

import pytest

from headrace.testing import Broker
from tests.support.cli import Run


@pytest.fixture
def refetch(run: Run, cluster: Broker) -> Run:
    """`headrace log refetch` of a topic's only partition, with the cluster's address."""

    def call(*arguments: str, stdin: str | None = None) -> object:
        return run("log", "refetch", *arguments, "--bootstrap", cluster.bootstrap, stdin=stdin)

    return call  # type: ignore[return-value]


def own_id(run: Run, cluster: Broker) -> str:
    described = json.loads(run("cluster", "describe", "--bootstrap", cluster.bootstrap, "--json").stdout)
    return str(described["brokers"][0]["id"])


def test_a_log_that_has_not_failed_is_left_alone(run: Run, refetch: Run, cluster: Broker) -> None:
    run("topic", "create", "well", "--bootstrap", cluster.bootstrap)
    result = refetch("well", "--partition", "0", "--broker", own_id(run, cluster))
    assert result.exit_code == 1
    assert "its log has not failed" in result.stderr


def test_brokers_and_partitions_that_are_not_there_are_named(run: Run, refetch: Run, cluster: Broker) -> None:
    result = refetch("absent", "--partition", "0", "--broker", "77")
    assert (result.exit_code, "broker 77 is not alive" in result.stderr) == (1, True)
    result = refetch("absent", "--partition", "0", "--broker", own_id(run, cluster))
    assert (result.exit_code, "it holds no such partition" in result.stderr) == (1, True)
