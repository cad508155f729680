"""JSON documents out of a stream of bytes, one behind the other, with or without white space between them.

Only strings and brackets are looked at: where a document ends is known before it is read as JSON, and who reads it
finds what is wrong inside. Each byte is looked at once, however the stream is cut.
"""

import re
from collections.abc import Iterator
from typing import Final

_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_OUTSIDE: Final = re.compile(rb'["{}\[\]]')
_INSIDE: Final = re.compile(rb'["\\]')
_OPENING: Final = b"{["


class NoDocumentError(ValueError):
    """What comes next is no JSON object, or none that is small enough: nothing behind it can be told apart."""


class DocumentSplitter:
    """Gives objects as they become whole; `most` bytes each."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._buffer = bytearray()
        self._at = 0
        """Where to look on."""
        self._depth = 0
        self._is_text = False

    @property
    def held(self) -> int:
        """Bytes of a document that has begun and is not whole."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The documents that these bytes complete; `NoDocumentError` behind the last one that could be told apart."""
        buffer = self._buffer
        buffer += data
        start = 0
        while True:
            if not self._depth:
                start = self._begin(start)
                if start == len(buffer):
                    break
            if not self._end_found():
                break
            yield bytes(buffer[start : self._at])
            start = self._at
        del buffer[:start]
        self._at -= start
        if len(buffer) > self._most:
            raise NoDocumentError(f"a record has at most {self._most} bytes")

    def _begin(self, start: int) -> int:
        found = _SPACE.match(self._buffer, start)
        assert found is not None
        self._at = found.end()
        if self._at < len(self._buffer) and self._buffer[self._at] != ord("{"):
            raise NoDocumentError("a record is a JSON object")
        return self._at

    def _end_found(self) -> bool:
        """Whether the document ends in what is here; `_at` is then behind it."""
        buffer, at, depth, is_text = self._buffer, self._at, self._depth, self._is_text
        try:
            while True:
                found = (_INSIDE if is_text else _OUTSIDE).search(buffer, at)
                if found is None:
                    at = len(buffer)
                    return False
                byte = buffer[found.start()]
                at = found.end()
                if byte == ord('"'):
                    is_text = not is_text
                elif is_text:
                    if at == len(buffer):
                        at -= 1  # what is escaped comes next
                        return False
                    at += 1
                elif byte in _OPENING:
                    depth += 1
                else:
                    depth -= 1
                    if not depth:
                        return True
        finally:
            self._at, self._depth, self._is_text = at, depth, is_text
