"""A broker on a full disk: it says so, loses nothing, stops, starts, and goes on when there is space."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kio.schema.metadata.v1.request import MetadataRequestTopic
from kio.schema.types import TopicName

from headrace.protocol.errors import ErrorCode
from tests.support.process import BrokerProcess
from tests.support.wire import Wire, batch_of, produce_request, request
from tests.unit.server.test_connection import fetch_request, values_of

SECONDS = 60.0
MEBIBYTE = 1 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def produce(bootstrap: str, value: bytes) -> ErrorCode:
    with Wire(bootstrap) as wire:
        answer = wire.ask(0, 9, produce_request("t", batch_of(value, timestamp=int(time.time() * 1000))))
        code = answer.responses[0].partition_responses[0].error_code
        assert isinstance(code, ErrorCode)
        return code


def test_a_full_disk_loses_nothing_and_is_left_behind(small: Path) -> None:
    ballast = small / "ballast"
    acknowledged = [b"%d" % number + b"x" * MEBIBYTE for number in range(4)]
    with BrokerProcess(small / "data", {"message.max.bytes": str(2 * MEBIBYTE)}) as broker:
        with Wire(broker.bootstrap) as wire:
            wire.ask(3, 1, request(3, 1, topics=(MetadataRequestTopic(name=TopicName("t")),)))
        for value in acknowledged:
            assert produce(broker.bootstrap, value) is ErrorCode.none
        fill(ballast)
        assert produce(broker.bootstrap, b"y" * MEBIBYTE) is ErrorCode.kafka_storage_error
        assert broker.stop() == 0
        broker.start()
        with Wire(broker.bootstrap) as wire:
            assert values_of(wire.ask(1, 11, fetch_request("t"))) == acknowledged
        os.unlink(ballast)
        deadline = time.monotonic() + SECONDS
        while produce(broker.bootstrap, b"later") is not ErrorCode.none:
            assert time.monotonic() < deadline
            time.sleep(0.1)
