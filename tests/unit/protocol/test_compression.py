"""Codecs: what Java clients write is read, what we write they can read, and a bomb does not go off."""

import gzip
import resource

import cramjam
import pytest

from headrace.protocol import compression
from headrace.protocol.compression import CODECS, compress, decompress
from headrace.protocol.errors import CodedError, ErrorCode

DATA = b"".join(b"line %d of something that compresses\n" % number for number in range(5000))


@pytest.mark.parametrize("codec", CODECS.values())
@pytest.mark.parametrize("data", [b"", b"x", DATA, bytes(3 << 20)])
def test_what_is_compressed_is_decompressed(codec: int, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, bytearray(data)))) == data


def test_raw_and_framed_snappy_are_both_read() -> None:
    assert decompress(compression.SNAPPY, bytes(cramjam.snappy.compress_raw(DATA))) == DATA
    framed = compress(compression.SNAPPY, DATA)
    assert framed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")


def test_lz4_frames_have_independent_blocks_as_java_demands() -> None:
    frame = compress(compression.LZ4, DATA)
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0b0010_0000
    assert not frame[4] & 0b0000_0100


def test_linked_lz4_blocks_are_read() -> None:
    assert decompress(compression.LZ4, bytes(cramjam.lz4.compress(DATA))) == DATA


def test_gzip_of_others_is_read() -> None:
    assert decompress(compression.GZIP, gzip.compress(DATA)) == DATA


@pytest.mark.parametrize("codec", CODECS.values())
def test_the_limit_is_exact(codec: int) -> None:
    packed = compress(codec, DATA)
    assert decompress(codec, packed, len(DATA)) == DATA
    with pytest.raises(CodedError) as caught:
        decompress(codec, packed, len(DATA) - 1)
    assert caught.value.code is ErrorCode.corrupt_message
    assert str(len(DATA) - 1) in caught.value.message


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_damage_is_a_coded_error(codec: int) -> None:
    packed = compress(codec, DATA)
    for cut in (1, 5, len(packed) // 2, len(packed) - 1):
        with pytest.raises(CodedError) as caught:
            decompress(codec, packed[:cut])
        assert caught.value.code is ErrorCode.corrupt_message
    with pytest.raises(CodedError):
        decompress(codec, b"\xff" * 100)


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(CodedError, match="no compression codec 7") as caught:
        decompress(7, b"")
    assert caught.value.code is ErrorCode.unsupported_compression_type


def bomb(codec: int) -> bytes:
    """Hundreds of MiB of zeros, made without ever holding them."""
    block = bytes(16 << 20)
    if codec == compression.SNAPPY:
        framed = compress(codec, block)
        return framed + framed[16:] * 19
    return compress(codec, block) * 20


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_bomb_takes_little_memory(codec: int) -> None:
    packed = bomb(codec)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CodedError):
        decompress(codec, packed)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def framed(codec: int, data: bytes) -> list[bytes]:
    """The data as different writers compress it."""
    if codec == compression.GZIP:
        return [compress(codec, data), gzip.compress(data), gzip.compress(data, 0)]
    if codec != compression.LZ4:
        return [compress(codec, data)]
    found = [compress(codec, data)]
    for options in (
        {"content_checksum": True},
        {"block_linked": True},
        {"content_checksum": True, "block_linked": True},
    ):
        compressor = cramjam.lz4.Compressor(9, **options)
        compressor.compress(data)
        found.append(bytes(compressor.finish()))
    return [*found, bytes(cramjam.lz4.compress(data))]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("data", [b"x", DATA, bytes(3 << 20)])
def test_what_clients_write_is_one_frame(codec: int, data: bytes) -> None:
    for packed in framed(codec, data):
        assert compression.is_one_frame(codec, memoryview(packed), len(data))


@pytest.mark.parametrize("codec", [compression.GZIP, compression.LZ4])
@pytest.mark.parametrize("parts", [(b"a", b"b"), (b"", DATA), (DATA, b""), (b"", b"", b"x"), (b"ab", b"ab")])
def test_data_in_several_frames_is_not(codec: int, parts: tuple[bytes, ...]) -> None:
    for each in zip(*(framed(codec, part) for part in parts), strict=True):
        packed = b"".join(each)
        assert decompress(codec, packed) == b"".join(parts)
        assert not compression.is_one_frame(codec, memoryview(packed), sum(map(len, parts)))


@pytest.mark.parametrize("version", [b"\0\0\0\0\0\0\0\0", b"\0\0\0\x02\0\0\0\x01", b"\xff" * 8])
def test_snappy_in_a_framing_that_not_all_know_is_refused(version: bytes) -> None:
    packed = compress(compression.SNAPPY, DATA)
    assert compression.announced_size(compression.SNAPPY, memoryview(packed)) == len(DATA)
    with pytest.raises(CodedError, match="version"):
        compression.announced_size(compression.SNAPPY, memoryview(packed[:8] + version + packed[16:]))
