"""What the tests of compiled code share."""

import mmap
from ctypes import addressof, c_char

from headrace.kernels import native


class Fenced:
    """Memory after which nothing may be read: whoever reads on ends the process."""

    def __init__(self, data: bytes) -> None:
        page = mmap.PAGESIZE
        size = (len(data) + page - 1) // page * page
        self._memory = mmap.mmap(-1, size + page)
        start = addressof(c_char.from_buffer(self._memory))
        self.address = start + size - len(data)
        self._memory[size - len(data) : size] = data
        assert native.protect(start + size, page, 0) == 0
