"""A write whose stage is run again because shuffle files were lost, and one with speculative tasks: each row once."""

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.prepared import open_transactions
from headrace.spark.sink.commit import PREFIX
from tests.support.spark.records import values, wait_until_decided
from tests.support.spark.retried import Plan
from tests.support.spark.standalone import standalone
from tests.support.spark.topics import Topics

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ROWS = 4_000
FINISH_SECONDS = 900.0


@pytest.mark.parametrize("way", ["job", "stream", "speculation"])
def test_tasks_that_have_twins_write_each_row_once(
    bootstrap: str, request: pytest.FixtureRequest, tmp_path: Path, way: str
) -> None:
    topics = Topics(bootstrap, request.node.name)
    source, target = topics.create(partitions=4), topics.create(partitions=3)
    topics.fill(source, (b"%d" % number for number in range(ROWS)), lambda number: number % 4)
    with standalone(tmp_path) as master:
        plan = Plan(
            bootstrap=topics.bootstrap, source=source, target=target, master=master, place=str(tmp_path), way=way
        )
        command = [sys.executable, "-m", "tests.support.spark.retried", json.dumps(dataclasses.asdict(plan))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FINISH_SECONDS, check=False)
    assert "finished" in done.stdout, done.stderr[-5_000:]
    assert (tmp_path / "twin-wrote").exists(), "there was no twin"
    wait_until_decided(topics.bootstrap, target)
    assert Counter(int(value or b"-1") for value in values(topics.bootstrap, target, read_committed=True)) == Counter(
        range(ROWS)
    )
    with Cluster({"bootstrap.servers": topics.bootstrap}) as cluster:
        assert open_transactions(cluster, PREFIX) == []
