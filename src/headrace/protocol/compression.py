"""The five codecs of a record batch: none, gzip, snappy, lz4, zstd.

Decompression writes into a buffer of a known size, so that a bomb fails when the buffer is full instead of
filling the memory. The buffer starts near the size of its input and grows by `_GROWTH` up to the caller's limit.

What Java writes is what we write: snappy in the framing of xerial's snappy-java, lz4 in frames of independent
blocks without a content checksum (Java's reader refuses linked blocks).
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final
from zlib import decompressobj

import cramjam

from .errors import CodedError, ErrorCode

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
CODECS: Final = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
"""Codec ids by the names that `compression.type` has."""

DECOMPRESSED_LIMIT: Final = 32 << 20
"""What a batch may decompress to when the caller knows no better."""

_FIRST_BUFFER: Final = 64 << 10
_GROWTH: Final = 4
_BUFFER_IS_FULL: Final = "failed to write whole buffer"

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD: Final = _XERIAL_MAGIC + Struct(">ii").pack(1, 1)
_XERIAL_BLOCK: Final = 32 << 10
_LENGTH: Final = Struct(">i")

_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_GZIP_SMALLEST: Final = 18
_GZIP_WINDOW: Final = 31
"""zlib's word for the largest window, and gzip's head before the data."""
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_SMALLEST: Final = 11
_LZ4_VERSION: Final = 0x40
_LZ4_SIZE_BIT: Final = 0x08
_LZ4_DICTIONARY_BIT: Final = 0x01
_LZ4_CHECKSUM_BIT: Final = 0x04
_LZ4_BLOCK_CHECKSUM_BIT: Final = 0x10
_LZ4_UNCOMPRESSED_BIT: Final = 1 << 31
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SMALLEST: Final = 9
_ZSTD_RESERVED_BIT: Final = 0x08
_ZSTD_DICTIONARY_SIZES: Final = (0, 1, 2, 4)
_ZSTD_CONTENT_SIZES: Final = (0, 2, 4, 8)

_LARGEST_RATIO: Final = {GZIP: 1032, SNAPPY: 22, LZ4: 255, ZSTD: 1 << 15}
"""What a byte of each codec can stand for at the most, by its format."""

Buffer = bytes | bytearray | memoryview
_Allocate = Callable[[int], bytearray | memoryview]


class TooLarge(CodedError):
    """There is more in a batch than its reader wants to hold; others may read it."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """The data as a Kafka client of that codec expects it."""
    if codec == NONE:
        return bytes(data)
    compressor = _COMPRESSORS.get(codec)
    if compressor is None:
        raise _unknown(codec)
    return compressor(data, level)


def decompress(codec: int, data: Buffer, limit: int = DECOMPRESSED_LIMIT) -> bytes:
    """What was compressed; `CodedError` when it is damaged or has more than `limit` bytes."""
    return bytes(unpack(codec, data, limit))


def unpack(
    codec: int,
    data: Buffer,
    limit: int = DECOMPRESSED_LIMIT,
    *,
    guess: int = 0,
    allocate: _Allocate = bytearray,
) -> memoryview:
    """As `decompress`, in memory that `allocate` gave for a size. A good `guess` at the size saves work done twice."""
    if codec == NONE:
        if len(data) > limit:
            raise _too_large(limit)
        return memoryview(data)
    if codec == SNAPPY:
        return _unpack_snappy(memoryview(data), limit, allocate)
    decompressor = _DECOMPRESSORS.get(codec)
    if decompressor is None:
        raise _unknown(codec)
    return _unpack_growing(decompressor, data, limit, guess or len(data) * _GROWTH, allocate)


def announced_size(codec: int, data: memoryview) -> int | None:
    """The decompressed size as the stream's frame gives it, None where it gives none; the stream itself is not read.

    `CodedError` when the data does not begin with a frame of this codec, or announces more than there can be in it.
    Where gzip or zstd data has several members or frames, it is the size of one of them.
    """
    reader = _ANNOUNCED.get(codec)
    if reader is None:
        raise _unknown(codec)
    size = reader(data)
    if size is not None and size > len(data) * _LARGEST_RATIO[codec]:
        raise _damaged(f"there cannot be {size} bytes in {len(data)}")
    return size


def is_one_frame(codec: int, data: memoryview, size: int) -> bool:
    """Whether compressed data, of which the decompressed size is known, is one gzip member, or one lz4 frame.

    librdkafka reads the first alone, and ends its process where that is empty. Of the other codecs it reads all.
    """
    if codec == GZIP:
        # The last member has everything, so that others are empty; then the first, which is not, is the last.
        return _announced_gzip(data) == size & 0xFFFFFFFF and bool(decompressobj(_GZIP_WINDOW).decompress(data, 1))
    return codec != LZ4 or _lz4_frame_size(data) == len(data)


def _lz4_frame_size(data: memoryview) -> int:
    """Bytes of the first frame: a head, blocks with their sizes, a size of 0, and checksums where the head says so."""
    flags = data[4]
    at = 7 + (8 if flags & _LZ4_SIZE_BIT else 0) + (4 if flags & _LZ4_DICTIONARY_BIT else 0)
    after_block = 4 if flags & _LZ4_BLOCK_CHECKSUM_BIT else 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little") & ~_LZ4_UNCOMPRESSED_BIT
        at += 4
        if not size:
            break
        at += size + after_block
    return at + (4 if flags & _LZ4_CHECKSUM_BIT else 0)


def _announced_gzip(data: memoryview) -> int | None:
    if len(data) < _GZIP_SMALLEST or bytes(data[:3]) != _GZIP_MAGIC:
        raise _damaged("it is no gzip stream")
    return int.from_bytes(data[-4:], "little")


def _announced_snappy(data: memoryview) -> int | None:
    if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC and bytes(data[: len(_XERIAL_HEAD)]) != _XERIAL_HEAD:
        raise _damaged("not every reader knows this version of snappy's framing")
    try:
        return sum(int(cramjam.snappy.decompress_raw_len(block)) for block in _snappy_blocks(data))
    except cramjam.DecompressionError as error:
        raise _damaged(error) from error


def _announced_lz4(data: memoryview) -> int | None:
    if len(data) < _LZ4_SMALLEST or bytes(data[:4]) != _LZ4_MAGIC or data[4] & 0xC0 != _LZ4_VERSION:
        raise _damaged("it is no lz4 frame")
    return int.from_bytes(data[6:14], "little") if data[4] & _LZ4_SIZE_BIT else None


def _announced_zstd(data: memoryview) -> int | None:
    if len(data) < _ZSTD_SMALLEST or bytes(data[:4]) != _ZSTD_MAGIC or data[4] & _ZSTD_RESERVED_BIT:
        raise _damaged("it is no zstd frame")
    single, kind = data[4] >> 5 & 1, data[4] >> 6
    start = 6 - single + _ZSTD_DICTIONARY_SIZES[data[4] & 3]
    if not kind:
        return data[start] if single else None
    size = int.from_bytes(data[start : start + _ZSTD_CONTENT_SIZES[kind]], "little")
    return size + 256 if kind == 1 else size


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.gzip.compress(data, level))


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level))


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    compressor = cramjam.lz4.Compressor(level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _compress_snappy(data: Buffer, level: int | None) -> bytes:  # noqa: ARG001 - snappy has no levels
    view = memoryview(data)
    out = bytearray(_XERIAL_HEAD)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out += _LENGTH.pack(len(block))
        out += block
    return bytes(out)


def _unpack_growing(
    decompress_into: Callable[[Any, Any], int], data: Buffer, limit: int, guess: int, allocate: _Allocate
) -> memoryview:
    size = min(limit, max(_FIRST_BUFFER, guess))
    while True:
        out = memoryview(allocate(size))[:size]
        try:
            length = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if _BUFFER_IS_FULL not in str(error):
                raise _damaged(error) from error
        else:
            return out[:length]
        del out
        if size >= limit:
            raise _too_large(limit)
        size = min(limit, size * _GROWTH)


def _unpack_snappy(data: memoryview, limit: int, allocate: _Allocate) -> memoryview:
    blocks = _snappy_blocks(data)
    try:
        sizes = [int(cramjam.snappy.decompress_raw_len(block)) for block in blocks]
        total = sum(sizes)
        if total > limit:
            raise _too_large(limit)
        out = memoryview(allocate(total))[:total]
        position = 0
        for block, size in zip(blocks, sizes, strict=True):
            cramjam.snappy.decompress_raw_into(block, out[position : position + size])
            position += size
    except cramjam.DecompressionError as error:
        raise _damaged(error) from error
    return out


def _snappy_blocks(data: memoryview) -> list[memoryview]:
    return _xerial_blocks(data) if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC else [data]


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks: list[memoryview] = []
    position = len(_XERIAL_HEAD)
    while position < len(data):
        if position + 4 > len(data):
            raise _damaged("a snappy block is cut short")
        (length,) = _LENGTH.unpack_from(data, position)
        position += 4
        if length <= 0 or position + length > len(data):
            raise _damaged("a snappy block is cut short")
        blocks.append(data[position : position + length])
        position += length
    return blocks


def _unknown(codec: int) -> CodedError:
    return CodedError(ErrorCode.unsupported_compression_type, f"there is no compression codec {codec}")


def _damaged(reason: object) -> CodedError:
    return CodedError(ErrorCode.corrupt_message, f"the batch cannot be decompressed: {reason}")


def _too_large(limit: int) -> CodedError:
    return TooLarge(ErrorCode.corrupt_message, f"the batch decompresses to more than {limit} bytes")


_COMPRESSORS: Final[dict[int, Callable[[Buffer, int | None], bytes]]] = {
    GZIP: _compress_gzip,
    SNAPPY: _compress_snappy,
    LZ4: _compress_lz4,
    ZSTD: _compress_zstd,
}
_DECOMPRESSORS: Final[dict[int, Callable[[Any, Any], int]]] = {
    GZIP: cramjam.gzip.decompress_into,
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}
_ANNOUNCED: Final[dict[int, Callable[[memoryview], int | None]]] = {
    GZIP: _announced_gzip,
    SNAPPY: _announced_snappy,
    LZ4: _announced_lz4,
    ZSTD: _announced_zstd,
}
