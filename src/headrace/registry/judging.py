"""Who judges schemas: an interface, one that does it on the spot, and one that has other processes do it.

A schema may be written so that understanding it takes for ever. In a process of its own that takes nobody's time: it
gives up by itself, and is killed if it does not.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol, TypeVar

import msgspec
import structlog

from . import errors
from .errors import InvalidSchemaError
from .parsing import Comparison, Prepared, SchemaParser, Source
from .worker import HEAD, Compare, Mean, Prepare, Question, Show, Verdict

MOST_WORKERS: Final = 4
"""Processes that are started as they are needed: a hostile schema keeps one of them busy."""
PROCESSOR_SECONDS: Final = 3.0
"""What one question may take: twice what the largest honest schema does."""
ANSWER_SECONDS: Final = 15.0
"""After which a process is killed that should have given up long ago."""
WAIT_SECONDS: Final = 15.0
"""How long a schema may wait for its turn."""

_T = TypeVar("_T")
log = structlog.get_logger(__name__)


class Judge(Protocol):
    """Parses and compares schemas, in its own time. InvalidSchemaError for what is none, or would take too long."""

    async def prepare(self, source: Source, *, normalize: bool, strict: bool = True) -> Prepared:
        """A posted schema as it would be registered; held to rules that older ones may have escaped if it is strict."""

    async def meaning(self, source: Source) -> str:
        """The same for schemas that say the same."""

    async def shown(self, source: Source, form: str) -> str:
        """A schema's text in a form that is asked for by name."""

    async def objections(self, comparison: Comparison) -> list[str]:
        """What cannot be read; empty if all can."""


class Inline:
    """Judges here and now, so that whoever asks never waits, and everyone else does."""

    def __init__(self, parser: SchemaParser | None = None) -> None:
        self._parser = parser or SchemaParser()

    async def prepare(self, source: Source, *, normalize: bool, strict: bool = True) -> Prepared:
        return self._parser.prepare(source, normalize=normalize, strict=strict)

    async def meaning(self, source: Source) -> str:
        return self._parser.meaning(source)

    async def shown(self, source: Source, form: str) -> str:
        return self._parser.shown(source, form)

    async def objections(self, comparison: Comparison) -> list[str]:
        return self._parser.objections(comparison)


class Workers:
    """Judges in other processes, so that the event loop never waits for a schema."""

    def __init__(
        self,
        most: int = MOST_WORKERS,
        *,
        processor_seconds: float = PROCESSOR_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._turns = asyncio.Semaphore(most)
        self._processor_seconds = processor_seconds
        self._idle: list[_Worker] = []
        self._answer_seconds = answer_seconds

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Workers"]:
        """Ends the processes after the block."""
        try:
            yield self
        finally:
            while self._idle:
                await self._idle.pop().end()

    async def prepare(self, source: Source, *, normalize: bool, strict: bool = True) -> Prepared:
        return await self._ask(Prepare(source, normalize, strict), Prepared)

    async def meaning(self, source: Source) -> str:
        return await self._ask(Mean(source), str)

    async def shown(self, source: Source, form: str) -> str:
        return await self._ask(Show(source, form), str)

    async def objections(self, comparison: Comparison) -> list[str]:
        return await self._ask(Compare(comparison), list[str])

    async def _ask(self, question: Question, kind: type[_T]) -> _T:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._turns.acquire()
        except TimeoutError as error:
            raise errors.timed_out("Too many schemas wait to be judged; try again") from error
        try:
            return await self._answered(question, kind)
        finally:
            self._turns.release()

    async def _answered(self, question: Question, kind: type[_T]) -> _T:
        worker = self._idle.pop() if self._idle else await _Worker.start(self._processor_seconds)
        is_well = False
        try:
            async with asyncio.timeout(self._answer_seconds):
                verdict = await worker.ask(question)
            is_well = True
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            log.warning("a process that judges schemas was ended", reason=str(error) or type(error).__name__)
            raise InvalidSchemaError("too complex: it was given up") from error
        finally:
            if is_well:
                self._idle.append(worker)
            else:
                await worker.end()
        if verdict.defect is not None:
            raise RuntimeError(f"a process that judges schemas failed: {verdict.defect}")
        if verdict.refusal is not None:
            raise InvalidSchemaError(verdict.refusal)
        return msgspec.msgpack.decode(verdict.value, type=kind)


class _Worker:
    """One process. Who asks and does not stay for the answer must end it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, processor_seconds: float) -> "_Worker":
        command = (sys.executable, "-P", "-m", "headrace.registry.worker", str(processor_seconds))
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))

    async def ask(self, question: Question) -> Verdict:
        source, target = self._process.stdout, self._process.stdin
        assert source is not None
        assert target is not None
        asked = msgspec.msgpack.encode(question)
        target.write(HEAD.pack(len(asked)) + asked)
        await target.drain()
        length = HEAD.unpack(await source.readexactly(HEAD.size))[0]
        return msgspec.msgpack.decode(await source.readexactly(length), type=Verdict)

    async def end(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
