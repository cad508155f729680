"""`python -m tests.unit.columnar.guarded FIRST LAST`: hostile bytes decoded in memory whose ends are guarded.

Every buffer that a kernel reads or writes ends right before a page that may not be touched, so that one byte too many
kills the process. Each number from FIRST to LAST is the seed of one fetch that was spoiled in a few places.
"""

import ctypes
import mmap
import random
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.client.columnar import _fill, _heads, _memory, _outputs
from headrace.client.errors import ClientError
from headrace.protocol.records import Record

from .batches import a_decoder, batch, joined

_PAGE = mmap.PAGESIZE
_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded_array(length: int, kind: Any) -> npt.NDArray[Any]:
    """As `pool_array`, but what follows it may not be touched."""
    kind = np.dtype(kind)
    size = max(length, 1) * kind.itemsize
    pages = (size + _PAGE - 1) // _PAGE
    memory = np.frombuffer(mmap.mmap(-1, (pages + 1) * _PAGE), np.uint8)
    guard = memory.ctypes.data + pages * _PAGE
    if _libc.mprotect(guard, _PAGE, _PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")
    return memory[pages * _PAGE - size : pages * _PAGE].view(kind)


def guarded_bytes(data: bytes) -> memoryview:
    array = guarded_array(len(data), np.uint8)
    array[:] = np.frombuffer(data, np.uint8)
    return array.data


def a_fetch(seed: random.Random) -> bytes:
    """Some batches, some of them compressed, spoiled in a few places."""
    batches: list[bytearray] = []
    offset = 0
    for _ in range(seed.randint(1, 4)):
        records = [_a_record(seed, offset + n) for n in range(seed.randint(1, 6))]
        offset += len(records)
        batches.append(batch(records, codec=seed.choice([0, 0, 0, 1, 2, 3, 4])))
    fetched = bytearray(joined(batches))
    for _ in range(seed.randint(0, 4)):
        fetched[seed.randrange(len(fetched))] = seed.choice([0, 1, 0x7F, 0x80, 0xFF, seed.randrange(256)])
    return bytes(fetched[: seed.choice([len(fetched), len(fetched), seed.randint(0, len(fetched))])])


def _a_record(seed: random.Random, offset: int) -> Record:
    def some() -> bytes | None:
        return seed.choice([None, seed.randbytes(seed.choice([0, 1, 5, 63, 64, 200]))])

    headers = tuple((seed.choice("aé") * seed.randint(0, 3), some()) for _ in range(seed.choice([0, 0, 1, 3])))
    return Record(offset, seed.randint(-1, 2**42), some(), some(), headers)


def main(first: int, last: int) -> None:
    """Decode the fetches of these seeds; prints how many gave rows and how many an error."""
    for module in (_memory, _outputs, _heads, _fill):
        module.pool_array = guarded_array  # type: ignore[attr-defined]
    good = bad = 0
    decoders = [a_decoder(check_crcs=False), a_decoder(check_crcs=False, with_headers=False)]
    for number in range(first, last):
        seed = random.Random(number)
        fetched = a_fetch(seed)
        start = seed.choice([0, 0, 3])
        for decoder in decoders:
            try:
                rows, _ = decoder.decode(guarded_bytes(fetched or b"\0"), start, start + seed.choice([4, 2**60]))
            except ClientError:
                bad += 1
            else:
                good += 1
                if rows is not None:
                    rows.validate(full=True)
    print(good, bad)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
