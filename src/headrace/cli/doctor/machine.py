"""What `headrace doctor` looks at, part by part: each reads something and judges it.

The judging is pure (`assess_*` take what was read), so that a machine in any state can be tested on paper.
"""

import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

GIB: Final = 1 << 30
MIB: Final = 1 << 20
_SYNCS: Final = 20
_OLDEST_NOW: Final = 1_735_689_600
"""2025-01-01: no clock that is right shows less."""


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check; `advice` says what to do unless all is well."""

    check: str
    status: Status
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check=check, status=Status.OK, found=found)


def warn(check: str, found: str, advice: str) -> Finding:
    return Finding(check=check, status=Status.WARN, found=found, advice=advice)


def fail(check: str, found: str, advice: str) -> Finding:
    return Finding(check=check, status=Status.FAIL, found=found, advice=advice)


def check_machine() -> Iterator[Finding]:
    """Everything that is not about a directory or a port."""
    yield assess_python(sys.version_info[:3])
    yield from check_libraries()
    yield assess_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield assess_file_size(resource.getrlimit(resource.RLIMIT_FSIZE)[0])
    memory = read_meminfo(_text("/proc/meminfo"))
    yield assess_memory(memory.get("MemAvailable"), _number(_text("/sys/fs/cgroup/memory.max")))
    yield assess_swap(memory.get("SwapTotal", 0), _number(_text("/proc/sys/vm/swappiness")))
    yield assess_clock(*_clock_drift())


def assess_python(version: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, version))
    if version < (3, 11):
        return fail("python", text, "install Python 3.11 or newer")
    return ok("python", text)


def check_libraries() -> Iterator[Finding]:
    """The native libraries the broker is fast with."""
    for name in ("uvloop", "cramjam", "confluent_kafka"):
        yield _imports(name)
    try:
        import crc32c
    except ImportError as error:
        yield fail("crc32c", str(error), "reinstall it: pip install --force-reinstall crc32c")
        return
    yield assess_crc32c(bool(getattr(crc32c, "hardware_based", False)))


def _imports(name: str) -> Finding:
    try:
        module = __import__(name)
    except ImportError as error:
        return fail(name, str(error), f"reinstall it: pip install --force-reinstall {name.replace('_', '-')}")
    return ok(name, str(getattr(module, "__version__", "installed")))


def assess_crc32c(hardware: bool) -> Finding:
    if hardware:
        return ok("crc32c", "computed by the processor")
    return warn(
        "crc32c", "computed in software", "checksums will limit throughput; use a processor with SSE 4.2 or CRC"
    )


def assess_open_files(most: int) -> Finding:
    """Judge the hard limit: the broker raises its soft one to it."""
    if most == resource.RLIM_INFINITY:
        return ok("open files", "unlimited")
    advice = "raise it: `ulimit -Hn 100000` as root, or LimitNOFILE=100000 in a systemd unit"
    if most < 1024:
        return fail("open files", f"at most {most}", advice)
    if most < 65536:
        return warn("open files", f"at most {most}", f"each client and each partition in use needs one; {advice}")
    return ok("open files", f"at most {most}")


def assess_file_size(limit: int) -> Finding:
    if limit != resource.RLIM_INFINITY and limit < GIB:
        return fail("file size", f"at most {limit} bytes", "segments have up to 1 GiB; `ulimit -f unlimited`")
    return ok("file size", "unlimited" if limit == resource.RLIM_INFINITY else f"at most {limit} bytes")


def read_meminfo(text: str) -> dict[str, int]:
    """The fields of /proc/meminfo in bytes."""
    sizes = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        amount = _number(rest.removesuffix("kB"))
        if amount is not None:
            sizes[name] = amount * 1024
    return sizes


def assess_memory(available: int | None, container_limit: int | None) -> Finding:
    amounts = [amount for amount in (available, container_limit) if amount is not None]
    if not amounts:
        return warn("memory", "unknown", "check by hand that at least 512 MiB are free")
    least = min(amounts)
    text = f"{least / GIB:.1f} GiB available"
    if least < 128 * MIB:
        return fail("memory", text, "a broker needs 128 MiB, and gains from what is left as file cache")
    if least < 512 * MIB:
        return warn("memory", text, "recent records are read from the file cache; give it 512 MiB or more")
    return ok("memory", text)


def assess_swap(total: int, swappiness: int | None) -> Finding:
    if not total:
        return ok("swap", "off")
    text = f"{total / GIB:.1f} GiB, swappiness {'unknown' if swappiness is None else swappiness}"
    if swappiness is None or swappiness > 10:
        return warn("swap", text, "a swapped-out broker stalls; `sysctl vm.swappiness=1`")
    return ok("swap", text)


def _clock_drift() -> tuple[float, float]:
    """The time, and how much more the wall clock moved than the steady one over a moment."""
    wall, steady = time.time(), time.monotonic()
    time.sleep(0.05)
    return wall, (time.time() - wall) - (time.monotonic() - steady)


def assess_clock(now: float, drift: float) -> Finding:
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if now < _OLDEST_NOW:
        return fail("clock", text, "it is wrong, and retention deletes by it; set it and run an NTP client")
    if abs(drift) > 0.02:
        return warn(
            "clock", f"{text}, moving {drift * 1000:+.0f} ms in 50 ms", "it is being stepped; use NTP that slews"
        )
    return ok("clock", text)


def check_disk(directory: Path) -> Iterator[Finding]:
    """Room, speed and kind of the disk that the data directory is, or will be, on."""
    place = nearest_existing(directory)
    usage = os.statvfs(place)
    yield assess_space(usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize)
    yield assess_filesystem(filesystem_of(place.resolve(), _text("/proc/mounts")))
    yield _sync_speed(place, measure_syncs)


def nearest_existing(path: Path) -> Path:
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


def assess_space(free: int, total: int) -> Finding:
    text = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free < 256 * MIB:
        return fail("disk space", text, "a full disk stops all writes; free some or choose another --data")
    if free < 5 * GIB or free < total * 0.05:
        return warn("disk space", text, "watch it, or shorten retention.ms and retention.bytes")
    return ok("disk space", text)


def filesystem_of(path: Path, mounts: str) -> str:
    """The type of file system a path is on, from /proc/mounts; empty if unknown."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = fields[1].replace("\\040", " ")
        if len(mount) >= len(best) and (path == Path(mount) or Path(mount) in path.parents):
            best, kind = mount, fields[2]
    return kind


def assess_filesystem(kind: str) -> Finding:
    if kind in ("tmpfs", "ramfs"):
        return warn("file system", kind, "it is memory: records do not survive a restart of the machine")
    if kind.startswith(("nfs", "cifs", "smb", "fuse")):
        return warn("file system", kind, "locks and syncs may not hold what they promise; use a local disk")
    return ok("file system", kind or "unknown")


def measure_syncs(directory: Path) -> list[float]:
    """Seconds that each of a few 4 KiB writes with fdatasync takes there."""
    block = bytes(4096)
    seconds = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(_SYNCS):
            started = time.perf_counter()
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            seconds.append(time.perf_counter() - started)
    return seconds


def _sync_speed(directory: Path, measure: Callable[[Path], list[float]]) -> Finding:
    try:
        return assess_syncs(measure(directory))
    except OSError as error:
        return fail(
            "disk sync", f"{directory}: {error.strerror}", "choose a directory that this user may write with --data"
        )


def assess_syncs(seconds: list[float]) -> Finding:
    median, worst = statistics.median(seconds) * 1000, max(seconds) * 1000
    text = f"{median:.2f} ms each, {worst:.2f} ms at worst"
    if median > 20:
        return warn("disk sync", text, "each acknowledged write waits for one; use an SSD, or larger flush.messages")
    return ok("disk sync", text)


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None
