"""The file in which a data directory says which one it is, what it may have lost, and what it knows of the store."""

import json
from collections.abc import Mapping
from random import Random
from typing import Any, Final

import structlog

from headrace.cluster.lineage import LineageVerdict, Mark
from headrace.cluster.log_faults import LogKey
from headrace.cluster.registration import DataLoss
from headrace.storage.disk import Disk, StorageError
from headrace.storage.manager import LogManager

IDENTITY_FILE: Final = "headrace.identity"
RESERVE_FILE: Final = "headrace.identity.reserve"
RESERVED_BYTES: Final = 16 * 1024
CONTENT_BYTES: Final = 1024
"""What is written is as long every time, so that on a full disk it fits whenever it did before."""

log = structlog.get_logger(__name__)


class Identification:
    """What a data directory knows of itself and of the store. A `cluster.lineage.Memory`.

    What was lost, and that the store was set back, stays written there until the cluster has taken account of it,
    however often the broker starts.
    """

    def __init__(self, disk: Disk, logs: LogManager, boot_id: str, rng: Random) -> None:
        self._disk = disk
        self._logs = logs
        self._path = f"{logs.data_directory}/{IDENTITY_FILE}"
        self._reserve = f"{logs.data_directory}/{RESERVE_FILE}"
        known = self._read()
        self.boot_id = boot_id
        self.data_directory = logs.data_directory
        self.directory: str = known.get("directory") or f"{rng.getrandbits(128):032x}"
        self.loss = _loss(known, boot_id, was_closed=logs.was_closed)
        self.saw_set_back: bool = known.get("saw_set_back", False)
        self.lineage: str = known.get("lineage", "")
        self.marks = tuple(Mark(*mark) for mark in known.get("marks", ()))
        self._write_if_possible()

    @property
    def synced(self) -> frozenset[LogKey]:
        """Logs of which nothing acknowledged is lost, where something else may be."""
        return self._logs.proven_synced() if self.loss is DataLoss.UNSYNCED or self.saw_set_back else frozenset()

    def place(self, host: str, port: int) -> str:
        """Where this directory is served: who registers with the same place has taken over from a process that is dead,
        as it holds the lock of the directory.
        """
        return f"{self.boot_id} {self.data_directory} {host}:{port}"

    def confirm(self) -> None:
        """Everyone knows what was lost: from now on this directory can be trusted again."""
        if self.loss is not DataLoss.NOTHING or self.saw_set_back:
            self.loss, self.saw_set_back = DataLoss.NOTHING, False
            self._write_if_possible()

    def expect_mark(self, mark: Mark) -> None:
        self.marks = (*self.marks, mark)
        self._write()

    def settle_mark(self) -> None:
        self.marks = self.marks[-1:]
        self._write()

    def note_lineage(self, lineage: str) -> None:
        if lineage != self.lineage:
            self.lineage = lineage
            self._write_if_possible()

    def note_verdict(self, verdict: LineageVerdict) -> None:
        if verdict is LineageVerdict.STORE_SET_BACK:
            self.saw_set_back = True
        elif verdict is LineageVerdict.DIRECTORY_SET_BACK:
            self.loss = DataLoss.EVERYTHING
        self._write()

    def _read(self) -> dict[str, Any]:
        """What the file says; nothing where it is missing or damaged."""
        try:
            known = json.loads(self._disk.read(self._path))
        except StorageError as error:
            if not error.is_missing:
                raise
            return {}
        except ValueError as error:
            log.error("identity file is damaged: nothing in this directory is counted on", reason=str(error))
            return {}
        return known if isinstance(known, dict) else {}

    def _write(self) -> None:
        values = {
            "directory": self.directory,
            "boot": self.boot_id,
            "loss": self.loss.value,
            "saw_set_back": self.saw_set_back,
            "lineage": self.lineage,
            "marks": self.marks,
        }
        content = json.dumps(values).encode().ljust(CONTENT_BYTES)
        try:
            self._disk.write_atomically(self._path, content)
        except StorageError as error:
            if not error.is_full:
                raise
            self._disk.unlink(self._reserve)
            self._disk.write_atomically(self._path, content)
        self._keep_reserve()

    def _keep_reserve(self) -> None:
        """On a full disk its space is given up for what a broker has to write to be in its cluster, and taken back at
        once, before others fill it: there will be a next time.
        """
        if self._disk.exists(self._reserve):
            return
        try:
            self._disk.write(self._reserve, bytes(RESERVED_BYTES))
        except StorageError as error:
            if not error.is_full:
                raise
            self._disk.unlink(self._reserve)

    def _write_if_possible(self) -> None:
        """A full disk keeps no broker from its start: what the file says then errs on the side of a loss."""
        try:
            self._write()
        except StorageError as error:
            if not error.is_full or not self._disk.exists(self._path):
                raise
            log.warning("identity file cannot be written", reason=str(error))


def _loss(known: Mapping[str, Any], boot_id: str, *, was_closed: bool) -> DataLoss:
    """A directory that was never brought to rest, and whose machine has started since, has lost what was not synced."""
    if not known:
        return DataLoss.EVERYTHING
    before = DataLoss(known.get("loss", DataLoss.NOTHING.value))
    if before is DataLoss.NOTHING and known.get("boot") != boot_id and not was_closed:
        return DataLoss.UNSYNCED
    return before
