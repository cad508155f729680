"""Machine code that `build` made once for this machine, kept in a cache of this user and mapped to be run.

Nothing is run that another user could have written: the directory and the file must be this user's and writable by
nobody else, and the file carries the checksum of its code. Memory is written first and made executable afterwards,
never both at once.
"""

import ctypes
import mmap
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from struct import Struct
from typing import Final

from .elf import Code

Function = Callable[[int | bytes, int], int]
"""Takes the data, or its address, and the address of the state; see `records.walk` and `heads.walk`."""
RECORDS: Final = "records"
HEADS: Final = "heads"
KERNELS: Final = (RECORDS, HEADS)
"""The modules whose `walk` is compiled."""

_HEAD: Final = Struct("<8sI32s")
_MAGIC: Final = b"HRKERN01"
_LARGEST: Final = 64 << 10
_SOURCES: Final = ("records.py", "heads.py", "build.py", "trials.py", "elf.py", "native.py")
_COMPILERS: Final = ("numba", "llvmlite")
_OTHERS: Final = 0o022
_mapped: Final[list[mmap.mmap]] = []
"""What was mapped stays, as nobody knows who still calls it."""


class Unusable(Exception):
    """There is no machine code, or none that may be run; the words say why."""


def cache_file(kernel: str) -> Path:
    """Where the code for this source, compiler, Python and machine is kept."""
    return _directory() / f"{kernel}-{_key()}.bin"


def load(kernel: str) -> Function:
    """The compiled `walk` of a kernel from the cache; `Unusable` when it has to be built first, or cannot run here."""
    path = cache_file(kernel)
    try:
        _check_owner(os.lstat(path.parent), "directory", stat.S_ISDIR)
        return run(_read(path), releases_gil=kernel == HEADS)
    except OSError as error:
        raise Unusable(f"{path}: {error.strerror or error}") from error


def run(code: Code, *, releases_gil: bool = False) -> Function:
    """A function that runs this code. Its caller answers for the addresses.

    To release the GIL pays where a call takes long: other threads run meanwhile, but getting it back may take a while.
    """
    if not 0 <= code.entry < len(code.data):
        raise Unusable("the code has no beginning")
    memory = mmap.mmap(-1, len(code.data))
    memory.write(code.data)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if error := protect(address, len(code.data), mmap.PROT_READ | mmap.PROT_EXEC):
        raise Unusable(f"memory cannot be made executable: {os.strerror(error)}")
    _mapped.append(memory)
    prototype = ctypes.CFUNCTYPE if releases_gil else ctypes.PYFUNCTYPE
    return prototype(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(address + code.entry)


def protect(address: int, size: int, protection: int) -> int:
    """Set what may be done with pages of memory; the error number, 0 for none."""
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return ctypes.get_errno() if mprotect(address, size, protection) else 0


def store(kernel: str, code: Code) -> Path:
    """Keep code for later processes; whoever reads the file meanwhile finds the old one or the new one."""
    path = cache_file(kernel)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_owner(os.lstat(path.parent), "directory", stat.S_ISDIR)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{kernel}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_HEAD.pack(_MAGIC, code.entry, _checksum(code)) + code.data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path


def _read(path: Path) -> Code:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        _check_owner(os.fstat(descriptor), "file", stat.S_ISREG)
        data = file.read(_LARGEST)
    if len(data) <= _HEAD.size:
        raise Unusable(f"{path} is cut short")
    magic, entry, checksum = _HEAD.unpack_from(data)
    code = Code(entry, data[_HEAD.size :])
    if magic != _MAGIC or checksum != _checksum(code):
        raise Unusable(f"{path} is damaged; remove it")
    return code


def _check_owner(status: os.stat_result, kind: str, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
        raise Unusable(f"the {kind} of compiled code is not this user's alone")


def _checksum(code: Code) -> bytes:
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
    sources = [Path(__file__).with_name(name).read_bytes() for name in _SOURCES]
    words = (os.uname().machine, sys.platform, *sys.version_info[:2], *map(_version, _COMPILERS))
    return sha256(repr(words).encode() + b"\0".join(sources)).hexdigest()[:32]


def _version(package: str) -> str:
    """The name of a package's directory of metadata, which holds its version: importing it would take long."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise Unusable(f"{package} is not installed")
    site = Path(spec.origin).parent.parent
    return next((each.name for each in site.glob(f"{package}-*.dist-info")), "")
