"""This broker's membership: registers it, follows who the controller is, runs the controller when elected.

One task does all of it, so that its steps never overlap:

1.  Register, in the store of this cluster and no other. A key that the same data directory left behind is replaced if
    it was served at the same place: its process is gone, as the directory is locked by this one. Else a copy of the
    directory may be served elsewhere, and the key stays until its session ends. With each registration the mark of
    this broker is compared and renewed (`lineage`).
2.  See who the controller is. Where there is none, try to be: the commit that creates `/controller` also raises
    `/controller_epoch`, so exactly one wins, and every earlier controller is fenced.
3.  Be the controller while elected, until the session ends or the controller is fenced.

When the session is lost this broker may have been replaced without knowing it: it steps down from everything it leads
first, then registers anew, with a new epoch.
"""

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from math import inf
from random import Random
from typing import Any, Final, Protocol

import structlog

from headrace.protocol.errors import CodedError
from headrace.storage.disk import StorageError

from .feature_level import check_level
from .fenced import Deposed
from .identity import WrongCluster, check_cluster
from .lineage import MARK_SECONDS, LineageVerdict, StoreMemory, look
from .log_faults import LogKey
from .registration import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    DataLoss,
    Registration,
    decode_registration,
    encode_registration,
    registration_key,
)
from .store import (
    AlreadyExists,
    Check,
    Conflict,
    Create,
    Delete,
    NotFound,
    Operation,
    Put,
    SessionState,
    SharedStore,
    StoreError,
    Uncertain,
    Versioned,
)

RETRY_SECONDS: Final = 0.5
COPY_SESSIONS: Final = 2
"""Sessions that a start waits for the end of another one with the same directory: of this broker before a reboot."""
LEAVE_SECONDS: Final = 2.0
"""How long the store may take to note that this broker leaves; after that its session says so, later."""

log = structlog.get_logger(__name__)


class IdInUse(Exception):
    """Another broker of the same number is alive."""


class DirectoryIdentity(StoreMemory, Protocol):
    """What a broker's data directory knows, and says with each registration."""

    @property
    def loss(self) -> DataLoss: ...
    @property
    def synced(self) -> frozenset[LogKey]:
        """Logs of which nothing acknowledged is lost, where something else may be."""
        ...

    @property
    def saw_set_back(self) -> bool: ...


class MembershipListener(Protocol):
    """What the rest of the broker does on changes of membership."""

    def registered(self, epoch: int) -> None:
        """This broker is alive, with this epoch."""
        ...

    def step_down(self) -> None:
        """Lead nothing any more, at once: the session is lost."""
        ...

    def store_set_back(self) -> None:
        """The store is older than what this broker knows: nothing that it knows of partitions' states counts."""
        ...

    def controller_is(self, broker: int | None, epoch: int) -> None:
        """Who the controller is; None while there is none."""
        ...

    async def rule(self, epoch: int, epoch_version: int) -> None:
        """Be the controller until cancelled; returns, or raises `Deposed`, when it is fenced."""
        ...


class Membership:
    """Keeps this broker in the cluster."""

    def __init__(
        self,
        store: SharedStore,
        registration: Registration,
        member: MembershipListener,
        *,
        cluster_id: str,
        memory: DirectoryIdentity,
        rng: Random,
    ) -> None:
        self._store = store
        self.registration = registration
        self._cluster_id = cluster_id
        self._memory = memory
        self._rng = rng
        self._marking = asyncio.Lock()
        self._member = member
        self._id = registration.node.id
        self._newest_epoch = 0
        """Of the controllers that this broker has heard of."""
        self._presuming: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        """Set when the session is lost."""
        store.on_session(self._on_session)

    def _on_session(self, session: SessionState) -> None:
        """A session that was not heard of for as long as it may last counts as lost: others will think so, too.

        The silence began before it was noticed; counted from then on, others would lead while this broker still does.
        """
        if self._presuming is not None:
            self._presuming.cancel()
            self._presuming = None
        if session is SessionState.LOST:
            self._ended.set()
        elif session is SessionState.SUSPENDED:
            loop = asyncio.get_running_loop()
            left = max(self._store.session_seconds - self._store.silence(), 0.0)
            self._presuming = loop.call_later(left, self._ended.set)

    def presume_lost(self) -> None:
        """Count the session as lost, whatever the store may say later."""
        self._ended.set()

    async def run(self) -> None:
        """Be a member until cancelled. Raises `IdInUse`, before it ever was one, when another broker has the number,
        and `UnsupportedLevel` when the cluster has a feature level that this broker does not speak.
        """
        may_wait = False
        while True:
            epoch = await self._register(may_wait=may_wait)
            may_wait = True
            self._member.registered(epoch)
            try:
                await self._until_session_ends(self._follow_controller())
            except Exception:
                self._step_down()  # nobody would notice that the session ends
                raise

    async def _until_session_ends(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs the work; when the session is lost, steps down before anything that could take time."""
        task = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(self._ended.wait())
        waiting: list[asyncio.Future[Any]] = [task, ended]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.is_set():
                log.warning("the session in the metadata store is lost")
                self._step_down()
        finally:
            for future in waiting:
                future.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        if not task.cancelled():
            task.result()

    def _step_down(self) -> None:
        self._member.controller_is(None, -1)
        self._member.step_down()

    async def withdraw(self) -> None:
        """Leave the cluster before stopping, so that nobody has to wait for the session to end."""
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                stored = await self._store.get(registration_key(self._id))
                if stored is not None and self._is_ours(stored):
                    await self._store.commit([Delete(registration_key(self._id), stored.version)])
        except (StoreError, Conflict, TimeoutError) as error:
            log.warning("the broker could not leave the cluster; its session will end", reason=repr(error))

    # Registering

    async def _register(self, *, may_wait: bool) -> int:
        patience = self._store.session_seconds * (inf if may_wait else COPY_SESSIONS)
        deadline = asyncio.get_running_loop().time() + patience
        reported = ""
        while True:
            try:
                return await self._try_to_register(may_wait=asyncio.get_running_loop().time() < deadline)
            except (Conflict, StoreError, StorageError) as error:
                if isinstance(error, WrongCluster) and str(error) != reported:
                    reported = str(error)
                    log.error("the broker cannot be in its cluster", reason=reported)
                log.info("the broker is not registered yet", reason=repr(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _try_to_register(self, *, may_wait: bool) -> int:
        key = registration_key(self._id)
        stored = await self._store.get(key)
        # What was lost before this is not the session that the key will live in; what is lost after it may be.
        self._ended.clear()
        await check_cluster(self._store, self._cluster_id)
        await check_level(self._store, self.registration.levels)
        if stored is not None and not self._is_ours(stored):
            if not may_wait or not self._is_same_directory(stored):
                raise IdInUse(self._in_use(stored))
            raise AlreadyExists(key)
        async with self._marking:
            await self._commit_registration(key, stored)
        created = await self._store.get(key)
        if created is None or not self._is_ours(created):
            raise NotFound(key)
        return created.created

    async def _commit_registration(self, key: str, before: Versioned | None) -> None:
        marking = await look(self._store, self._id, self._memory, self._rng)
        if marking.verdict is not LineageVerdict.TOGETHER:
            self._heed(marking.verdict)
        memory = self._memory
        self.registration = replace(
            self.registration,
            loss=memory.loss,
            synced=memory.synced,
            saw_set_back=memory.saw_set_back,
            lineage=memory.lineage,
        )
        operations: list[Operation] = [Create(key, encode_registration(self.registration), ephemeral=True)]
        if before is not None:
            operations.insert(0, Delete(key, before.version))
        await self._store.commit([*operations, marking.renewal])
        memory.settle_mark()

    def _heed(self, verdict: LineageVerdict) -> None:
        """Written down before the new mark can be in the store, which would tell nothing of it any more."""
        self._memory.note_verdict(verdict)
        if verdict is LineageVerdict.STORE_SET_BACK:
            log.error("the metadata store is older than what this broker has seen of it; was it put back from a copy?")
            self._member.store_set_back()
        else:
            log.error(
                "this broker's data directory is older than what the cluster has seen of it: nothing in it counts"
            )

    def _is_ours(self, stored: Versioned) -> bool:
        return (
            self._is_same_directory(stored)
            and decode_registration(registration_key(self._id), stored).place == self.registration.place
        )

    def _is_same_directory(self, stored: Versioned) -> bool:
        return decode_registration(registration_key(self._id), stored).directory == self.registration.directory

    def _in_use(self, stored: Versioned) -> str:
        found = decode_registration(registration_key(self._id), stored)
        node = found.node
        if found.directory == self.registration.directory:
            return (
                f"broker {self._id} is alive at {node.host}:{node.port} with a copy of this data directory; "
                "stop one of them, and give the other a directory of its own"
            )
        return (
            f"broker {self._id} is alive at {node.host}:{node.port}; give this one another --id, "
            "or stop that one (after a crash its session takes a few seconds to end)"
        )

    async def keep_marked(self) -> None:
        """Renew this broker's mark in the store, until cancelled."""
        while True:
            await asyncio.sleep(MARK_SECONDS)
            async with self._marking:
                try:
                    marking = await look(self._store, self._id, self._memory, self._rng)
                    if marking.verdict is LineageVerdict.TOGETHER:
                        await self._store.commit([marking.renewal])
                        self._memory.settle_mark()
                except (Conflict, StoreError, StorageError) as error:
                    log.info("the broker's mark in the store could not be renewed", reason=repr(error))

    # The controller

    async def _follow_controller(self) -> None:
        while True:
            try:
                await self._see_controller()
            except StoreError as error:
                log.warning("the metadata store cannot be used now", reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def _see_controller(self) -> None:
        stored, changed = await self._store.watch(CONTROLLER)
        if stored is None:
            await self._campaign()
            return
        record = json.loads(stored.value)
        if record["directory"] == self.registration.directory:
            # Of an earlier life of this broker, or of a controller that has resigned: nobody serves it.
            await self._resign()
            return
        if record["epoch"] < self._newest_epoch:
            await self._look_for_set_back()
            return
        self._newest_epoch = record["epoch"]
        self._member.controller_is(record["id"], record["epoch"])
        await changed.wait()

    async def _campaign(self) -> None:
        """Try to be elected, and rule if we are."""
        stored = await self._store.get(CONTROLLER_EPOCH)
        epoch = 1 if stored is None else int(stored.value) + 1
        text = str(epoch).encode()
        raised = Create(CONTROLLER_EPOCH, text) if stored is None else Put(CONTROLLER_EPOCH, text, stored.version)
        version = 0 if stored is None else stored.version + 1
        record = {"id": self._id, "epoch": epoch, "directory": self.registration.directory}
        try:
            await self._store.commit([raised, Create(CONTROLLER, json.dumps(record).encode(), ephemeral=True)])
        except Conflict:
            return
        except Uncertain:
            return  # the next look removes a key of ours that nobody serves; an epoch that nobody rules is passed over
        if epoch < self._newest_epoch:
            self._register_after_set_back()
            return
        self._newest_epoch = epoch
        self._member.controller_is(self._id, epoch)
        try:
            await self._member.rule(epoch, version)
            log.warning("controller resigned", epoch=epoch, reason="it was fenced, or a commit may not have happened")
        except (Deposed, CodedError, StoreError, Conflict) as error:
            log.warning("controller resigned", epoch=epoch, reason=str(error) or repr(error))
        except asyncio.CancelledError:
            log.info("controller resigned", epoch=epoch)
            raise
        except Exception:
            log.exception("the active controller failed, it resigns", epoch=epoch)
        finally:
            if not self._ended.is_set():
                await self._resign()
        await asyncio.sleep(RETRY_SECONDS)  # let another one try first: something was wrong here

    async def _look_for_set_back(self) -> None:
        """Epochs of controllers only grow: a store that knows older ones alone than this broker was set back.

        What is read may be old. Something has to be written first: what is read after that is not older.
        """
        async with self._marking:
            marking = await look(self._store, self._id, self._memory, self._rng)
            if marking.verdict is not LineageVerdict.TOGETHER:
                self._ended.set()  # and registering anew, this broker heeds it
                return
            try:
                await self._store.commit([marking.renewal])
            except Conflict as error:
                raise StoreError(str(error)) from error
            self._memory.settle_mark()
        stored = await self._store.get(CONTROLLER_EPOCH)
        if stored is None or int(stored.value) < self._newest_epoch:
            self._register_after_set_back()

    def _register_after_set_back(self) -> None:
        """Say so to the controller, with a new registration."""
        self._newest_epoch = 0
        self._heed(LineageVerdict.STORE_SET_BACK)
        self._ended.set()

    async def _resign(self) -> None:
        """Remove our own claim, if it is there; the epoch is checked because versions do not tell claims apart."""
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._remove_claim()
        except (StoreError, Conflict, TimeoutError) as error:
            log.warning("the controller's key could not be removed", reason=repr(error))

    async def _remove_claim(self) -> None:
        epoch = await self._store.get(CONTROLLER_EPOCH)
        stored = await self._store.get(CONTROLLER)
        if epoch is None or stored is None:
            return
        if json.loads(stored.value)["directory"] == self.registration.directory:
            await self._store.commit([Check(CONTROLLER_EPOCH, epoch.version), Delete(CONTROLLER, stored.version)])
