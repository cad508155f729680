"""Varints in Python: seven bits to a byte, the lowest first. `varint_loops` has those of compiled loops."""


def write_uvarint(out: bytearray, value: int) -> None:
    """Append a number that is not negative."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_varint(out: bytearray, value: int) -> None:
    """Append a number of 64 bits with a sign, zigzag-coded: 0, -1, 1, -2 and so on are written as 0, 1, 2, 3."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:  # not by `write_uvarint`: producers come here five times for each record
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def varint(value: int) -> bytes:
    """The same as bytes of its own."""
    out = bytearray()
    write_varint(out, value)
    return bytes(out)
