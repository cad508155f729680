"""The columnar client's kernels on one core, without a broker: fetched bytes to Arrow and back, and rows to partitions.

The ceiling of decoding and encoding is to look at each byte once for its CRC and to copy it once.
"""

import cProfile
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from headrace.protocol.batch import HEADER_SIZE, stamp
from headrace.protocol.compression import CODECS, unpack

from .model import CPU, Aim, Figure, Measure, Of, Sample, Work
from .setting import Setting

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS: Final = 400_000
_VALUE_SIZE: Final = 100
_DISTINCT: Final = 1 << 16
"""Bytes that values are cut from, so that they compress about as well as JSON does."""
_PARTITIONS: Final = 12
_ALL: Final = 2**62


def _rows() -> "pa.RecordBatch":
    import numpy as np
    import pyarrow as pa

    random = np.random.default_rng(1)
    words = random.integers(0, 256, _DISTINCT, dtype=np.uint8)
    starts = random.integers(0, _DISTINCT - _VALUE_SIZE // 4, _ROWS * 4)
    data = words[starts[:, None] + np.arange(_VALUE_SIZE // 4)].ravel()
    offsets = np.arange(_ROWS + 1, dtype=np.int32) * _VALUE_SIZE
    values = pa.Array.from_buffers(pa.binary(), _ROWS, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    keys = pa.array([b"key-%d" % n for n in range(_ROWS)])
    times = pa.array(np.arange(_ROWS) * 1000 + 1_700_000_000_000_000, pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([keys, values, times], names=["key", "value", "timestamp"])


def _batches(compression: str) -> list[memoryview]:
    from headrace.client.columnar.encode import encode_rows, seal_for

    batches: list[memoryview] = []
    offset = 0
    for batch in encode_rows(_rows(), compression=compression, now_ms=0):
        seal_for(batch, -1, -1, -1, transactional=False)
        stamp(batch.data, offset, 0)
        offset += batch.count
        batches.append(batch.data)
    return batches


def _rate(setting: Setting, work: Callable[[], object]) -> Sample:
    """Rows per second and processor time per row, of a work done again and again."""
    work()
    profiler = cProfile.Profile() if setting.profile is not None else None
    if profiler is not None:
        profiler.enable()
    count, start, before = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() < start + setting.seconds:
        work()
        count += _ROWS
    seconds, cpu = time.perf_counter() - start, time.process_time() - before
    if profiler is not None and setting.profile is not None:
        profiler.disable()
        profiler.dump_stats(setting.profile)
    return {"records": count / seconds, CPU: cpu / count * 1e9}


def decode(setting: Setting, *, compression: str) -> Sample:
    """Fetched bytes to Arrow."""
    from headrace.client.columnar.decode import FetchDecoder

    fetched = b"".join(_batches(compression))
    decoder = FetchDecoder("bench", 0, with_headers=False)
    return _rate(setting, lambda: decoder.decode(fetched, 0, _ALL))


def encode(setting: Setting, *, compression: str) -> Sample:
    """Arrow to sealed record batches."""
    from headrace.client.columnar.encode import encode_rows, seal_for

    rows = _rows()

    def work() -> None:
        for batch in encode_rows(rows, compression=compression, now_ms=0):
            seal_for(batch, 1, 0, 0, transactional=False)

    return _rate(setting, work)


def partition(setting: Setting) -> Sample:
    """Rows to the partitions of their keys."""
    from headrace.client.columnar.hashing import partitions_of, split_by_partition

    rows = _rows()
    keys = rows.column("key")
    return _rate(setting, lambda: split_by_partition(rows, partitions_of(keys, _PARTITIONS, 0), _PARTITIONS))


def _copy_and_crc(setting: Setting) -> Sample:
    batches = _batches("none")
    room = bytearray(max(map(len, batches)))

    def work() -> None:
        for batch in batches:
            crc32c(batch)
            room[: len(batch)] = batch

    return _rate(setting, work)


def _decompress(setting: Setting, *, compression: str) -> Sample:
    batches = _batches(compression)
    codec, size = CODECS[compression], max(map(len, _batches("none")))
    room = bytearray(size)

    def work() -> None:
        for batch in batches:
            unpack(codec, batch[HEADER_SIZE:], size, guess=size, allocate=lambda _: room)

    return _rate(setting, work)


def _work(
    name: str,
    title: str,
    measure: Measure,
    *,
    aim: float | None = None,
    ceiling: Measure | None = None,
    against: str = "",
) -> Work:
    bound = None if aim is None else Aim(of=Of.VALUE, bound=aim, at_least=True)
    return Work(
        name=f"kernel-{name}",
        title=f"columnar kernels: {title}",
        against=against,
        figures=(Figure(key="records", label="", unit="records/s", aim=bound),),
        broker=measure,
        ceiling=ceiling,
        cpu_unit="ns/record",
    )


def works() -> list[Work]:
    once = "each byte looked at once for its CRC and copied once"
    return [
        _work(
            "decode",
            "decode, 100-byte values",
            partial(decode, compression="none"),
            aim=12e6,
            ceiling=_copy_and_crc,
            against=once,
        ),
        _work(
            "decode-zstd",
            "decode, 100-byte values, zstd",
            partial(decode, compression="zstd"),
            ceiling=partial(_decompress, compression="zstd"),
            against="decompressed, and nothing else",
        ),
        _work(
            "encode",
            "encode, 100-byte values",
            partial(encode, compression="none"),
            aim=8e6,
            ceiling=_copy_and_crc,
            against=once,
        ),
        _work("partition", "rows to partitions, 100-byte values", partition, aim=8e6),
    ]
