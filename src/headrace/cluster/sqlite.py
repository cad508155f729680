"""The store of a lone broker: one SQLite file.

All calls run on one thread of their own, never on the event loop. Commits that wait for that thread at the same time
become one transaction with one sync to disk; each is a savepoint in it, so that one that conflicts leaves the others
as they are. The file is locked for as long as it is open: two brokers on one data directory would destroy it.
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from .store import (
    ANY_VERSION,
    AlreadyExists,
    Conflict,
    Create,
    Delete,
    Entries,
    NotFound,
    Operation,
    Put,
    StoreError,
    VersionConflict,
    Versioned,
)

FILE_NAME: Final = "metadata.db"
_IN_MEMORY: Final = ":memory:"
_MODE: Final = 0o600
_APPLICATION_ID: Final = 0x48445243
_FORMAT: Final = 2
_RESTORE: Final = "put back a copy of it, or move it away together with the logs to start empty"

# Numbers of an AUTOINCREMENT column are never given twice, whatever is deleted: they tell creations of a key apart.
_CREATE: Final = (
    "CREATE TABLE entry (created INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, value BLOB NOT NULL,"
    " version INTEGER NOT NULL)"
)
_FROM_FORMAT_1: Final = (
    "ALTER TABLE entry RENAME TO before",
    _CREATE,
    "INSERT INTO entry (key, value, version) SELECT key, value, version FROM before ORDER BY key",
    "DROP TABLE before",
)

T = TypeVar("T")
_Waiting = tuple[Sequence[Operation], "asyncio.Future[None]"]


class SqliteStore:
    """A `MetadataStore` in a file, or in memory where the path is `:memory:`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata")
        self._waiting: list[_Waiting] = []
        self._running: list[_Waiting] = []
        self._closed = False

    @classmethod
    async def open(cls, path: str | Path) -> "SqliteStore":
        """The store in that file, which is made if it does not exist."""
        store = cls(str(path))
        try:
            await store._run(store._connect)
        except BaseException:
            store._thread.shutdown()
            raise
        return store

    async def get(self, key: str) -> Versioned | None:
        return await self._run(lambda: self._row(key))

    async def list(self, prefix: str) -> Entries:
        return await self._run(lambda: self._rows(prefix))

    async def commit(self, operations: Sequence[Operation]) -> None:
        self._refuse_when_closed()
        for operation in operations:
            if isinstance(operation, Create) and operation.ephemeral:
                raise StoreError(f"{operation.key} cannot be ephemeral: a store of one broker has no sessions")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((operations, done))
        if not self._running and len(self._waiting) == 1:
            loop.call_soon(self._start_commit)
        await done

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        pending = [done for _, done in (*self._waiting, *self._running)]
        if pending:
            await asyncio.wait(pending)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown()

    def _start_commit(self) -> None:
        self._running, self._waiting = self._waiting, []
        self._thread.submit(self._commit_running, asyncio.get_running_loop())

    def _finish_commit(self, outcomes: Sequence[BaseException | None]) -> None:
        for (_, done), outcome in zip(self._running, outcomes, strict=True):
            if not done.cancelled():
                done.set_result(None) if outcome is None else done.set_exception(outcome)
        self._running = []
        if self._waiting:
            self._start_commit()

    async def _run(self, call: Callable[[], T]) -> T:
        self._refuse_when_closed()

        def translated() -> T:
            try:
                return call()
            except sqlite3.Error as error:
                raise self._failure(error) from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, translated)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise StoreError(f"the metadata store {self._path} is closed")

    def _connect(self) -> None:
        self._keep_to_owner()
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _keep_to_owner(self) -> None:
        """Let nobody else read what checks passwords. SQLite gives the files beside it the same mode."""
        if self._path == _IN_MEMORY:
            return
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE))
            for path in map(Path, (self._path, f"{self._path}-wal", f"{self._path}-shm")):
                if path.exists():
                    path.chmod(_MODE)
        except OSError:  # SQLite says what is wrong with the file; one of another user stays as it is
            return

    def _prepare(self) -> None:
        run = self._db.execute
        run("PRAGMA locking_mode=EXCLUSIVE")
        run("BEGIN IMMEDIATE")
        application = run("PRAGMA application_id").fetchone()[0]
        version = run("PRAGMA user_version").fetchone()[0]
        tables = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != _APPLICATION_ID and (tables or application or version):
            raise StoreError(f"{self._path} is a database of another program; choose another data directory")
        if version > _FORMAT:
            raise StoreError(
                f"{self._path} was written by a later version of headrace (format {version}, known is {_FORMAT}); "
                "start that version"
            )
        if not tables or version < _FORMAT:
            for statement in _FROM_FORMAT_1 if tables else (_CREATE,):
                run(statement)
            run(f"PRAGMA application_id={_APPLICATION_ID}")
            run(f"PRAGMA user_version={_FORMAT}")
        run("COMMIT")
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=FULL")
        problem = run("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise StoreError(f"{self._path} is damaged ({problem}); {_RESTORE}")

    def _disconnect(self) -> None:
        self._db.close()

    def _row(self, key: str) -> Versioned | None:
        row = self._db.execute("SELECT value, version, created FROM entry WHERE key = ?", (key,)).fetchone()
        return None if row is None else Versioned(*row)

    def _rows(self, prefix: str) -> Entries:
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else "\U0010ffff"
        query = "SELECT key, value, version, created FROM entry WHERE key >= ? AND key < ? ORDER BY key"
        rows = self._db.execute(query, (prefix, end))
        return [(key, Versioned(value, version, created)) for key, value, version, created in rows]

    def _commit_running(self, loop: asyncio.AbstractEventLoop) -> None:
        """The only part of a commit that runs on the store's thread."""
        outcomes: Sequence[BaseException | None]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                outcomes = [self._attempt(operations) for operations, _ in self._running]
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            outcomes = [self._failure(error)] * len(self._running)
        except BaseException as error:
            outcomes = [error] * len(self._running)
        loop.call_soon_threadsafe(self._finish_commit, outcomes)

    def _attempt(self, operations: Sequence[Operation]) -> Conflict | None:
        self._db.execute("SAVEPOINT one")
        try:
            for operation in operations:
                self._do(operation)
        except Conflict as conflict:
            self._db.execute("ROLLBACK TO one")
            return conflict
        finally:
            if self._db.in_transaction:
                self._db.execute("RELEASE one")
        return None

    def _do(self, operation: Operation) -> None:
        key = operation.key
        row = self._row(key)
        if isinstance(operation, Create):
            if row is not None:
                raise AlreadyExists(key)
            self._db.execute("INSERT INTO entry (key, value, version) VALUES (?, ?, 0)", (key, operation.value))
            return
        if row is None:
            raise NotFound(key)
        if operation.expected_version not in (ANY_VERSION, row.version):
            raise VersionConflict(key)
        if isinstance(operation, Put):
            self._db.execute("UPDATE entry SET value = ?, version = version + 1 WHERE key = ?", (operation.value, key))
        elif isinstance(operation, Delete):
            self._db.execute("DELETE FROM entry WHERE key = ?", (key,))

    def _failure(self, error: sqlite3.Error) -> StoreError:
        text = str(error)
        if "locked" in text:
            return StoreError(f"{self._path} is in use by another broker; stop it or choose another data directory")
        if "not a database" in text or "malformed" in text:
            return StoreError(f"{self._path} is damaged or not a metadata file ({text}); {_RESTORE}")
        if "unable to open" in text or "readonly" in text:
            return StoreError(
                f"{self._path} cannot be opened ({text}); check that its directory exists and is writable"
            )
        return StoreError(f"{self._path} failed ({text}); check the disk's space and health")
