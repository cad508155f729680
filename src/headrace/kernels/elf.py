"""The machine code of one function, taken out of an ELF object file."""

from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception's name
from typing import Final, NamedTuple

_MAGIC: Final = b"\x7fELF\x02\x01"
"""64 bit, little-endian."""
_HEADER: Final = Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = Struct("<IIQQQQIIQQ")
_SYMBOL: Final = Struct("<IBBHQQ")
_SYMBOL_TABLE: Final = 2
_RELOCATIONS: Final = (4, 9)


class NotSelfContained(Exception):
    """The code cannot run on its own: it is missing, or refers to something outside of itself."""


class FunctionCode(NamedTuple):
    """The bytes of a section, and where in them the function begins."""

    entry: int
    data: bytes


class _Section(NamedTuple):
    kind: int
    start: int
    size: int
    link: int
    info: int


def code_of(image: bytes, name: str) -> FunctionCode:
    """The section of a function that refers to nothing outside of it."""
    try:
        return _code_of(image, name)
    except (StructError, IndexError, ValueError) as error:
        raise NotSelfContained(f"no object file: {error}") from error


def _code_of(image: bytes, name: str) -> FunctionCode:
    if not image.startswith(_MAGIC):
        raise NotSelfContained("no object file of a 64-bit little-endian machine")
    sections = _sections(image)
    number, entry = _find(image, sections, name)
    if any(each.kind in _RELOCATIONS and each.info == number and each.size for each in sections):
        raise NotSelfContained(f"{name} refers to something outside of it")
    section = sections[number]
    return FunctionCode(entry, image[section.start : section.start + section.size])


def _sections(image: bytes) -> list[_Section]:
    header = _HEADER.unpack_from(image)
    start, size, count = header[6], header[11], header[12]
    found = []
    for number in range(count):
        _, kind, _, _, offset, length, link, info, _, _ = _SECTION.unpack_from(image, start + number * size)
        found.append(_Section(kind, offset, length, link, info))
    return found


def _find(image: bytes, sections: list[_Section], name: str) -> tuple[int, int]:
    """The number of the section that holds a symbol, and the symbol's place in it."""
    (table,) = (each for each in sections if each.kind == _SYMBOL_TABLE)
    names = sections[table.link].start
    for at in range(table.start, table.start + table.size, _SYMBOL.size):
        text, _, _, number, value, _ = _SYMBOL.unpack_from(image, at)
        start = names + text
        if number and image[start : image.index(b"\0", start)] == name.encode():
            return number, value
    raise NotSelfContained(f"there is no function {name}")
