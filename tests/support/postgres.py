"""PostgreSQL as Debian packages it, on a free port in a temporary directory, started as a user without rights."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.process import free_port

SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "10",
    "max_wal_senders": "4",
    "fsync": "off",
    "listen_addresses": "'127.0.0.1'",
    "shared_buffers": "32MB",
}


class Postgres:
    """A server that can be killed and started again."""

    def __init__(self, directory: Path, binaries: Path, user: str | None) -> None:
        self.port = free_port()
        self.dsn = f"postgresql://tester@127.0.0.1:{self.port}/postgres"
        self._directory = directory
        self._binaries = binaries
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    def initialize(self) -> None:
        """Make the data directory."""
        command: list[str | Path] = [
            self._binaries / "initdb",
            "-D",
            self._directory / "data",
            "-U",
            "tester",
            "-A",
            "trust",
            "-E",
            "UTF8",
        ]
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd="/")

    def start(self) -> None:
        """Start it and wait until it serves."""
        options = [f"--{name}={value.strip(chr(39))}" for name, value in SETTINGS.items()]
        place: list[str | Path] = ["-D", self._directory / "data", "-p", str(self.port), "-k", self._directory]
        self._process = subprocess.Popen(
            [self._binaries / "postgres", *place, *options],
            user=self._user,
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.dsn).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, "postgres has ended"
                assert time.monotonic() < deadline, "postgres does not serve"
                time.sleep(0.1)

    def kill(self) -> None:
        """End it at once; what was committed is still there at the next start."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        time.sleep(0.5)  # Its children notice, and let go of the shared memory.

    def stop(self) -> None:
        """End it, connections and all."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(2)  # SIGINT is its fast shutdown
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """A statement in a transaction of its own; its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []


def binaries() -> Path | None:
    """Where PostgreSQL's programs are, if they are anywhere."""
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = packaged[-1] if packaged else shutil.which("initdb")
    return Path(found).parent if found else None


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server for the length of the block; the test is skipped where PostgreSQL is not installed."""
    place = binaries()
    if place is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    directory = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
    user = None
    if os.getuid() == 0:  # It refuses to run as root.
        user = next((name for name in ("postgres", "nobody") if _exists(name)), None)
        if user is None:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")
        shutil.chown(directory, user)
    server = Postgres(directory, place, user)
    try:
        server.initialize()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
