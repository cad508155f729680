"""The fields that the coordinators' records are made of, read and written.

Kafka has two ways to write a length: plain, an int16 before a text and an int32 before bytes and arrays, where -1 is
null; and compact, an unsigned varint of the length and one, where 0 is null. Keys are plain. Values begin with their
version, and from some version on they are compact and may end in tagged fields.

What is read may be damaged or hostile. A length is therefore checked against the bytes that are left before anything
is made of it, so that no record costs more than its own size, and whatever is wrong is a `BadRecord`.
"""

from collections.abc import Collection, Mapping
from struct import Struct, error, unpack
from typing import Final

from headrace.protocol.encode import write_uvarint

_I8: Final = Struct(">b")
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_I64: Final = Struct(">q")
_U64: Final = Struct(">Q")
_UVARINT_SHIFTS: Final = (0, 7, 14, 21, 28)
_LARGEST_UVARINT: Final = 2**32 - 1
LARGEST_TEXT: Final = 32_767
"""Bytes of the longest text with a plain length."""
LONGEST_ID: Final = 4_096
"""Characters of the longest group id or transactional id: to find its partition takes 0.06 ms, of 32 KiB a whole."""


class BadRecord(Exception):
    """Bytes, of a record of an internal topic or inside one, that are not what their format says."""


class FieldReader:
    """A walk over the fields of a key, a value or a part of one, from the front; `BadRecord` where they end early."""

    __slots__ = ("_at", "_compact", "_data")

    def __init__(self, data: bytes, at: int = 0, *, compact: bool = False) -> None:
        self._data = data
        self._at = at
        self._compact = compact

    @property
    def is_done(self) -> bool:
        return self._at >= len(self._data)

    def version(self, newest: int, first_compact: int) -> int:
        """The version that a value begins with; the lengths after it are read as that version writes them."""
        version = self.i16()
        if not 0 <= version <= newest:
            raise BadRecord(f"a value of version {version}; the newest known is {newest}")
        self._compact = version >= first_compact
        return version

    # Numbers

    def i8(self) -> int:
        return self.fixed(_I8)[0]

    def i16(self) -> int:
        return self.fixed(_I16)[0]

    def i32(self) -> int:
        return self.fixed(_I32)[0]

    def i64(self) -> int:
        return self.fixed(_I64)[0]

    def u64(self) -> int:
        return self.fixed(_U64)[0]

    def fixed(self, kind: Struct) -> tuple[int, ...]:
        """Several numbers at once."""
        try:
            values: tuple[int, ...] = kind.unpack_from(self._data, self._at)
        except error:
            raise self._too_short(kind.size) from None
        self._at += kind.size
        return values

    def uvarint(self) -> int:
        """An unsigned number of up to 32 bits, in up to five bytes."""
        value = 0
        for shift in _UVARINT_SHIFTS:
            if self._at >= len(self._data):
                raise self._too_short(1)
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and value <= _LARGEST_UVARINT:
                return value
        raise BadRecord(f"the varint before byte {self._at} has more than 32 bits")

    # What has a length

    def text(self) -> str:
        found = self.nullable_text()
        if found is None:
            raise BadRecord(f"the text before byte {self._at} is null")
        return found

    def nullable_text(self) -> str | None:
        size = self._size(_I16)
        if size < 0:
            return None
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise BadRecord(f"the text before byte {self._at} is not UTF-8") from None

    def data(self) -> bytes:
        """Bytes; none where they are null."""
        return self.take(max(self._size(_I32), 0))

    def count(self) -> int:
        """How many entries an array has, each of at least a byte; 0 where it is null."""
        return self._within(max(self._size(_I32), 0))

    def i32s(self) -> tuple[int, ...]:
        """An array of int32."""
        count = self.count()
        return unpack(f">{count}i", self.take(4 * count))

    def tags(self) -> dict[int, bytes]:
        """Tagged fields by their number; a plain version has none."""
        if not self._compact:
            return {}
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self._within(self.uvarint()))}

    def take(self, size: int) -> bytes:
        """The next bytes as they are."""
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise self._too_short(size)
        found = self._data[self._at : end]
        self._at = end
        return found

    def _size(self, plain: Struct) -> int:
        """A length; -1 is null."""
        size = self.uvarint() - 1 if self._compact else self.fixed(plain)[0]
        if size < -1:
            raise BadRecord(f"the length before byte {self._at} is {size}")
        return size

    def _within(self, count: int) -> int:
        if count > len(self._data) - self._at:
            raise BadRecord(f"{count} entries in the {len(self._data) - self._at} bytes that are left")
        return count

    def _too_short(self, size: int) -> BadRecord:
        return BadRecord(f"a field of {size} bytes at byte {self._at} of {len(self._data)}")


def key_kind(key: bytes) -> int:
    """The kind of a record: the number that its key begins with."""
    if len(key) < 2:
        raise BadRecord(f"a key of {len(key)} bytes")
    return key[0] << 8 | key[1]


# Writing


def plain_text(text: str) -> bytes:
    data = text.encode()
    return _I16.pack(len(data)) + data


def plain_bytes(data: bytes) -> bytes:
    return _I32.pack(len(data)) + data


def write_compact_text(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
    else:
        write_compact_bytes(out, text.encode())


def write_compact_bytes(out: bytearray, data: bytes) -> None:
    write_uvarint(out, len(data) + 1)
    out += data


def i32s(numbers: Collection[int]) -> bytes:
    """The entries of an array of int32, without their count."""
    return Struct(f">{len(numbers)}i").pack(*numbers)


def write_tags(out: bytearray, tags: Mapping[int, bytes]) -> None:
    """Tagged fields, which Kafka wants in the order of their numbers."""
    write_uvarint(out, len(tags))
    for number, data in tags.items():
        write_uvarint(out, number)
        write_uvarint(out, len(data))
        out += data
