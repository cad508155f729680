"""`headrace cluster backup` and `restore`: the cluster's metadata in a file, and back."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from headrace import __version__
from headrace.cluster import backup as backups
from headrace.cluster.backup import Backup, BackupError, StoreKind
from headrace.cluster.sqlite import SqliteStore
from headrace.cluster.store import MetadataStore, StoreError
from headrace.protocol.levels import SUPPORTED
from headrace.storage import checkpoints
from headrace.storage.disk import DirectoryLocked, RealDisk, StorageError

from ..broker import secrets
from ..console import ExitCode, Failure, bad_input, note, say, say_json
from ..logs import LogFormat, LogLevel, configure_logs

if TYPE_CHECKING:
    from headrace.cluster.zookeeper import ZooKeeperStore
    from headrace.cluster.zookeeper_access import ZooKeeperAccess
    from headrace.config import BrokerConfig

_METADATA_FILE: Final = "metadata.db"
_PATIENCE_SECONDS: Final = 10.0
_SILENT_SECONDS: Final = 2.0
"""After which it is said what is waited for."""
_SCHEME: Final = "zookeeper://"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLocation:
    """Where a cluster's metadata is: ZooKeeper's address and path, or a lone broker's data directory."""

    store: str | None = None
    data: Path | None = None
    access: "ZooKeeperAccess | None" = None
    """How ZooKeeper is reached, where that takes more than an address."""

    @property
    def kind(self) -> StoreKind:
        return StoreKind.SQLITE if self.store is None else StoreKind.ZOOKEEPER

    def __str__(self) -> str:
        return str(self.data) if self.store is None else self.store


def store_location(store: str | None, data: Path | None = None, config: Path | None = None) -> StoreLocation:
    """What the options say; of store and data exactly one is given, or a broker's settings name the store."""
    settings = None if data is not None else _settings(config)
    if store is None and settings is not None and settings["zookeeper.connect"]:
        store = f"{_SCHEME}{settings['zookeeper.connect']}"
    if (store is None) == (data is None):
        raise bad_input("where is the metadata? Give --store zookeeper://HOST:PORT/PATH, or --data of a lone broker")
    if store is not None and not store.startswith(_SCHEME):
        raise bad_input(f"--store '{store}' is not zookeeper://HOST:PORT,HOST:PORT/PATH")
    return StoreLocation(store=store, data=data, access=None if settings is None else _access(settings))


def _settings(config: Path | None) -> "BrokerConfig | None":
    """Those of a broker, where they are given, or the environment has what ZooKeeper wants to know."""
    from headrace.config import BrokerConfig, ConfigError

    given = secrets()
    try:
        if config is not None:
            return BrokerConfig.from_file(config, overrides=given)
        return BrokerConfig.parse(given) if given else None
    except ConfigError as error:
        raise bad_input(str(error)) from error


def _access(settings: "BrokerConfig") -> "ZooKeeperAccess":
    from headrace.cluster.zookeeper_access import access_of
    from headrace.config import ConfigError

    try:
        return access_of(settings)
    except ConfigError as error:
        raise bad_input(str(error)) from error


def secure_store(location: StoreLocation, *, is_open: bool, json: bool) -> None:
    """Have what a cluster keeps in ZooKeeper belong to its brokers alone, or to everybody again."""
    if location.access is None or (location.access.login is None and location.access.tls is None):
        raise bad_input(
            "whose is it to be? Give the brokers' settings with --config, or HEADRACE_ZOOKEEPER_AUTH=USER:PASSWORD"
        )

    if location.store is not None and not location.store.removeprefix(_SCHEME).partition("/")[2].strip("/"):
        raise bad_input(f"--store {location} has no path: what a cluster keeps at the top is not its own alone")

    async def change() -> int:
        async with _opened(location, for_writing=False) as store:
            return await cast("ZooKeeperStore", store).set_acls(is_open=is_open)

    changed = _run(change, location)
    if json:
        say_json({"state": "open" if is_open else "secured", "store": str(location), "changed": changed})
        return
    now = "everybody's" if is_open else "the brokers' own"
    say(f"what the cluster keeps at {location} is {now}: {changed} znode(s) were changed")
    if not is_open:
        note("set zookeeper.set.acl=true on all brokers, so that what they write from now on is, too")


def take_backup(source: StoreLocation, file: Path, *, overwrite: bool, json: bool) -> None:
    """Write the metadata to a file, and say what is in it."""
    if file.exists() and not overwrite:
        raise Failure(f"{file} exists; choose another name, or give --force to replace it")

    async def take() -> Backup:
        async with _opened(source, for_writing=False) as store:
            return await backups.take(store, source.kind, now_ms=int(time.time() * 1000), version=__version__)

    taken = _run(take, source)
    content = backups.encode(taken)
    _write_private(file, content)
    if json:
        say_json({"state": "taken", "file": str(file), "bytes": len(content), **taken.summary()})
        return
    say(f"{_described(taken)} in {file}, {len(content):,} bytes")
    note("the file holds the secret by which brokers know each other; only its owner can read it: keep it so")


def restore_backup(target: StoreLocation, file: Path, *, force: bool, dry_run: bool, json: bool) -> None:
    """Put the metadata of a file into an empty store, or in the place of what is there."""
    try:
        kept = backups.decode(file.read_bytes())
    except BackupError as error:
        raise Failure(f"{file} cannot be restored: {error}") from error

    creation = backups.restoration(kept, SystemRandom())

    async def put_back() -> backups.RestoreTarget:
        async with _opened(target, for_writing=not dry_run, cluster_id=kept.cluster_id) as store:
            found = await backups.look(store)
            backups.refuse(kept, target.kind, found, newest_level=SUPPORTED.max, force=force)
            if not dry_run:
                await backups.restore(store, creation, found)
            return found

    before = _run(put_back, target)
    if json:
        state = "planned" if dry_run else "restored"
        say_json({"state": state, "store": str(target), "replaced_keys": len(before.entries), **kept.summary()})
        return
    _report(kept, target, before, dry_run=dry_run)


def _report(kept: Backup, target: StoreLocation, before: backups.RestoreTarget, *, dry_run: bool) -> None:
    verb = "would be restored" if dry_run else "restored"
    replaced = "" if before.is_empty else f", in the place of {len(before.entries)} keys"
    say(f"{_described(kept)} {verb} to {target}{replaced}")
    if dry_run:
        for topic in kept.topics:
            say(f"topic {topic.name}: {len(topic.partitions)} partitions, {len(topic.configs)} settings")
        return
    if kept.store is StoreKind.ZOOKEEPER:
        note("start the brokers: a partition is led once all its replicas have told how far their logs reach")
    note("topics and settings that were made since the backup are not known; their logs are set aside, not deleted")


def _described(backup: Backup) -> str:
    numbers = backup.summary()
    taken = datetime.fromtimestamp(backup.taken_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"cluster {backup.cluster_id} as of {taken}: {numbers['topics']} topics, {numbers['partitions']} partitions, "
        f"{numbers['keys']} keys, feature level {backup.level}"
    )


def _run(work: Callable[[], Awaitable[T]], location: StoreLocation) -> T:
    async def run() -> T:
        waiting = asyncio.get_running_loop().call_later(_SILENT_SECONDS, note, f"headrace: waiting for {location}")
        try:
            return await work()
        finally:
            waiting.cancel()

    configure_logs(LogFormat.TEXT, LogLevel.WARNING)
    try:
        return asyncio.run(run())
    except BackupError as error:
        raise Failure(str(error)) from error
    except StoreError as error:
        unreachable = location.kind is StoreKind.ZOOKEEPER
        message = f"--store {location}: {error}" if unreachable else str(error)
        raise Failure(message, ExitCode.UNREACHABLE if unreachable else ExitCode.FAILED) from error
    except StorageError as error:
        raise Failure(f"--data {location}: {error}") from error


@asynccontextmanager
async def _opened(location: StoreLocation, *, for_writing: bool, cluster_id: str = "") -> AsyncIterator[MetadataStore]:
    store: Any
    if location.store is not None:
        from headrace.cluster.zookeeper import ZooKeeperStore
        from headrace.cluster.zookeeper_access import OPEN

        store = await ZooKeeperStore.open(
            location.store, patience=_PATIENCE_SECONDS, make_path=for_writing, access=location.access or OPEN
        )
        try:
            yield store
        finally:
            await store.close()
        return
    assert location.data is not None
    with _held(location.data):
        _refuse_directory(location.data, cluster_id)
        file = location.data / _METADATA_FILE
        # A dry run is not to leave a file: one that is not there is as empty as one in memory.
        store = await SqliteStore.open(file if for_writing or file.exists() else ":memory:")
        try:
            yield store
        finally:
            await store.close()


@contextmanager
def _held(data: Path) -> Iterator[None]:
    """A data directory that no broker may start on meanwhile."""
    if not data.is_dir():
        raise BackupError(f"there is no data directory {data}")
    try:
        lock = RealDisk().lock(str(data / checkpoints.LOCK))
    except DirectoryLocked as error:
        raise BackupError(f"a broker runs on {data}, and keeps its metadata locked: stop it first") from error
    try:
        yield
    finally:
        lock.release()


def _refuse_directory(data: Path, cluster_id: str) -> None:
    """`cluster_id` is that of a backup to restore; empty to take one."""
    owner = ""
    with suppress(FileNotFoundError):
        owner = checkpoints.decode_properties((data / checkpoints.META_PROPERTIES).read_bytes()).get("cluster.id", "")
    if not cluster_id and not (data / _METADATA_FILE).exists():
        reason = "a broker of a cluster keeps them in ZooKeeper: use --store" if owner else "is it a data directory?"
        raise BackupError(f"there are no metadata in {data} ({_METADATA_FILE}); {reason}")
    if cluster_id and owner not in ("", cluster_id):
        raise BackupError(f"{data} belongs to cluster {owner}, and the backup is of cluster {cluster_id}")


def _write_private(file: Path, content: bytes) -> None:
    """Whole or not at all, and for nobody else to read."""
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(file.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
