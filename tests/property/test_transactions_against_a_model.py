"""A `read_committed` reader gets what a plain list of decided transactions would give, whatever happens to the log."""

import random
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.protocol.batch import BatchHeader, read_header
from headrace.protocol.records import Record, decode_marker, decode_records, encode_batch, encode_marker
from headrace.storage import compaction
from headrace.storage.log import Log, Origin
from tests.support.storage import SMALL, Store, append, batches_of, sync

PRODUCERS = (7, 8, 9)
SETTINGS = replace(
    SMALL,
    cleanup_policy=frozenset({"compact", "delete"}),
    min_cleanable_dirty_ratio=0.0,
    segment_bytes=700,
    delete_retention_ms=1000,
)


@dataclass(frozen=True, slots=True)
class Item:
    """A batch of the model: one record, or a marker."""

    offset: int
    producer_id: int
    key: str
    value: str
    transactional: bool = False
    marker: bool | None = None
    epoch: int = 0


@dataclass
class Producer:
    """A producer as the model knows it from the items alone."""

    epoch: int = 0
    sequence: int = 0
    first_offset: int | None = None


class TransactionsAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store(SETTINGS)
        self.items: list[Item] = []
        self.start = 0
        self.high_watermark = 0
        self.count = 0
        self.coordinator_epoch = 0

    @property
    def log(self) -> Log:
        return self.store.log

    @property
    def end(self) -> int:
        return self.items[-1].offset + 1 if self.items else 0

    def producer(self, producer_id: int) -> Producer:
        found = Producer()
        for item in self.items:
            if item.producer_id == producer_id:
                if item.epoch != found.epoch:
                    found = Producer(item.epoch, 0, found.first_offset)
                if item.marker is not None:
                    found.first_offset = None
                else:
                    found.sequence += 1
                    if item.transactional and found.first_offset is None:
                        found.first_offset = item.offset
        return found

    # What happens

    @rule(key=st.sampled_from("abcd"), size=st.integers(0, 60))
    def plain(self, key: str, size: int) -> None:
        self._write(-1, key, size)

    @rule(producer_id=st.sampled_from(PRODUCERS), key=st.sampled_from("abcd"), size=st.integers(0, 60))
    def transactional(self, producer_id: int, key: str, size: int) -> None:
        self._write(producer_id, key, size)

    def _write(self, producer_id: int, key: str, size: int) -> None:
        value = f"{self.count}" + "." * size
        self.count += 1
        known = self.producer(producer_id)
        record = Record(0, self.store.clock.now_ms(), key.encode(), value.encode())
        if producer_id < 0:
            appended = append(self.log, encode_batch([record]))
            self.items.append(Item(appended.base_offset, -1, key, value))
            return
        batch = encode_batch(
            [record],
            producer_id=producer_id,
            producer_epoch=known.epoch,
            base_sequence=known.sequence,
            transactional=True,
        )
        appended = append(self.log, batch)
        assert appended == (self.end, self.end, False)
        self.items.append(Item(self.end, producer_id, key, value, transactional=True, epoch=known.epoch))

    @rule(producer_id=st.sampled_from(PRODUCERS), committed=st.booleans(), bumped=st.booleans())
    def mark(self, producer_id: int, committed: bool, bumped: bool) -> None:
        epoch = self.producer(producer_id).epoch + bumped
        batch = memoryview(
            encode_marker(
                committed=committed,
                producer_id=producer_id,
                producer_epoch=epoch,
                coordinator_epoch=self.coordinator_epoch,
                timestamp=self.store.clock.now_ms(),
            )
        )
        self.log.append(batch, read_header(batch), 0, Origin.COORDINATOR, bumped=bumped)
        self.items.append(Item(self.end, producer_id, "", "", transactional=True, marker=committed, epoch=epoch))

    @rule()
    def next_coordinator(self) -> None:
        self.coordinator_epoch += 1

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        sync(self.log)
        self.high_watermark = data.draw(st.integers(self.high_watermark, self.end))

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()
        self.store.manager.delete_files(self.store.clock.now_ms())

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(max(self.high_watermark, self.start), self.end))
        self.log.truncate_to(offset)
        self._lose_from(offset)

    def _lose_from(self, offset: int) -> None:
        self.items = [item for item in self.items if item.offset < offset]

    @rule(hours=st.integers(0, 100))
    def clean(self, hours: int) -> None:
        self.store.clock.advance(hours * 1000)
        plan = compaction.plan(
            self.store.disk, self.log, now_ms=self.store.clock.now_ms(), last_stable_offset=self._stable()
        )
        if plan is not None:
            assert compaction.swap(compaction.rewrite(plan), self.log)

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, max(self.start, self.high_watermark)))
        self.log.advance_start(offset)
        self.start = offset

    @rule()
    def restart(self) -> None:
        self.store.restart()

    @rule()
    def kill(self) -> None:
        self.store.kill()

    @rule(seed=st.integers(0, 2**32))
    def crash(self, seed: int) -> None:
        log = self.store.crash(random.Random(seed))
        assert log.offline is None, log.offline
        self._lose_from(log.log_end_offset)
        self.high_watermark = min(self.high_watermark, self.end)

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """Flip a byte of an index of aborted transactions, or of a snapshot, or let it be gone, while stopped."""
        self.store.manager.close({})
        disk = self.store.disk
        paths = sorted(path for path in disk.paths() if path.endswith((".txnindex", ".snapshot")))
        if paths:
            path = data.draw(st.sampled_from(paths))
            content = bytearray(disk.read(path))
            disk.unlink(path)
            if content and data.draw(st.booleans()):
                content[data.draw(st.integers(0, len(content) - 1))] ^= 0x10
                disk.write(path, bytes(content))
        self.store.start()

    # What must hold

    def _stable(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def _decided(self, item: Item) -> bool | None:
        """Whether a record was committed; None while its transaction is open."""
        if not item.transactional:
            return True
        ends = (i for i in self.items if i.offset > item.offset and i.producer_id == item.producer_id)
        return next((end.marker for end in ends if end.marker is not None), None)

    def _is_undecided(self, item: Item, *, below: int) -> bool:
        ends = (i for i in self.items if below > i.offset > item.offset and i.producer_id == item.producer_id)
        return item.transactional and item.marker is None and all(end.marker is None for end in ends)

    @invariant()
    def stable_up_to_the_first_open_transaction(self) -> None:
        high_watermark = self.high_watermark
        strict = [item.offset for item in self.items if self._is_undecided(item, below=high_watermark)]
        here = [
            item.offset
            for item in self.items
            if item.offset >= self.log.log_start_offset and self._is_undecided(item, below=self.end)
        ]
        least = max(min([*strict, high_watermark]), self.log.log_start_offset)
        assert min(least, high_watermark) <= self._stable() <= min([*here, high_watermark])

    @invariant()
    def readers_get_what_was_committed(self) -> None:
        stable, start = self._stable(), self.log.log_start_offset
        committed = {
            item.offset: (item.key, item.value)
            for item in self.items
            if item.marker is None and start <= item.offset < stable and self._decided(item)
        }
        found = read_committed(self.log, stable)
        assert found.items() <= committed.items()
        superseding = {key: offset for offset, (key, _) in committed.items()}
        lost = [offset for offset in committed if offset not in found and offset == superseding[committed[offset][0]]]
        assert not lost

    @invariant()
    def open_transactions_are_known(self) -> None:
        for producer_id in PRODUCERS:
            state = self.log.producers().get(producer_id)
            first = self.producer(producer_id).first_offset
            if first is not None and first >= self.log.log_start_offset:
                assert state is not None
                assert state.transaction_first_offset == first
            elif first is None:
                assert state is None or state.transaction_first_offset < 0


def read_committed(log: Log, end: int) -> dict[int, tuple[str, str]]:
    """What a consumer shows: it drops a producer's batches from where a listed transaction begins to its marker."""
    found: dict[int, tuple[str, str]] = {}
    offset = log.log_start_offset
    while offset < end:
        piece = log.read(offset, 300, end)
        if piece is None:
            return found
        aborted = sorted(log.aborted_within(offset, piece, end), key=lambda entry: entry.first_offset)
        dropping: set[int] = set()
        for header, batch in batches_of(piece.file.pread(piece.length, piece.position)):
            while aborted and aborted[0].first_offset <= header.last_offset:
                dropping.add(aborted.pop(0).producer_id)
            _take(header, batch, dropping, found)
            offset = header.last_offset + 1
    return {at: record for at, record in found.items() if at >= log.log_start_offset}


def _take(header: BatchHeader, batch: bytes, dropping: set[int], found: dict[int, tuple[str, str]]) -> None:
    if header.is_control:
        marker = decode_marker(batch)
        if marker is not None and not marker.committed:
            dropping.discard(header.producer_id)
    elif not (header.is_transactional and header.producer_id in dropping):
        for record in decode_records(batch):
            assert record.key is not None
            assert record.value is not None
            found[record.offset] = (record.key.decode(), record.value.decode())


TestTransactionsAgainstModel = TransactionsAgainstModel.TestCase
TestTransactionsAgainstModel.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
