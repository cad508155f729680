"""Child processes that live and die together.

Each child is a `headrace` command that prints `headrace ready name=value` once it serves. The first that ends takes
the others with it; so does one SIGINT or SIGTERM. Children are in process groups of their own, so that a Ctrl-C
reaches them only through us, and stop by themselves should this process be killed (`--stop-with-stdin`).
"""

import asyncio
import signal
import sys
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from .console import ExitCode, note

GRACE_SECONDS: Final = 15.0
_READY: Final = "headrace ready "


@dataclass(slots=True)
class Child:
    name: str
    process: asyncio.subprocess.Process
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    values: dict[str, str] = field(default_factory=dict)

    def ready_value(self, name: str) -> str:
        """What the child said of itself when it was ready; empty before."""
        return self.values.get(name, "")

    async def watch(self) -> int:
        """Take in what the child prints until it ends; its exit code."""
        assert self.process.stdout is not None
        async for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip()
            if line.startswith(_READY):
                self.values = dict(word.split("=", 1) for word in line.removeprefix(_READY).split() if "=" in word)
                self.ready.set()
            else:
                note(line)
        return await self.process.wait()

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
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            await self._stop(child)
        await asyncio.gather(*self._watches, return_exceptions=True)

    async def start(self, command: str, *arguments: str) -> Child:
        """Start `headrace COMMAND ARGUMENTS...`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.cli", command, *arguments, "--stop-with-stdin"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
        )
        child = Child(command, process)
        self._children.append(child)
        self._watches[asyncio.create_task(child.watch())] = child
        return child

    async def all_ready(self) -> bool:
        """Whether every child is ready; False as soon as one has ended or a stop was asked for."""
        everyone = asyncio.create_task(self._everyone_ready())
        await self._first_of(everyone)
        ready = everyone.done() and not self._asked.is_set() and not self.exit_code
        everyone.cancel()
        return ready

    async def finished(self) -> None:
        """Return when a stop was asked for or a child has ended."""
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

    async def _stop(self, child: Child) -> None:
        child.send(signal.SIGTERM)
        again = asyncio.create_task(self._asked_again.wait())
        ended = asyncio.create_task(child.process.wait())
        await asyncio.wait([again, ended], timeout=self._grace, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not ended.done():
            note(f"headrace: {child.name} (pid {child.process.pid}) did not stop in time; killed")
            child.send(signal.SIGKILL)
        await ended


def _obituary(child: Child, code: int) -> str:
    if code > 0 and not child.ready.is_set():
        return ""
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    when = "" if child.ready.is_set() else " before it was ready"
    return f"the {child.name} (pid {child.process.pid}) {how}{when}; everything was stopped"


def _code_for(code: int) -> int:
    return code if code in (ExitCode.USAGE, ExitCode.UNREACHABLE) else ExitCode.FAILED
