"""How long this thread runs before the kernel looks who else waits for the processor.

A server sleeps most of the time, and has little to do each time it wakes. Where something else computes on the same
processor, Linux lets that finish its turn first, 1.4 to 4 milliseconds. From 6.12 on a thread may say that its own
turns are short, and then it is let run at once. It gets no more of the processor by that.
"""

import ctypes
import os
import platform
import sys
from typing import Final

SHORT_NS: Final = 500_000
"""What a server asks for. Less than half of what threads have that ask for nothing."""
_SYSTEM_CALLS: Final = {"x86_64": (314, 315), "aarch64": (274, 275), "riscv64": (274, 275)}
"""The numbers of sched_setattr and sched_getattr."""
_THIS_THREAD: Final = 0


class _Attributes(ctypes.Structure):
    """The kernel's `struct sched_attr`, in its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def turn_ns() -> int:
    """How long a turn of this thread is; 0 where the kernel does not tell, or schedules this thread by other rules."""
    attributes = _attributes()
    return 0 if attributes is None else int(attributes.runtime)


def ask_for_turns(nanoseconds: int) -> None:
    """Have the turns of this thread, and of threads and processes that it starts from now on, last so long; 0 for as
    long as the kernel likes. Where the kernel knows no such thing, or the user has chosen a policy (`chrt`), nothing
    happens. Nothing else changes."""
    attributes = _attributes()
    if attributes is not None:
        attributes.runtime = nanoseconds
        _call(0, ctypes.byref(attributes), 0)


def _attributes() -> _Attributes | None:
    attributes = _Attributes()
    size = ctypes.sizeof(attributes)
    if not _call(1, ctypes.byref(attributes), size, 0) or attributes.policy != os.SCHED_OTHER or not attributes.runtime:
        return None
    return attributes


def _call(which: int, *arguments: object) -> bool:
    numbers = _SYSTEM_CALLS.get(platform.machine())
    if sys.platform != "linux" or numbers is None or sys.maxsize < 2**32:
        return False
    return bool(ctypes.CDLL(None).syscall(numbers[which], _THIS_THREAD, *arguments) == 0)
