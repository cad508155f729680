"""The store of a cluster: ZooKeeper.

What may be relied on:

- A commit happened, or did not, or raises `Uncertain`; it is never sent twice.
- Reads are repeated until they are answered. None shows less than was committed before its connection was made, so
  that a read after `Uncertain` tells what became of the commit: by then no server takes it any more. `list` shows all
  that was committed before it was called; it is not one moment's picture, others may write while it reads.
- A key is created before the keys below it and deleted after them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import structlog
from kazoo.exceptions import (
    BadArgumentsError,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    QuotaExceededError,
    ThrottledOpError,
    UnimplementedError,
)
from kazoo.protocol.serialization import GetChildren, GetData
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from .commits import ancestors, refuse_bad_commit, refuse_bad_key
from .kazoo_loop import Answer
from .keeper import Fired, Keeper
from .store import Create, Entries, Operation, SessionState, StoreError, Uncertain, Versioned
from .znodes import (
    Crack,
    Failed,
    Husk,
    Step,
    Znode,
    explained,
    first_failure,
    node_of,
    parents_needed,
    parse_url,
    verdict,
    with_crack,
    with_husks,
)
from .zookeeper_access import OPEN, ZooKeeperAccess

SESSION_SECONDS: Final = 6.0
PATIENCE_SECONDS: Final = 15.0
"""How long a call waits for servers that do not answer."""
_ZOOKEEPERS_OWN: Final = "/zookeeper"
_ATTEMPTS: Final = 6
_WINDOW: Final = 4
_FIRST_PORTION: Final = 32
_LARGEST_PORTION: Final = 512
_PORTION_BYTES: Final = 256 * 1024
_STAT_BYTES: Final = 100

_REFUSALS: Final = (
    BadArgumentsError,
    InvalidACLError,
    NoAuthError,
    QuotaExceededError,
    ThrottledOpError,
    UnimplementedError,
)
"""A transaction that fails with one of these was not carried out."""

log = structlog.get_logger(__name__)

Names = list[str]
Nodes = list[Znode | None]
Steps = list[Step]


class ZooKeeperStore:
    """A `SharedStore` in ZooKeeper (3.6 or later), in one session at a time."""

    def __init__(self, url: str, session_timeout: float, patience: float, access: ZooKeeperAccess = OPEN) -> None:
        place = parse_url(url)
        self._root = place.root
        self._access = access
        self._keeper = Keeper(place, session_timeout, patience, access=access)
        self._keeper.listeners.append(lambda _: self._fire_all())
        self._watches: set[asyncio.Event] = set()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        session_timeout: float = SESSION_SECONDS,
        patience: float = PATIENCE_SECONDS,
        make_path: bool = True,
        access: ZooKeeperAccess = OPEN,
    ) -> "ZooKeeperStore":
        """The store at `zookeeper://host:port,host:port/path`; the path is made if it does not exist, unless who opens
        it only means to read.

        The servers bound the session's timeout, by default to between 4 and 40 s.
        """
        store = cls(url, session_timeout, patience, access)
        try:
            await store._keeper.start()
            if make_path:
                await store._make_root()
                await store._warn_where_open()
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def session(self) -> SessionState:
        return self._keeper.session

    @property
    def session_seconds(self) -> float:
        return self._keeper.session_seconds

    def silence(self) -> float:
        return self._keeper.silence()

    def on_session(self, told: Callable[[SessionState], None]) -> None:
        self._keeper.listeners.append(told)

    async def close(self) -> None:
        """Ends the session: what is ephemeral goes at once. What was sent before is answered first."""
        await self._keeper.close()
        self._fire_all()

    async def get(self, key: str) -> Versioned | None:
        refuse_bad_key(key)
        (node,) = await self._read_data([key])
        return None if node is None else node.versioned()

    async def list(self, prefix: str) -> Entries:
        await self._keeper.barrier()
        above, _, stem = prefix.rpartition("/")
        (names,) = await self._read([GetChildren(self._root + above or "/", None)])
        level = [f"{above}/{name}" for name in names or () if name.startswith(stem)]
        if not self._root and _ZOOKEEPERS_OWN in level:
            level.remove(_ZOOKEEPERS_OWN)
        found: Entries = []
        while level:
            nodes = await self._read_all(level)
            found += [(key, stored) for key, node in nodes if (stored := node.versioned()) is not None]
            level = await self._names_below([key for key, node in nodes if node.children])
        return sorted(found, key=lambda entry: entry[0])

    async def commit(self, operations: Sequence[Operation]) -> None:
        refuse_bad_commit(operations)
        session = self._keeper.session_number
        steps: Steps = list(operations)
        for attempt in range(_ATTEMPTS):
            await self._keeper.until_connected()
            if session != self._keeper.session_number:
                raise StoreError("the session in ZooKeeper ended before the commit was sent; nothing was changed")
            failed = await self._attempt(steps, session)
            if failed is None:
                return
            if attempt == _ATTEMPTS - 1:
                raise verdict(failed)
            steps = await self._another_way(operations, steps, failed)

    async def watch(self, key: str) -> tuple[Versioned | None, asyncio.Event]:
        refuse_bad_key(key)
        path = self._root + key

        async def look(fired: Fired) -> Answer:
            try:
                (value, stat), connection = await self._keeper.watch_data(path, fired)
            except NoNodeError:
                return await self._await_creation(path, fired)
            return node_of(value, stat).versioned(), connection

        found, event = await self._watching(look)
        return found, event

    async def watch_children(self, parent: str) -> tuple[Names, asyncio.Event]:
        path = self._root + parent.rstrip("/") or "/"

        async def look(fired: Fired) -> Answer:
            try:
                return await self._keeper.watch_names(path, fired)
            except NoNodeError:
                return await self._await_creation(path, fired)

        names, event = await self._watching(look)
        return sorted(names or ()), event

    async def _watching(self, look: Callable[[Fired], Awaitable[Answer]]) -> tuple[Any, asyncio.Event]:
        """What is there, and an event for the watch left on it."""

        async def look_once() -> Answer:
            event = asyncio.Event()

            def fired(_: object) -> None:
                event.set()
                self._watches.discard(event)

            self._watches.add(event)
            found, connection = await look(fired)
            return (found, event), connection

        found, event = await self._keeper.repeatedly(look_once)
        return found, event

    def _fire_all(self) -> None:
        watches, self._watches = self._watches, set()
        for event in watches:
            event.set()

    async def _await_creation(self, path: str, fired: Fired) -> Answer:
        """Nothing, with a watch for its creation; an answer that makes us look again if it was created meanwhile."""
        stat, connection = await self._keeper.watch_existence(path, fired)
        return None, connection if stat is None else -1

    async def _read(self, wanted: Sequence[GetData | GetChildren]) -> Any:
        answers = await self._keeper.repeatedly(lambda: self._keeper.read(wanted))
        for answer in answers:
            if isinstance(answer, Exception):
                raise StoreError(f"ZooKeeper refuses a read: {explained(answer)}")
        return answers

    async def _read_data(self, keys: Sequence[str]) -> Nodes:
        nodes: Nodes = await self._read([GetData(self._root + key, None) for key in keys])
        return nodes

    async def _read_all(self, keys: Sequence[str]) -> "Sequence[tuple[str, Znode]]":
        """The nodes that are there. As much is asked for at a time as keeps the answers of moderate size."""
        nodes: list[tuple[str, Znode]] = []
        portion = _FIRST_PORTION
        start = 0
        while start < len(keys):
            wave = keys[start : start + _WINDOW * portion]
            start += len(wave)
            parts = [wave[at : at + portion] for at in range(0, len(wave), portion)]
            answers = chain.from_iterable(await asyncio.gather(*map(self._read_data, parts)))
            seen = [(key, node) for key, node in zip(wave, answers, strict=True) if node is not None]
            nodes += seen
            size = sum(_STAT_BYTES + len(node.value or b"") for _, node in seen)
            portion = max(1, min(_LARGEST_PORTION, _PORTION_BYTES * len(seen) // max(size, 1)))
        return nodes

    async def _names_below(self, parents: Sequence[str]) -> Names:
        below: Names = []
        for start in range(0, len(parents), _LARGEST_PORTION):
            part = parents[start : start + _LARGEST_PORTION]
            answers = await self._read([GetChildren(self._root + parent, None) for parent in part])
            below += [f"{parent}/{name}" for parent, names in zip(part, answers, strict=True) for name in names or ()]
        return below

    async def _make_root(self) -> None:
        steps = [Husk(key) for key in (*ancestors(self._root), self._root) if key]
        for step in steps:
            results = await self._keeper.repeatedly(partial(self._keeper.transact, [step], ""))
            failed = first_failure([step], results)
            if failed is None or isinstance(failed.error, NodeExistsError):
                continue
            if not isinstance(failed.error, NoAuthError) or not await self._exists(step.key):  # others made it for us
                raise StoreError(f"ZooKeeper refuses to make the path {step.key}: {explained(failed.error)}")

    async def _exists(self, path: str) -> bool:
        async def look() -> Answer:
            return await self._keeper.watch_existence(path, lambda _: None)

        return await self._keeper.repeatedly(look) is not None

    async def _warn_where_open(self) -> None:
        if self._access.sets_acl and await self._is_open(self._root):
            log.warning(
                "store open to all",
                path=self._root,
                advice="`headrace cluster secure-store` makes what is there already the brokers' own",
            )

    async def _is_open(self, path: str) -> bool:
        found, _ = await self._keeper.repeatedly(lambda: self._keeper.acl_of(path))
        return any(each.id.scheme == "world" for each in found)

    async def set_acls(self, *, is_open: bool) -> int:
        """Have all that is there belong to us alone, or to everybody again; how many znodes were changed.

        From the root down, so that nobody puts anything below what is ours meanwhile.
        """
        changed = 0
        level = [self._root or "/"]
        acl = OPEN_ACL_UNSAFE if is_open else CREATOR_ALL_ACL
        while level:
            for start in range(0, len(level), _LARGEST_PORTION):
                part = level[start : start + _LARGEST_PORTION]
                changed += sum(await asyncio.gather(*(self._set_acl(path, acl, is_open=is_open) for path in part)))
            below = await self._names_below([path.removeprefix(self._root).rstrip("/") for path in level])
            level = [self._root + key for key in below if self._root or key != _ZOOKEEPERS_OWN]
        return changed

    async def _set_acl(self, path: str, acl: Sequence[Any], *, is_open: bool) -> bool:
        try:
            if await self._is_open(path) == is_open:
                return False
            await self._keeper.repeatedly(lambda: self._keeper.set_acl(path, acl))
        except StoreError as error:
            if isinstance(error.__cause__, NoNodeError):
                return False  # gone meanwhile
            raise
        return True

    async def _attempt(self, steps: Sequence[Step], session: int) -> Failed | None:
        """Sends a transaction, once; what kept it from happening."""
        try:
            results, _ = await self._keeper.transact(steps, self._root)
        except _REFUSALS as error:
            raise StoreError(f"ZooKeeper refuses a commit: {explained(error)}") from error
        except KazooException as error:
            raise Uncertain(f"ZooKeeper did not say whether a commit happened ({type(error).__name__})") from error
        failed = first_failure(steps, results)
        is_bound = any(isinstance(step, Create) and step.ephemeral for step in steps)
        if failed is None and is_bound and session != self._keeper.session_number:
            raise Uncertain("what is ephemeral belongs to a later session than the one it was created in")
        return failed

    async def _another_way(self, operations: Sequence[Operation], steps: Sequence[Step], failed: Failed) -> Steps:
        """The steps to try after husks turned out to be missing, or in the way; raises what else is wrong.

        ZooKeeper has refused the last ones as a whole, so that nothing is done twice.
        """
        step, error = failed
        if isinstance(step, Husk) or (isinstance(step, Create) and isinstance(error, NoNodeError)):
            needed = parents_needed(operations)
            nodes = await self._read_data(needed)
            return with_husks(operations, [key for key, node in zip(needed, nodes, strict=True) if node is None])
        if isinstance(step, Crack) and not isinstance(error, NotEmptyError):
            return [*operations]
        if not isinstance(step, Create) or not isinstance(error, NodeExistsError):
            raise verdict(failed)
        (node,) = await self._read_data([step.key])
        if node is not None and node.value is not None:
            raise verdict(failed)
        return [*steps] if node is None else with_crack(steps, step, node)
