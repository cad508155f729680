"""A log does what a list of batches would do, whatever happens to it."""

import random
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.protocol.batch import read_header
from headrace.protocol.records import Record, decode_records, encode_batch
from tests.support.storage import SMALL, Store, append, batches_of, read_all, sync

PRODUCERS = (7, 8)


class Written(NamedTuple):
    """A batch of the model: its offsets, its bytes as stored, and what the producer sent."""

    base_offset: int
    last_offset: int
    stored: bytes
    producer_id: int
    sent: bytes


class LogAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.batches: list[Written] = []
        self.start = 0
        self.durable_start = 0
        self.epoch = 0
        self.sequences = dict.fromkeys(PRODUCERS, 0)

    @property
    def end(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    @rule(
        count=st.integers(1, 4),
        producer_id=st.sampled_from((-1, *PRODUCERS)),
        size=st.integers(0, 120),
        lateness=st.integers(-50, 50),
        codec=st.sampled_from((0, 0, 0, 4)),
    )
    def append(self, count: int, producer_id: int, size: int, lateness: int, codec: int) -> None:
        timestamp = self.store.clock.now_ms() + lateness
        sent = encode_batch(
            [Record(i, timestamp + i, b"k", bytes(size)) for i in range(count)],
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=self.sequences.get(producer_id, -1),
            codec=codec,
        )
        original = bytes(sent)
        appended = append(self.store.log, sent, leader_epoch=self.epoch)
        assert appended == (self.end, self.end + count - 1, False)
        if producer_id >= 0:
            self.sequences[producer_id] += count
        self.batches.append(Written(*appended[:2], bytes(sent), producer_id, original))

    @rule(producer_id=st.sampled_from(PRODUCERS), back=st.integers(1, 5))
    def retry(self, producer_id: int, back: int) -> None:
        mine = [batch for batch in self.batches if batch.producer_id == producer_id and batch.base_offset >= self.start]
        if len(mine) >= back:
            again = append(self.store.log, bytearray(mine[-back].sent), leader_epoch=self.epoch)
            assert again == (mine[-back].base_offset, mine[-back].last_offset, True)

    @rule()
    def become_leader(self) -> None:
        self.epoch += 1

    @rule()
    def sync(self) -> None:
        sync(self.store.log)
        assert self.store.log.synced_offset == self.end

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()
        self.store.manager.delete_files(self.store.clock.now_ms())
        self.durable_start = self.start

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        choices = [batch.base_offset for batch in self.batches[-8:] if batch.base_offset >= self.start]
        if choices:
            offset = data.draw(st.sampled_from(choices))
            self.store.log.truncate_to(offset)
            self._lose_from(offset)

    def _lose_from(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.base_offset < offset]
        for producer_id in PRODUCERS:
            mine = [batch for batch in self.batches if batch.producer_id == producer_id]
            header = read_header(mine[-1].sent) if mine else None
            self.sequences[producer_id] = header.base_sequence + header.record_count if header else 0

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.store.log.synced_offset))
        self.store.log.advance_start(offset)
        self.start = self.durable_start = max(self.start, offset)

    @rule(hours=st.integers(1, 100))
    def retain(self, hours: int) -> None:
        self.store.clock.advance(hours * 3_600_000)
        log = self.store.log
        log.retain(self.store.clock.now_ms(), log.synced_offset)
        assert self.start <= log.log_start_offset <= max(log.synced_offset, self.start)
        limit = self.store.clock.now_ms() - SMALL.retention_ms
        for batch in self.batches:
            if self.start <= batch.base_offset < log.log_start_offset:
                assert read_header(batch.stored).max_timestamp < limit
        self.start = log.log_start_offset

    @rule()
    def restart(self) -> None:
        self.store.restart()
        self.durable_start = self.start
        assert self.store.log.synced_offset == self.end

    @rule()
    def kill(self) -> None:
        self.store.kill()
        self._accept_start()
        assert self.store.log.log_end_offset == self.end

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        synced = self.store.log.synced_offset
        log = self.store.crash(random.Random(seed))
        assert log.offline is None
        assert synced <= log.log_end_offset <= self.end
        self._lose_from(log.log_end_offset)
        self._accept_start()

    def _accept_start(self) -> None:
        """What was only about to be deleted may come back."""
        assert self.durable_start <= self.store.log.log_start_offset <= self.start
        self.start = self.store.log.log_start_offset

    def _readable(self) -> list[Written]:
        return [batch for batch in self.batches if batch.last_offset >= self.start]

    @invariant()
    def reads_what_was_written(self) -> None:
        log = self.store.log
        assert log.offline is None, log.offline
        assert (log.log_start_offset, log.log_end_offset) == (self.start, max(self.end, self.start))
        assert read_all(log) == [batch.stored for batch in self._readable()]
        assert read_all(log, 1) == [batch.stored for batch in self._readable()]

    @invariant()
    def finds_every_offset(self) -> None:
        log = self.store.log
        for batch in self._readable()[-12:]:
            offset = max(batch.last_offset - 1, batch.base_offset, self.start)
            piece = log.read(offset, 1 << 20, batch.last_offset + 1)
            assert piece is not None
            found = list(batches_of(piece.file.pread(piece.length, piece.position)))
            assert [data for _, data in found] == [batch.stored]
            assert log.read_bytes_available(offset, batch.last_offset + 1) == len(batch.stored)

    @invariant()
    def finds_records_by_time(self) -> None:
        log = self.store.log
        found = [record for batch in self._readable() for record in decode_records(batch.stored)]
        readable = [record for record in found if record.offset >= self.start]
        if not readable:
            assert log.offset_of_max_timestamp(log.log_end_offset) is None
            return
        newest = log.offset_of_max_timestamp(log.log_end_offset)
        largest = max(record.timestamp for record in readable)
        assert newest is not None
        assert newest.timestamp == largest
        for timestamp in {readable[0].timestamp, readable[len(readable) // 2].timestamp, largest, largest + 1}:
            first = next((record for record in readable if record.timestamp >= timestamp), None)
            answer = log.offset_for_timestamp(timestamp, log.log_end_offset)
            assert (answer and answer[:2]) == (first and (first.offset, first.timestamp))

    @invariant()
    def knows_the_epoch_of_every_batch(self) -> None:
        for batch in self._readable()[-6:]:
            assert self.store.log.epoch_at(batch.last_offset) == read_header(batch.stored).leader_epoch


TestLogAgainstModel = LogAgainstModel.TestCase
TestLogAgainstModel.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
