"""What the tests of storage share: a broker's data directory on a simulated disk."""

import random
import uuid
from collections.abc import Callable, Iterable

from headrace.protocol.batch import BatchHeader, check_batch, read_header
from headrace.protocol.records import Record, encode_batch
from headrace.protocol.topic_partition import TopicPartition
from headrace.storage.disk import StorageError
from headrace.storage.flusher import Flusher
from headrace.storage.log import Appended, Log
from headrace.storage.log_starts import LogStartWriter
from headrace.storage.manager import LogManager
from headrace.storage.settings import LogSettings
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import Cut, SimulatedDisk

TOPIC_ID = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
DIRECTORY = "/data/events-0"
SMALL = LogSettings(segment_bytes=1000, index_interval_bytes=150, producer_id_expiration_ms=10**12)


def run_now(work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
    """A worker that does everything at once; what is no failure of the disk is the test's own, and raised."""
    try:
        work()
    except StorageError as error:
        done(error)
    else:
        done(None)


class Store:
    """One log in a data directory that can be restarted in every way."""

    def __init__(self, settings: LogSettings = SMALL, disk: SimulatedDisk | None = None) -> None:
        self.settings = settings
        self.disk = disk or SimulatedDisk()
        self.clock = SimulatedClock()
        self.start()

    def start(self) -> Log:
        self.manager = LogManager(self.disk, self.clock, "/data", cluster_id="here", broker_id=1)
        self.manager.open()
        LogStartWriter(self.manager, Flusher(run_now))
        self.log = self.manager.load("events", 0, TOPIC_ID, self.settings)
        return self.log

    def restart(self) -> Log:
        """Stop in order and start."""
        self.manager.close({TopicPartition("events", 0): self.log.log_end_offset})
        return self.start()

    def kill(self) -> Log:
        """Die by `kill -9` and start."""
        self.disk.kill()
        return self.start()

    def crash(self, rng: random.Random | None = None, cut: Cut | None = None, names_kept: int | None = None) -> Log:
        """Lose power and start."""
        self.disk.crash(rng, cut=cut, names_kept=names_kept)
        return self.start()

    def checkpoint(self) -> None:
        self.log.save()
        self.manager.checkpoint({TopicPartition("events", 0): self.log.synced_offset})

    def path(self, name: str) -> str:
        return f"{DIRECTORY}/{name}"


def records(count: int, *, timestamp: int = 1000, value: bytes = b"value") -> list[Record]:
    return [Record(number, timestamp + number, b"key-%d" % number, value) for number in range(count)]


def idempotent(count: int, *, producer_id: int = 7, epoch: int = 0, sequence: int, timestamp: int = 1000) -> bytearray:
    return encode_batch(
        records(count, timestamp=timestamp), producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def append(log: Log, batch: bytearray | None = None, *, leader_epoch: int = 0, count: int = 1) -> Appended:
    """Append a batch as the leader does, a fresh one when none is given."""
    view = memoryview(encode_batch(records(count)) if batch is None else batch)
    return log.append(view, check_batch(view), leader_epoch)


def sync(log: Log) -> None:
    ticket = log.begin_sync()
    if ticket is not None:
        ticket.run()
        log.finish_sync(ticket)


def batches_of(data: bytes) -> Iterable[tuple[BatchHeader, bytes]]:
    """The whole batches in some bytes."""
    position = 0
    while position + 61 <= len(data):
        header = read_header(data, position)
        if position + header.size > len(data):
            return
        yield header, data[position : position + header.size]
        position += header.size


def read_all(log: Log, max_bytes: int = 1 << 20) -> list[bytes]:
    """Every batch of a log, read as a consumer does."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while True:
        piece = log.read(offset, max_bytes, log.log_end_offset)
        if piece is None:
            return found
        for header, batch in batches_of(piece.file.pread(piece.length, piece.position)):
            found.append(batch)
            offset = header.last_offset + 1
