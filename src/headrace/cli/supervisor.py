"""Child processes that live and die together: what `headrace up` and `headrace node` run.

Each child is a `headrace` command that prints `headrace ready name=value` once it serves. One SIGINT or SIGTERM ends
them all; so does a child that ends by itself, unless it has a `Revival`. Children are in process groups of their own,
so that a Ctrl-C reaches them only through us, and stop by themselves should this process be killed
(`--stop-with-stdin`). SIGHUP is passed on to them.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Any, Final, Self

import typer

from .console import ExitCode, Failure, note, say, say_json
from .service_manager import VARIABLES
from .watchdog import Watchdog

GRACE_SECONDS: Final = 30.0
REVIVAL_SECONDS: Final = 1.0
"""Between the death of a child and its next life; twice as long after each life in which it did not get ready."""
_READY: Final = "headrace ready "


@dataclass(frozen=True, slots=True, kw_only=True)
class Revival:
    """When a child that has ended is started again."""

    most_failures: float
    """Lives in a row that may end before the child was ready."""
    longest_pause: float
    """Seconds between two lives, at the most."""
    never_ready: bool
    """Whether one is started again that has never been ready. What it says of a wrong option it would only repeat."""

    def may_follow(self, child: "Child", code: int) -> bool:
        if child.failures >= self.most_failures:
            return False
        return child.was_ready or (self.never_ready and code != ExitCode.USAGE)

    def pause(self, failures: int) -> float:
        return float(min(REVIVAL_SECONDS * 2 ** min(failures, 20), self.longest_pause))


DEVELOPMENT: Final = Revival(most_failures=5, longest_pause=inf, never_ready=False)
"""Somebody looks on: what cannot be started is said once."""
UNATTENDED: Final = Revival(most_failures=inf, longest_pause=30.0, never_ready=True)
"""Nobody looks on, and what is in the way (a store that does not answer, a disk) may be mended at any time."""


@dataclass(slots=True)
class Child:
    """A `headrace` command, through all its lives."""

    name: str
    arguments: tuple[str, ...]
    stage: int
    """Children of a higher stage are stopped before those of a lower one; those of one stage together."""
    revival: Revival | None
    process: asyncio.subprocess.Process
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    values: dict[str, str] = field(default_factory=dict)
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it is started again, or stopped for good."""
    at_once: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to start it again without a pause, once it has ended."""
    lives: int = 1
    failures: int = 0
    """Lives in a row that ended before it was ready."""
    was_ready: bool = False
    """In any of its lives."""
    watchdog: Watchdog | None = None

    def ready_value(self, name: str) -> str:
        """What the child said of itself when it was ready; empty before."""
        return self.values.get(name, "")

    @property
    def serves(self) -> bool:
        """Whether it is ready, and has not ended since."""
        return self.ready.is_set() and self.process.returncode is None

    @property
    def title(self) -> str:
        return f"{self.name} (pid {self.process.pid})"

    async def watch(self, when_ready: Callable[[], None]) -> int:
        """Take in what the child prints until it ends; its exit code."""
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip()
            if line.startswith(_READY):
                self.values = dict(word.split("=", 1) for word in line.removeprefix(_READY).split() if "=" in word)
                self._is_ready()
                when_ready()
            else:
                note(line)
        return await self.process.wait()

    def _is_ready(self) -> None:
        self.was_ready = True
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

    def __init__(
        self,
        grace: float = GRACE_SECONDS,
        on_change: Callable[[], None] = lambda: None,
        watchdog_seconds: float = 0.0,
    ) -> None:
        """`on_change` is called whenever a child gets ready or ends. A child that is silent for longer than the
        watchdog's time is ended; 0 for no watchdog.
        """
        self.failure = ""
        self.exit_code = 0
        self._grace = grace
        self._on_change = on_change
        self._watchdog_seconds = watchdog_seconds
        self._children: list[Child] = []
        self._watches: dict[asyncio.Task[int], Child] = {}

    async def __aenter__(self) -> Self:
        self._stop_requested = asyncio.Event()
        self._stop_requested_again = asyncio.Event()
        self._stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for stage in sorted({child.stage for child in self._children}, reverse=True):
            await asyncio.gather(*(self._stop(child) for child in self._children if child.stage == stage))
        await asyncio.gather(*self._watches, return_exceptions=True)
        for child in self._children:
            if child.watchdog is not None:
                child.watchdog.close()

    async def start(
        self, command: str, *arguments: str, name: str = "", stage: int = 0, revival: Revival | None = None
    ) -> Child:
        """Start `headrace COMMAND ARGUMENTS...`; with a `revival` it is started again when it ends."""
        line = (command, *arguments, "--stop-with-stdin")
        watchdog = Watchdog(self._watchdog_seconds, lambda n: _end_silent(child, n)) if self._watchdog_seconds else None
        child = Child(name or command, line, stage, revival, await _spawn(line, watchdog), watchdog=watchdog)
        self._children.append(child)
        self._watches[asyncio.create_task(self._look_after(child))] = child
        return child

    async def all_ready(self) -> bool:
        """Whether every child is ready; False as soon as one has ended or a stop was asked for."""
        everyone = asyncio.create_task(self._everyone_ready())
        await self._first_of(everyone)
        ready = everyone.done() and not self._stop_requested.is_set() and not self.exit_code
        everyone.cancel()
        return ready

    async def finished(self) -> None:
        """Return when a stop was asked for or a child has ended for good."""
        await self._first_of()

    async def restart(self, child: Child) -> bool:
        """Stop a child that has a revival in order, and start it again at once; whether it then got ready.

        False when everything stops meanwhile. One that fails to get ready is started again like any other.
        """
        child.ready.clear()
        child.at_once.set()
        await self._end(child)
        ready = asyncio.create_task(child.ready.wait())
        await self._first_of(ready)
        ready.cancel()
        return child.ready.is_set()

    async def _everyone_ready(self) -> None:
        for child in self._children:
            await child.ready.wait()

    async def _first_of(self, *others: "asyncio.Task[None] | asyncio.Task[bool]") -> None:
        stop_requested = asyncio.create_task(self._stop_requested.wait())
        tasks: list[asyncio.Future[Any]] = [stop_requested, *self._watches, *others]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        stop_requested.cancel()
        if not self._stop_requested.is_set():
            self._note_deaths()

    def _note_deaths(self) -> None:
        for watch, child in self._watches.items():
            if watch.done() and not self.exit_code:
                self.failure = _obituary(child, watch.result())
                self.exit_code = _code_for(watch.result())

    def _on_signal(self) -> None:
        (self._stop_requested_again if self._stop_requested.is_set() else self._stop_requested).set()

    def _pass_on(self, number: signal.Signals) -> None:
        for child in self._children:
            child.send(number)

    @property
    def _is_ending(self) -> bool:
        return self._stop_requested.is_set() or self._stopping.is_set()

    async def _look_after(self, child: Child) -> int:
        """The exit code of a child's last life."""
        while True:
            code = await child.watch(self._on_change)
            if child.watchdog is not None:
                child.watchdog.rest()
            self._on_change()
            if self._is_ending or child.revival is None:
                return code
            if not child.at_once.is_set():
                if not child.revival.may_follow(child, code):
                    return code
                note(f"headrace: {child.title} {_end(code)}; it is started again")
                await self._pause(child, child.revival.pause(child.failures))
            async with child.changing:
                if self._is_ending:
                    return code
                await _begin_next_life(child)

    async def _pause(self, child: Child, seconds: float) -> None:
        """Wait, unless all is to stop, or the child is asked for."""
        events = (self._stop_requested, self._stopping, child.at_once)
        waiting = [asyncio.create_task(event.wait()) for event in events]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    async def _stop(self, child: Child) -> None:
        async with child.changing:
            await self._end(child)

    async def _end(self, child: Child) -> None:
        """Let the child's process end, by force after a while or a second signal of the user's."""
        process = child.process
        child.send(signal.SIGTERM)
        again = asyncio.create_task(self._stop_requested_again.wait())
        ended = asyncio.create_task(process.wait())
        tasks: list[asyncio.Future[Any]] = [again, ended]
        await asyncio.wait(tasks, timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not ended.done():
            note(f"headrace: {child.title} did not stop in time; killed")
            with suppress(ProcessLookupError):
                process.kill()
        await ended


async def _begin_next_life(child: Child) -> None:
    child.failures = 0 if child.at_once.is_set() else child.failures + 1
    child.at_once.clear()
    child.ready.clear()
    child.lives += 1
    child.process = await _spawn(child.arguments, child.watchdog)


def _end_silent(child: Child, number: signal.Signals) -> None:
    note(f"headrace: {child.title} does not answer the watchdog; it is ended by {number.name}")
    child.send(number)


async def _spawn(arguments: tuple[str, ...], watchdog: Watchdog | None) -> asyncio.subprocess.Process:
    """What the service manager has said is between it and this process alone; a child has its own."""
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "headrace.cli", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        process_group=0,
        env=inherited if watchdog is None else {**inherited, **watchdog.variables},
    )


def announce(values: Mapping[str, str], json: bool) -> None:
    """The line, or document, on stdout that tells that everything serves, and where."""
    if json:
        say_json({"ready": True, **values})
    else:
        say(f"headrace ready {' '.join(f'{name}={value}' for name, value in values.items())}")


def leave(supervisor: Supervisor) -> None:
    """End the command as its children have ended."""
    if supervisor.failure:
        raise Failure(supervisor.failure, ExitCode(supervisor.exit_code))
    if supervisor.exit_code:
        raise typer.Exit(supervisor.exit_code)


def _end(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _obituary(child: Child, code: int) -> str:
    if code > 0 and not child.ready.is_set():
        return ""
    when = "" if child.ready.is_set() else " before it was ready"
    return f"the {child.title} {_end(code)}{when}; everything was stopped"


def _code_for(code: int) -> int:
    return code if code in (ExitCode.USAGE, ExitCode.UNREACHABLE) else ExitCode.FAILED
