"""Batches that match their CRC and that nobody can read, in the log of a running broker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from headrace.protocol.batch import replace_records
from headrace.protocol.compression import NONE, ZSTD
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records import Record, encode_batch
from headrace.replication import intake
from headrace.testing import Broker

from .wire import Wire, produce_request

READABLE: Final = {0: b"first", 3: b"middle", 6: b"last"}
"""The offsets and values of the records that can be read in a topic made by `planted`."""
END: Final = 7


def unreadable(codec: int, *, count: int = 2, timestamp: int = 1) -> bytes:
    """A batch of so many offsets whose records are garbage."""
    sound = encode_batch([Record(0, timestamp, b"k", b"v") for _ in range(count)])
    return bytes(replace_records(memoryview(sound), b"\x99 neither records nor a stream", codec))


@contextmanager
def unchecked() -> Iterator[None]:
    """While this lasts, brokers of this process take whatever matches its CRC, as earlier versions did."""
    with pytest.MonkeyPatch.context() as patch:
        for check in ("check_plain_records", "check_compressed"):
            patch.setattr(intake, check, lambda *_: None)
        yield


def planted(broker: Broker, topic: str) -> None:
    """Make a topic with three records, and between them two batches that nobody can read."""
    broker.create_topic(topic)
    plant(broker, topic)


def plant(broker: Broker, topic: str) -> None:
    """The same in a topic that is there."""
    first, middle, last = (bytes(encode_batch([Record(0, 1, b"k", value)])) for value in READABLE.values())
    with unchecked(), Wire(broker.bootstrap) as wire:
        for batch in (first, unreadable(NONE), middle, unreadable(ZSTD), last):
            answer = wire.ask(0, 9, produce_request(topic, batch))
            assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none
