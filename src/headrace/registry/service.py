"""The registry of one gateway: follows the log, answers from the state, and proposes changes until they are decided.

There is no leader. A change is decided here, appended to the log, and settled by its place there: at replay everyone
accepts or voids it alike. A void one is decided again against the newer state, which may find that somebody else has
registered the same schema, or one that this one is incompatible with.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import structlog

from headrace.schema_log.records import NewerFormatError, Proposal, decode, encode
from headrace.schema_log.state import Outcome, RegistryState, Version

from . import decisions, errors
from .errors import RegistryError
from .judging import Inline, Judge
from .log import LogEntry, LogUnavailableError, SchemaLog
from .parsing import Posted
from .sources import source_of

log = structlog.get_logger(__name__)
PATIENCE_SECONDS: Final = 30.0
"""How long a change may take to be decided, and a fresh gateway to read the log."""

_T = TypeVar("_T")
Decided = tuple[_T, Proposal | None]
"""What a request comes to: its answer, and what must be proposed for it, if anything."""
Decide = Callable[[RegistryState], Decided[_T] | Awaitable[Decided[_T]]]


class _Turns:
    """Locks by name, each kept only while somebody has it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def take(self, name: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(name, (asyncio.Lock(), 0))
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(name)
            if users > 1:
                self._locks[name] = (lock, users - 1)


class Registry:
    """What a gateway knows of the log, and its way to add to it. `new_key` gives every proposal a key of its own."""

    def __init__(
        self,
        schemas: SchemaLog,
        judge: Judge | None = None,
        *,
        patience: float = PATIENCE_SECONDS,
        new_key: Callable[[], bytes] = lambda: uuid.uuid4().bytes,
    ) -> None:
        self.state = RegistryState()
        self.judge = judge or Inline()
        self._log = schemas
        self._patience = patience
        self._new_key = new_key
        self._proposed: dict[bytes, asyncio.Future[Outcome]] = {}
        self._awaited: list[tuple[int, asyncio.Future[None]]] = []
        self._turns = _Turns()
        self._catching_up = asyncio.Lock()
        self._caught_up = 0
        self._broken: str | None = None
        self._loaded = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Registry"]:
        """Follows the log while the block runs."""
        task = asyncio.create_task(self._follow(), name="schema registry")
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def read(self, question: Callable[[RegistryState], Awaitable[_T]] | Callable[[RegistryState], _T]) -> _T:
        """The answer to a question. A "not found" is only given after looking at all that was decided before it."""
        await self.loaded()
        try:
            found: _T = await _settled(question(self.state))
            return found
        except RegistryError as error:
            if error.status != 404:
                raise
        await self.catch_up()
        again: _T = await _settled(question(self.state))
        return again

    async def registered(self, subject: str, posted: Posted, *, normalize: bool = False) -> Version:
        """The version that a schema has or gets."""

        async def decide(state: RegistryState) -> Decided[Version | None]:
            found = await decisions.register(state, self.judge, subject, posted, normalize=normalize)
            return (None, found) if isinstance(found, Proposal) else (found, None)

        known, outcome = await self.change(subject, decide)
        entry = known if outcome is None else outcome.version
        assert entry is not None
        return entry

    async def text(self, entry: Version, form: str) -> str:
        """A version's text, in a form that is asked for by name."""
        if not form:
            return entry.schema.text
        return await self.judge.shown(source_of(self.state, entry.subject, entry.schema), form)

    async def change(self, turn: str, decide: Decide[_T]) -> tuple[_T, Outcome | None]:
        """Decide, propose, and decide again until the log has taken a proposal or none is needed. A refusal comes
        only after looking at all that was decided before it.

        Changes with the same `turn` wait for each other here, so that one gateway does not compete with itself.
        """
        await self.loaded()
        try:
            async with asyncio.timeout(self._patience), self._turns.take(turn):
                return await self._decide(decide)
        except TimeoutError as error:
            raise errors.timed_out("The change was not decided in time; it may still take effect") from error
        except LogUnavailableError as error:
            raise errors.store_failed(str(error)) from error

    async def catch_up(self) -> None:
        """Returns once the state has all that was durable when this was called."""
        ticket = self._caught_up
        try:
            async with asyncio.timeout(self._patience), self._catching_up:
                if self._caught_up > ticket + 1:
                    return
                await self._reached(await self._log.end() - 1)
                self._caught_up += 1
        except TimeoutError as error:
            raise errors.timed_out("The log was not read to its end in time") from error
        except LogUnavailableError as error:
            raise errors.store_failed(str(error)) from error

    async def _decide(self, decide: Decide[_T]) -> tuple[_T, Outcome | None]:
        while True:
            try:
                answer, proposal = await _settled(decide(self.state))
            except RegistryError:
                await self.catch_up()
                answer, proposal = await _settled(decide(self.state))
            if proposal is None:
                return answer, None
            outcome = await self._propose(proposal)
            if outcome.accepted:
                return answer, outcome

    async def _propose(self, proposal: Proposal) -> Outcome:
        """Append, and wait for the record to come back in its place."""
        key = self._new_key()
        decided: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._proposed[key] = decided
        try:
            await self._log.append(key, encode(proposal))
            return await decided
        finally:
            del self._proposed[key]

    async def _follow(self) -> None:
        try:
            async for entry in self._log.follow():
                self._take(entry)
        except (NewerFormatError, LogUnavailableError) as error:
            self._stop(str(error))
        except Exception as error:
            log.exception("the schema registry stopped", exc_info=error)
            self._stop("reading the log failed; the gateway's log says why")

    def _take(self, entry: LogEntry) -> None:
        outcome = self.state.apply(entry.offset, decode(entry.value))
        decided = self._proposed.get(entry.key)
        if decided is not None and not decided.done():
            decided.set_result(outcome)
        if self._awaited:
            self._wake()

    def _wake(self) -> None:
        for offset, arrival in self._awaited:
            if offset <= self.state.applied and not arrival.done():
                arrival.set_result(None)
        self._awaited = [(offset, arrival) for offset, arrival in self._awaited if not arrival.done()]

    def _stop(self, reason: str) -> None:
        self._broken = reason
        failure = LogUnavailableError(reason)
        waiters: list[asyncio.Future[Any]] = [*self._proposed.values(), *(arrival for _, arrival in self._awaited)]
        for waiting in waiters:
            if not waiting.done():
                waiting.set_exception(failure)

    async def _reached(self, offset: int) -> None:
        if self._broken is not None:
            raise LogUnavailableError(self._broken)
        if offset > self.state.applied:
            arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaited.append((offset, arrival))
            await arrival

    async def loaded(self) -> None:
        """Returns once the log was read to its end for the first time."""
        if self._broken is not None:
            raise errors.store_failed(self._broken)
        if not self._loaded:
            await self.catch_up()
            self._loaded = True


async def _settled(found: Any) -> Any:
    """What was found, when it is."""
    return await found if isinstance(found, Awaitable) else found
