"""Machine code that `build` made once for this machine, kept in a cache of this user and mapped to be run.

An image of a container brings the code along, in a directory that the environment names (`PREPARED`): its brokers need
neither a compiler nor a place to write. Nothing is run that another user could have written: the directory and the file
must be this user's or root's and writable by nobody else, and the file carries the checksum of its code. Memory is
written first and made executable afterwards, never both at once.
"""

import ctypes
import mmap
import os
import stat
import sys
import tempfile
from array import array
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from struct import Struct
from typing import ClassVar, Final

from .elf import FunctionCode
from .layout import layout
from .records import VIEW_TYPE

Function = Callable[[int | bytes, int], int]
"""Takes the data, or its address, and the address of the state; see `records.walk` and `heads.walk`."""
Check = Callable[[memoryview], "array[int]"]
"""Takes a whole batch of uncompressed records, and returns its state, where `records.FAULT` is what `walk` said.

Who calls it has made sure that the view is contiguous and that the header of a batch is there. It costs a tenth of what
a `Function` does, which matters where batches are small.
"""
Bind = Callable[["array[int]"], Check]
"""Makes a `Check` that has this state; it is for one thread."""
RECORDS: Final = "records"
HEADS: Final = "heads"
KERNELS: Final = (RECORDS, HEADS)
"""The modules whose `walk` is compiled."""
BATCH: Final = "batch"
"""`records.walk` as a `Check`."""

PREPARED: Final = "HEADRACE_KERNELS"
"""Of the environment: a directory with code that was built beforehand."""

_METH_O: Final = 0x0008
_HEAD: Final = Struct("<8sI32s")
_MAGIC: Final = b"HRKERN01"
_LARGEST: Final = 64 << 10
_SOURCES: Final = ("records.py", "heads.py", "build.py", "trials.py", "elf.py", "native.py", "layout.py")
_COMPILERS: Final = ("numba", "llvmlite")
_OTHERS: Final = 0o022
_ROOT: Final = 0
_kept: Final[list[object]] = []
"""Mapped code, and the definitions of its methods, stay: nobody knows who still calls it."""


class Unusable(Exception):
    """There is no machine code, or none that may be run; the words say why."""


class _Definition(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


def cache_file(kernel: str) -> Path:
    """Where the code for this source, compiler, Python and machine is kept."""
    return _directory() / f"{kernel}-{_key()}.bin"


def prepared_file(kernel: str, directory: Path) -> Path:
    """Where the code for this source, Python and machine is in such a directory, whichever compiler made it."""
    return directory / f"{kernel}-{_source_key()}.bin"


def load(kernel: str) -> Function:
    """The compiled `walk` of a kernel from the cache; `Unusable` when it has to be built first, or cannot run here."""
    return run(_load(kernel), releases_gil=kernel == HEADS)


def load_check() -> Bind | None:
    """The compiled check of whole batches from the cache; None where this Python does not let it in."""
    return None if layout() is None else bound(_load(BATCH))


def _load(kernel: str) -> FunctionCode:
    prepared = os.environ.get(PREPARED, "")
    path = prepared_file(kernel, Path(prepared)) if os.path.isabs(prepared) else None
    path = path if path is not None and path.exists() else cache_file(kernel)
    try:
        _check_owner(os.lstat(path.parent), "directory", stat.S_ISDIR)
        return _read(path)
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}") from error


def run(code: FunctionCode, *, releases_gil: bool = False) -> Function:
    """A function that runs this code. Its caller answers for the addresses.

    To release the GIL pays where a call takes long: other threads run meanwhile, but getting it back may take a while.
    """
    prototype = ctypes.CFUNCTYPE if releases_gil else ctypes.PYFUNCTYPE
    return prototype(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(_map(code))


def bound(code: FunctionCode) -> Bind:
    """Makes methods of arrays that run this code."""
    definition = _Definition(b"check", _map(code), _METH_O, None)
    _kept.append(definition)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    address = ctypes.addressof(definition)

    def bind(state: "array[int]") -> Check:
        state[VIEW_TYPE] = id(memoryview)
        check: Check = make(address, state, None)
        return check

    return bind


def _map(code: FunctionCode) -> int:
    """The address of the function, in memory that can be run."""
    if not 0 <= code.entry < len(code.data):
        raise Unusable("the code has no beginning")
    memory = mmap.mmap(-1, len(code.data))
    memory.write(code.data)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if error := protect(address, len(code.data), mmap.PROT_READ | mmap.PROT_EXEC):
        raise Unusable(f"memory cannot be made executable: {os.strerror(error)}")
    _kept.append(memory)
    return address + code.entry


def protect(address: int, size: int, protection: int) -> int:
    """Set what may be done with pages of memory; the error number, 0 for none."""
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return ctypes.get_errno() if mprotect(address, size, protection) else 0


def store(kernel: str, code: FunctionCode, directory: Path | None = None) -> Path:
    """Keep code for later processes; whoever reads the file meanwhile finds the old one or the new one.

    With a directory it is prepared there, for whatever user; else it goes to this user's cache.
    """
    path = cache_file(kernel) if directory is None else prepared_file(kernel, directory)
    path.parent.mkdir(mode=0o700 if directory is None else 0o755, parents=True, exist_ok=True)
    _check_owner(os.lstat(path.parent), "directory", stat.S_ISDIR)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{kernel}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_HEAD.pack(_MAGIC, code.entry, _checksum(code)) + code.data)
            os.fchmod(file.fileno(), 0o600 if directory is None else 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path


def _read(path: Path) -> FunctionCode:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        _check_owner(os.fstat(descriptor), "file", stat.S_ISREG)
        data = file.read(_LARGEST)
    if len(data) <= _HEAD.size:
        raise Unusable(f"{path} is cut short")
    magic, entry, checksum = _HEAD.unpack_from(data)
    code = FunctionCode(entry, data[_HEAD.size :])
    if magic != _MAGIC or checksum != _checksum(code):
        raise Unusable(f"{path} is damaged; remove it")
    return code


def _check_owner(status: os.stat_result, kind: str, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(status.st_mode) or status.st_uid not in (os.geteuid(), _ROOT) or status.st_mode & _OTHERS:
        raise Unusable(f"the {kind} of compiled code is not this user's alone")


def _checksum(code: FunctionCode) -> bytes:
    return sha256(code.entry.to_bytes(8, "little") + code.data).digest()


def _directory() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    home = given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), ".cache")
    nearest = home if os.path.exists(home) else os.path.dirname(home)
    if os.path.isabs(home) and os.access(nearest, os.W_OK):  # "~" stays where this user has no home
        return Path(home, "headrace", "kernels")
    return Path(tempfile.gettempdir(), f"headrace-kernels-{os.geteuid()}")


@cache
def _key() -> str:
    return _source_key(*map(_version, _COMPILERS))


@cache
def _source_key(*compilers: str) -> str:
    sources = [Path(__file__).with_name(name).read_bytes() for name in _SOURCES]
    words = (os.uname().machine, sys.platform, *sys.version_info[:2], layout(), *compilers)
    return sha256(repr(words).encode() + b"\0".join(sources)).hexdigest()[:32]


def _version(package: str) -> str:
    """The name of a package's directory of metadata, which holds its version: importing it would take long."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise Unusable(f"{package} is not installed")
    site = Path(spec.origin).parent.parent
    return next((each.name for each in site.glob(f"{package}-*.dist-info")), "")
