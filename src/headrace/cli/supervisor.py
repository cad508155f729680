"""Child processes that live and die together.

Each child is a `headrace` command that prints `headrace ready name=value` once it serves. One SIGINT or SIGTERM ends
them all; so does a child that ends by itself, unless it is one that is started again. Children are in process groups
of their own, so that a Ctrl-C reaches them only through us, and stop by themselves should this process be killed
(`--stop-with-stdin`).
"""

import asyncio
import signal
import sys
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from .console import ExitCode, note

GRACE_SECONDS: Final = 30.0
REVIVAL_SECONDS: Final = 1.0
"""Between the death of a child and its next life; twice as long after each life in which it did not get ready."""
MOST_REVIVALS: Final = 5
"""In a row, without getting ready in between."""
_READY: Final = "headrace ready "


@dataclass(slots=True)
class Child:
    """A `headrace` command, through all its lives."""

    name: str
    arguments: tuple[str, ...]
    stage: int
    """Children of a higher stage are stopped before those of a lower one; those of one stage together."""
    revives: bool
    process: asyncio.subprocess.Process
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    values: dict[str, str] = field(default_factory=dict)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is started again, or stopped for good."""
    lives: int = 1
    failures: int = 0
    """Lives in a row that ended before it was ready."""

    def ready_value(self, name: str) -> str:
        """What the child said of itself when it was ready; empty before."""
        return self.values.get(name, "")

    @property
    def title(self) -> str:
        return f"{self.name} (pid {self.process.pid})"

    async def watch(self) -> int:
        """Take in what the child prints until it ends; its exit code."""
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip()
            if line.startswith(_READY):
                self.values = dict(word.split("=", 1) for word in line.removeprefix(_READY).split() if "=" in word)
                self._is_ready()
            else:
                note(line)
        return await self.process.wait()

    def _is_ready(self) -> None:
        self.ready.set()
        self.failures = 0
        if self.lives > 1:
            note(f"headrace: {self.title} is back")

    def send(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            try:
                self.process.send_signal(number)
            except ProcessLookupError:
                pass


class Supervisor:
    """Starts children, waits for them, stops them all.

    `exit_code` and `failure` tell of a child that ended by itself; `failure` is empty if the child has said why.
    """

    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self.failure = ""
        self.exit_code = 0
        self._grace = grace
        self._children: list[Child] = []
        self._watches: dict[asyncio.Task[int], Child] = {}

    async def __aenter__(self) -> Self:
        self._asked = asyncio.Event()
        self._asked_again = asyncio.Event()
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for stage in sorted({child.stage for child in self._children}, reverse=True):
            await asyncio.gather(*(self._stop(child) for child in self._children if child.stage == stage))
        await asyncio.gather(*self._watches, return_exceptions=True)

    async def start(
        self, command: str, *arguments: str, name: str = "", stage: int = 0, revives: bool = False
    ) -> Child:
        """Start `headrace COMMAND ARGUMENTS...`; with `revives` it is started again whenever it ends."""
        line = (command, *arguments, "--stop-with-stdin")
        child = Child(name or command, line, stage, revives, await _spawn(line))
        self._children.append(child)
        self._watches[asyncio.create_task(self._look_after(child))] = child
        return child

    async def all_ready(self) -> bool:
        """Whether every child is ready; False as soon as one has ended or a stop was asked for."""
        everyone = asyncio.create_task(self._everyone_ready())
        await self._first_of(everyone)
        ready = everyone.done() and not self._asked.is_set() and not self.exit_code
        everyone.cancel()
        return ready

    async def finished(self) -> None:
        """Return when a stop was asked for or a child has ended for good."""
        await self._first_of()

    async def _everyone_ready(self) -> None:
        for child in self._children:
            await child.ready.wait()

    async def _first_of(self, *others: asyncio.Task[None]) -> None:
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait([asked, *self._watches, *others], return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not self._asked.is_set():
            self._note_deaths()

    def _note_deaths(self) -> None:
        for watch, child in self._watches.items():
            if watch.done() and not self.exit_code:
                self.failure = _obituary(child, watch.result())
                self.exit_code = _code_for(watch.result())

    def _on_signal(self) -> None:
        (self._asked_again if self._asked.is_set() else self._asked).set()

    async def _look_after(self, child: Child) -> int:
        """The exit code of a child's last life."""
        while True:
            code = await child.watch()
            if self._asked.is_set() or self._stopping.is_set() or not _may_revive(child):
                return code
            await self._mourn(child, code)
            async with child.changing:
                if self._asked.is_set() or self._stopping.is_set():
                    return code
                child.ready.clear()
                child.lives += 1
                child.failures += 1
                child.process = await _spawn(child.arguments)

    async def _mourn(self, child: Child, code: int) -> None:
        """Say so, and wait a while, unless all is to stop."""
        note(f"headrace: {child.title} {_end(code)}; it is started again")
        asked = asyncio.create_task(self._asked.wait())
        stopping = asyncio.create_task(self._stopping.wait())
        pause = REVIVAL_SECONDS * 2**child.failures
        await asyncio.wait([asked, stopping], timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        stopping.cancel()

    async def _stop(self, child: Child) -> None:
        async with child.changing:
            child.send(signal.SIGTERM)
            again = asyncio.create_task(self._asked_again.wait())
            ended = asyncio.create_task(child.process.wait())
            await asyncio.wait([again, ended], timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
            again.cancel()
            if not ended.done():
                note(f"headrace: {child.title} did not stop in time; killed")
                child.send(signal.SIGKILL)
            await ended


async def _spawn(arguments: tuple[str, ...]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        process_group=0,
    )


def _may_revive(child: Child) -> bool:
    """One that never got ready has said why, and would say so again."""
    return child.revives and (child.ready.is_set() or child.lives > 1) and child.failures < MOST_REVIVALS


def _end(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _obituary(child: Child, code: int) -> str:
    if code > 0 and not child.ready.is_set():
        return ""
    when = "" if child.ready.is_set() else " before it was ready"
    return f"the {child.title} {_end(code)}{when}; everything was stopped"


def _code_for(code: int) -> int:
    return code if code in (ExitCode.USAGE, ExitCode.UNREACHABLE) else ExitCode.FAILED
