"""A broker with few descriptors: idle connections are refused, logs are not, however often it is killed."""

import os
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from kio.schema.create_topics.v5.request import CreatableTopic

from headrace.protocol.errors import ErrorCode
from tests.support.process import BrokerProcess, Site
from tests.support.wire import Wire, batch_of, produce_request, request

LIMIT = 256
PARTITIONS = 150
FLOOD = 300
FEW = Site(prefix=("bash", "-c", f'ulimit -n {LIMIT}; exec "$@"', "bash"))


def make_topic(wire: Wire) -> None:
    topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1, assignments=(), configs=())  # type: ignore[arg-type]
    assert wire.ask(19, 5, request(19, 5, topics=(topic,))).topics[0].error_code is ErrorCode.none


def produce_to_all(wire: Wire) -> Counter[ErrorCode]:
    codes: Counter[ErrorCode] = Counter()
    for partition in range(PARTITIONS):
        answer = wire.ask(0, 9, produce_request("t", batch_of(b"x" * 1000), partition=partition))
        codes[answer.responses[0].partition_responses[0].error_code] += 1
    return codes


def open_files(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def flood(held: ExitStack, bootstrap: str) -> Sequence[socket.socket]:
    host, port = bootstrap.split(":")
    return [held.enter_context(socket.create_connection((host, int(port)))) for _ in range(FLOOD)]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_idle_connections_never_take_the_descriptors_of_logs(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, site=FEW) as broker, Wire(broker.bootstrap) as wire, ExitStack() as held:
        make_topic(wire)
        assert produce_to_all(wire) == {ErrorCode.none: PARTITIONS}
        flood(held, broker.bootstrap)
        assert produce_to_all(wire) == {ErrorCode.none: PARTITIONS}
        assert open_files(broker) < LIMIT
        held.close()
        assert produce_to_all(wire) == {ErrorCode.none: PARTITIONS}


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_a_killed_broker_with_more_logs_than_descriptors_serves_them_all_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, site=FEW) as broker:
        with Wire(broker.bootstrap) as wire:
            make_topic(wire)
            assert produce_to_all(wire) == {ErrorCode.none: PARTITIONS}
        broker.kill()
        broker.start()
        with Wire(broker.bootstrap) as wire:
            assert open_files(broker) < 100
            assert produce_to_all(wire) == {ErrorCode.none: PARTITIONS}
