"""Recovery with compiled code finds what recovery in Python finds, whatever is in the log."""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernels import native
from headrace.protocol.batch import BatchHeader, stamp
from headrace.protocol.records import Record, encode_batch, encode_marker
from headrace.storage import plain, recovery
from headrace.storage.recovery import Expected, LogState, open_log
from headrace.storage.scan import BLOCK, scan
from headrace.storage.settings import LogSettings
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk
from tests.support.storage import DIRECTORY

SETTINGS = LogSettings(index_interval_bytes=300)
FIRST = f"{DIRECTORY}/{0:020d}.log"


def recovered(log: bytes, function: native.Function | None, expected: Expected, log_settings: LogSettings) -> LogState:
    disk = SimulatedDisk()
    disk.mkdir(DIRECTORY)
    disk.create(FIRST).append(log)
    plain.use_compiled(function)
    try:
        return open_log(disk, SimulatedClock(), DIRECTORY, log_settings, expected)
    finally:
        plain.use_compiled(None)


def facts(state: LogState) -> dict[str, Any]:
    """All that is known of a log, but for what only makes looking into it faster."""
    (segment,) = state.segments
    if state.offline is not None:
        return {"offline": (state.offline, state.findings, state.log_end_offset)}
    assert state.producers is not None or not segment.size
    some_offsets = range(0, segment.next_offset + 2, segment.next_offset // 20 + 1)
    return {
        "end": (state.log_end_offset, segment.size, segment.next_offset, state.findings),
        "index": (segment.index.offsets, segment.index.positions, segment.since_index),
        "times": (segment.times.timestamps, segment.times.offsets, segment.latest, segment.first_timestamp),
        "producers": None
        if state.producers is None
        else (state.producers.encode(), state.producers.first_open_offset()),
        "epochs": None if state.epochs is None else state.epochs.encode(),
        "positions": [segment.position_of(offset) for offset in some_offsets],
    }


def assert_same(
    walk: native.Function, log: bytes, expected: Expected | None = None, log_settings: LogSettings = SETTINGS
) -> LogState:
    expected = expected or Expected()
    fast = recovered(log, walk, expected, log_settings)
    assert facts(fast) == facts(recovered(log, None, expected, log_settings))
    return fast


def a_marker(producer_id: int) -> bytearray:
    return encode_marker(committed=True, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=1000)


def a_log(rng: random.Random, count: int, gaps: float = 0.0) -> bytearray:
    """Batches of few records: of producers and not, in transactions and not, of epochs that grow."""
    log, offset, epoch, sequences = bytearray(), 0, 0, dict[int, int]()
    for _ in range(count):
        offset += rng.randrange(1, 5) if rng.random() < gaps else 0
        epoch += rng.random() < 0.05
        size, producer = rng.randrange(1, 4), rng.choice((-1, -1, 5, 6))
        timestamp = rng.choice((-1, 1000, 1000 + offset, rng.randrange(5000)))
        items = [Record(0, timestamp, None, rng.randbytes(rng.randrange(60))) for _ in range(size)]
        if producer < 0:
            batch = encode_batch(items)
        elif rng.random() < 0.1:
            size, batch = 1, a_marker(producer)
        else:
            sequence = sequences.get(producer, 0)
            sequences[producer] = sequence + size
            batch = encode_batch(
                items,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=rng.random() < 0.3,
            )
        stamp(memoryview(batch), offset, epoch)
        log += batch
        offset += size
    return log


@settings(deadline=None, max_examples=100)
@given(
    st.integers(0, 1 << 32),
    st.integers(1, 60),
    st.sampled_from([0.0, 0.0, 0.1]),
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=2),
    st.integers(0, 200),
    st.integers(0, 40),
    st.sampled_from([BLOCK, 700]),
    st.booleans(),
)
def test_compiled_recovery_finds_what_python_finds(
    walk: native.Function,
    seed: int,
    count: int,
    gaps: float,
    damage: list[tuple[int, int]],
    cut: int,
    point: int,
    block: int,
    compacted: bool,
) -> None:
    log = a_log(random.Random(seed), count, gaps)
    for at, byte in damage:
        log[at % len(log)] = byte
    del log[max(len(log) - cut, 0) :]
    expected = Expected(recovery_point=point if point < 30 else 0, may_have_gaps=compacted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "scan", partial(scan, block=block))
        assert_same(walk, bytes(log), expected)


@pytest.mark.parametrize("part", [0, 8, 16, 17, 20, 23, 35, 43, 57, 61])
def test_a_batch_that_is_damaged_anywhere_ends_the_log_before_it(walk: native.Function, part: int) -> None:
    """But for the leader epoch, which the CRC does not cover: any may be right."""
    log = bytearray()
    for offset in range(200):
        batch = encode_batch([Record(0, 1000 + offset, None, b"value")])
        stamp(memoryview(batch), offset, 3)
        log += batch
    size = len(log) // 200
    for bit in range(8):
        damaged = bytearray(log)
        damaged[150 * size + part] ^= 1 << bit
        state = assert_same(walk, bytes(damaged))
        assert state.log_end_offset == 150
        assert len(state.findings) == 1


def test_plain_batches_are_not_looked_at_one_by_one(walk: native.Function, monkeypatch: pytest.MonkeyPatch) -> None:
    log = bytearray()
    for offset in range(5000):
        batch = encode_batch([Record(0, 1000 + offset, None, b"value")])
        stamp(memoryview(batch), offset, 3)
        log += batch
    taken: list[int] = []
    take = recovery._Tail.take

    def counted(tail: recovery._Tail, position: int, header: BatchHeader) -> None:
        taken.append(position)
        take(tail, position, header)

    monkeypatch.setattr(recovery._Tail, "take", counted)
    state = recovered(bytes(log), walk, Expected(), SETTINGS)
    assert (state.log_end_offset, len(taken)) == (5000, 1)


@pytest.mark.parametrize("interval", [0, 1, 100_000])
def test_index_entries_are_where_python_puts_them(walk: native.Function, interval: int) -> None:
    """An entry for each batch is more than the compiled code notes at once."""
    log = a_log(random.Random(1), 1500)
    state = assert_same(walk, bytes(log), log_settings=replace(SETTINGS, index_interval_bytes=interval))
    assert (len(state.segments[0].index) > 1300) == (interval < 100)
