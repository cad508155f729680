"""What `headrace doctor` finds at a data directory and behind a port."""

import fcntl
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.client.probe import broker_count
from headrace.net.address import Address

from .machine import Finding, fail, ok, warn

_LOCK: Final = ".lock"
_CLEAN: Final = ".kafka_cleanshutdown"
_META: Final = "meta.properties"
_PROBE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryState:
    """A data directory as it lies there."""

    exists: bool
    writable: bool
    locked: bool
    clean: bool
    logs: int
    owner: str
    newest: float


def read_directory(path: Path) -> DirectoryState:
    """Look without changing anything. OSError if it cannot be read."""
    if not path.exists():
        return DirectoryState(exists=False, writable=True, locked=False, clean=True, logs=0, owner="", newest=0.0)
    entries = list(os.scandir(path))
    return DirectoryState(
        exists=True,
        writable=os.access(path, os.W_OK | os.X_OK),
        locked=is_locked(path / _LOCK),
        clean=(path / _CLEAN).exists(),
        logs=sum(1 for entry in entries if entry.is_dir() and entry.name.rpartition("-")[2].isdigit()),
        owner=_owner(path / _META),
        newest=max((entry.stat(follow_symlinks=False).st_mtime for entry in entries), default=0.0),
    )


def is_locked(lock: Path) -> bool:
    """Whether a broker that runs holds the lock of a data directory."""
    try:
        fd = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _owner(meta: Path) -> str:
    try:
        lines = meta.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    node = fields.get("node.id", fields.get("broker.id"))
    return "" if node is None else f"broker {node.strip()} of cluster {fields.get('cluster.id', '?').strip()}"


def check_directory(path: Path) -> Iterator[Finding]:
    """The data directory's state."""
    try:
        state = read_directory(path)
    except NotADirectoryError:
        yield fail("data directory", f"{path} is a file", "choose a directory with --data")
        return
    except OSError as error:
        yield fail("data directory", f"{path}: {error.strerror}", "choose one that this user may read with --data")
        return
    yield assess_directory(path, state, time.time())


def assess_directory(path: Path, state: DirectoryState, now: float) -> Finding:
    check = "data directory"
    if not state.exists:
        return ok(check, f"{path} does not exist yet; the broker makes it")
    if not state.writable:
        return fail(check, f"{path} is not writable", f"give this user write access: `chown -R $USER {path}`")
    text = ", ".join(part for part in (str(path), state.owner, f"{state.logs} logs") if part)
    if state.locked:
        return ok(check, f"{text}, in use by a running broker")
    if state.newest > now + 60:
        return warn(check, f"{text}, written in the future", "the clock went back; set it before the broker starts")
    if state.logs and not state.clean:
        return warn(check, f"{text}, not shut down cleanly", "the next start checks the logs' ends; no need to act")
    return ok(check, f"{text}, {'at rest' if state.logs else 'empty'}")


def check_port(name: str, port: int) -> Finding:
    """Whether a port of the defaults is free, or who holds it."""
    check = f"port {port}"
    address = Address("127.0.0.1", port)
    if _is_free(address):
        return ok(check, f"free for the {name}")
    held = _kafka(address) or _gateway(address)
    if held:
        return ok(check, f"held by {held}")
    return warn(check, "held by another program", f"stop it, or choose another port for the {name}")


def _is_free(address: Address) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


def _kafka(address: Address) -> str:
    try:
        return f"a Kafka broker (cluster of {broker_count(address, _PROBE_SECONDS)})"
    except (OSError, ValueError):
        return ""


def _gateway(address: Address) -> str:
    connection = http.client.HTTPConnection(*address, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", "/")
        answer = json.loads(connection.getresponse().read(4096))
        return f"a Headrace gateway, version {answer['version']}" if answer["name"] == "headrace" else ""
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""
    finally:
        connection.close()
