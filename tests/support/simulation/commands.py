"""`headrace cluster` asked of a cluster of processes."""

import json
import subprocess
from typing import Any

from tests.support.cli import command, environment
from tests.support.process import ClusterProcesses

TIMEOUT_SECONDS = 120.0


def headrace(cluster: ClusterProcesses, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments),
        env=environment(cluster.bootstrap),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def run(cluster: ClusterProcesses, *arguments: str) -> Any:
    """What `headrace cluster ... --json` says."""
    done = headrace(cluster, "cluster", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def described(cluster: ClusterProcesses) -> Any:
    return run(cluster, "describe")


def by_broker(view: Any, field: str) -> dict[int, int]:
    return {broker["id"]: broker[field] for broker in view["brokers"]}
