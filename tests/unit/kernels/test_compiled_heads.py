"""The compiled walk over the heads of batches: it says what its source says, and reads no byte too far."""

from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernels import build, heads, native, trials
from headrace.protocol.batch import stamp
from headrace.protocol.records import Record, encode_batch
from tests.support.kernels import Fenced


@pytest.fixture(scope="module")
def function() -> native.Function:
    return native.run(build.compiled(native.HEADS), releases_gil=True)


def said(function: native.Function, data: bytes, values: dict[int, int]) -> tuple[int, bytes]:
    state, fenced = trials.heads_state(data, values), Fenced(data)
    return function(fenced.address, state.buffer_info()[0]), state.tobytes()


def source_says(data: bytes, values: dict[int, int]) -> tuple[int, bytes]:
    state = trials.heads_state(data, values)
    return heads.walk(data, state), state.tobytes()


@given(st.binary(max_size=300))
def test_the_checksum_is_crc32c(data: bytes) -> None:
    assert heads.crc32c(data, trials.heads_state(data, {}), 0, len(data)) == crc32c(data)


@settings(deadline=None)
@given(st.randoms(use_true_random=False))
def test_compiled_code_and_its_source_agree_on_batches(function: native.Function, random: Random) -> None:
    for data, state in trials.logs(random):
        values = dict(enumerate(state[: heads.ENTRY_OFFSETS]))
        assert said(function, data, values) == source_says(data, values)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=200), st.integers(0, 150))
def test_they_agree_on_any_bytes(function: native.Function, data: bytes, at: int) -> None:
    values = {heads.AT: min(at, len(data))}
    assert said(function, data, values) == source_says(data, values)


def plain_log(count: int) -> bytearray:
    log = bytearray()
    for offset in range(count):
        batch = encode_batch([Record(0, 1000 + offset, None, b"value" * 9)], producer_id=4, base_sequence=offset)
        stamp(memoryview(batch), offset, 0)
        log += batch
    return log


def test_all_plain_batches_are_passed_over(function: native.Function) -> None:
    log = plain_log(300)
    status, _ = said(function, bytes(log), {heads.INTERVAL: 500, heads.LAST_TIME: -1})
    assert status == 300
    assert said(function, bytes(log), {}) == source_says(bytes(log), {})


def test_no_more_is_noted_than_there_is_room_for(function: native.Function) -> None:
    log = plain_log(heads.PRODUCED_ROOM + 10)
    assert said(function, bytes(log), {heads.INTERVAL: 1 << 30})[0] == heads.PRODUCED_ROOM
    assert said(function, bytes(log), {heads.INTERVAL: 0})[0] == heads.ENTRY_ROOM + 1


def test_each_changed_byte_but_of_the_leader_epoch_stops_the_walk(function: native.Function) -> None:
    log = plain_log(3)
    size = len(log) // 3
    for at in range(size, 2 * size):
        log[at] ^= 1
        assert said(function, bytes(log), {})[0] == 1
        assert said(function, bytes(log), {}) == source_says(bytes(log), {})
        log[at] ^= 1
