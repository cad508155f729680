"""An event loop in virtual time: when nobody has anything to do, the clock jumps to the next alarm.

    async def main() -> None:
        await asyncio.sleep(3600)          # takes no time at all

    run_virtual(main)

What runs on the loop may belong to a `Process`, a program on a simulated machine: everything that its first task
starts is its own. A process can be paused, and killed as `kill -9` does it: from one instruction to the next it does
nothing any more. With a seed the order in which processes have their turns is drawn; within a process callbacks keep
the order that asyncio promises.

Nothing here waits for anything real: there are no threads and no sockets of the system. A loop on which everybody
waits and no alarm is set is stuck, and says so.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from itertools import count
from random import Random
from typing import Any, Final, NoReturn, Protocol, TypeVar

T = TypeVar("T")

START: Final = 1_000.0
"""What the loop's clock shows first."""
LONGEST: Final = 24 * 3600.0
"""Virtual seconds that a run may take, unless it says otherwise."""
_BURIAL_SECONDS: Final = 600.0
_MOST_BURIALS: Final = 5
"""What is cancelled may begin something else on its way out."""
_MANY_ALARMS: Final = 100


class Stuck(Exception):
    """Everybody waits, and nothing will ever happen."""


class Process:
    """One life of one program on a simulated machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_running = True
        """False while it is paused, and for good once it was killed."""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.parked: list[asyncio.Handle] = []
        """What it would do next if it ran."""

    def context(self) -> Context:
        """A context for what belongs to it."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return context

    def __repr__(self) -> str:
        return f"<{self.name}>"


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class _Task(asyncio.Task[Any]):
    """Hashed by its number on its loop: what goes through a set of tasks (as a TaskGroup does that ends) must meet them
    in the same order in every run, wherever they lie in memory."""

    __slots__ = ("_number",)

    def __init__(self, work: "Coroutine[Any, Any, T] | Generator[Any, None, T]", loop: "VirtualLoop", **options: Any):
        self._number = loop.next_task_number()
        super().__init__(work, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class Pollable(Protocol):
    """A socket as much as the loop needs it."""

    @property
    def is_readable(self) -> bool: ...


class VirtualLoop(asyncio.BaseEventLoop):
    """See above. Readers can be added for what was registered."""

    _ready: "deque[Any]"  # of handles, whose parts are asyncio's own
    _scheduled: list[Any]
    _closed: bool
    _stopping: bool
    _timer_cancelled_count: int

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._now = START
        self.ends_at = float("inf")
        """When running it is given up."""
        self._clock_resolution = 1e-9
        self._rng = None if seed is None else Random(seed)
        self._pollables: dict[int, Pollable] = {}
        self._readers: dict[int, asyncio.Handle] = {}
        self._hot: dict[int, None] = {}
        """What may be readable and has a reader."""
        self._dead: list[Process] = []
        self._task_numbers = count()
        self.outside = Context()
        """The context of what belongs to no process, such as a network."""
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._now

    def next_task_number(self) -> int:
        return next(self._task_numbers)

    # Processes

    def start(self, process: Process, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Let a process run a coroutine; all that comes of it is the process's too."""
        return self.create_task(work, context=process.context())

    def pause(self, process: Process) -> None:
        """Let a process do nothing until it is resumed, as SIGSTOP does."""
        process.is_running = False

    def resume(self, process: Process) -> None:
        process.is_running = True
        self._ready.extend(process.parked)
        process.parked.clear()

    def kill(self, process: Process) -> None:
        """Let a process do nothing any more: no clean-up, no last word."""
        process.is_running = False
        self._dead.append(process)
        for fd in [fd for fd, handle in self._readers.items() if _process_of(handle) is process]:
            self.remove_reader(fd)

    # Readers

    def register(self, pollable: Pollable) -> int:
        """A descriptor for it, which no real file has."""
        fd = -2 - len(self._pollables)
        self._pollables[fd] = pollable
        return fd

    def now_readable(self, fd: int) -> None:
        """What was registered may have become readable."""
        if fd in self._readers:
            self._hot[fd] = None

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        self._readers[fd] = asyncio.Handle(callback, args, self)
        self._hot[fd] = None

    def remove_reader(self, fd: Any) -> bool:
        self._hot.pop(fd, None)
        handle = self._readers.pop(fd, None)
        if handle is not None:
            handle.cancel()
        return handle is not None

    def remove_writer(self, fd: Any) -> bool:  # noqa: ARG002 - what is sent is always taken whole
        return False

    # Not in virtual time

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("there are no threads in virtual time: what needs one takes it as an argument")

    def call_soon_threadsafe(self, *_: Any, **__: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("there are no threads in virtual time: what needs one takes it as an argument")

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """What a program that was killed was in the middle of is gone with it."""
        self._asyncgens.discard(agen)  # type: ignore[attr-defined]

    # The turn of the loop; the names are asyncio's. What is scheduled is not looked at for a debugger, as asyncio does.

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        if self._closed:
            raise RuntimeError("the loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("the loop is closed")
        alarm = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, alarm)
        alarm._scheduled = True  # type: ignore[attr-defined]
        return alarm

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        """One turn, in the place of asyncio's: there is no selector to ask, and runs consist of little else."""
        self._drop_cancelled()
        ready = self._ready
        wait = 0.0 if ready or self._stopping else self._until_next()
        if self._hot:
            self._poll()
        if not ready and wait is not None:
            self._now += wait
            if self._now > self.ends_at:
                raise TimeoutError(f"{self._now - START:.0f} virtual seconds have passed")
        self._take_due()
        self._arrange()
        if not ready and wait is None:
            self._report_stuck()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _drop_cancelled(self) -> None:
        """Forget alarms that nobody waits for any more: as asyncio does it, all at once when most are of that kind."""
        scheduled = self._scheduled
        if len(scheduled) > _MANY_ALARMS and self._timer_cancelled_count * 2 > len(scheduled):
            for handle in scheduled:
                handle._scheduled = not handle._cancelled
            scheduled[:] = [handle for handle in scheduled if not handle._cancelled]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False

    def _until_next(self) -> float | None:
        """Seconds until an alarm; None if there is none."""
        return max(0.0, self._scheduled[0]._when - self._now) if self._scheduled else None

    def _write_to_self(self) -> None:
        """Nobody sleeps who could be woken."""

    def _poll(self) -> None:
        for fd in list(self._hot):
            handle = self._readers[fd]
            if not self._pollables[fd].is_readable:
                del self._hot[fd]
            elif _is_running(handle):
                self._ready.append(handle)

    def _take_due(self) -> None:
        scheduled = self._scheduled
        until = self._now + self._clock_resolution
        while scheduled and scheduled[0]._when < until:
            handle = heapq.heappop(scheduled)
            self._now = max(self._now, handle._when)  # who looks at the clock again must not find it early
            handle._scheduled = False
            self._ready.append(handle)

    def _arrange(self) -> None:
        """Put aside what belongs to processes that do not run, and draw whose turn comes when."""
        ready = self._ready
        processes = [_process_of(handle) for handle in ready]
        if not all(process is None or process.is_running for process in set(processes)):
            self._park(processes)
            processes = [_process_of(handle) for handle in ready]
        if self._rng is not None and len(set(processes)) > 1:
            self._mix(processes, self._rng)

    def _park(self, processes: list[Process | None]) -> None:
        handles = list(self._ready)
        self._ready.clear()
        for handle, process in zip(handles, processes, strict=True):
            (self._ready if process is None or process.is_running else process.parked).append(handle)

    def _mix(self, processes: list[Process | None], rng: Random) -> None:
        queues: dict[Process | None, deque[asyncio.Handle]] = {process: deque() for process in processes}
        for handle, process in zip(self._ready, processes, strict=True):
            queues[process].append(handle)
        self._ready.clear()
        while queues:
            process = rng.choice(list(queues))
            self._ready.append(queues[process].popleft())
            if not queues[process]:
                del queues[process]

    def _report_stuck(self) -> NoReturn:
        waiting = "\n  ".join(sorted(repr(task) for task in asyncio.all_tasks(self)))
        raise Stuck(f"nothing will ever happen; these wait:\n  {waiting}")

    def bury(self) -> None:
        """Let what is left of killed processes run out, where nobody looks, so that nothing of it is left pending."""
        self.set_exception_handler(lambda _loop, _context: None)
        for process in self._dead:
            self.resume(process)
        for _ in range(_MOST_BURIALS):
            tasks = [task for process in self._dead for task in process.tasks]
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            done, _ = self.run_until_complete(asyncio.wait(tasks, timeout=_BURIAL_SECONDS))
            for task in done:
                _ = task.cancelled() or task.exception()


def _process_of(handle: asyncio.Handle) -> Process | None:
    return handle._context.get(_PROCESS)  # type: ignore[attr-defined, no-any-return]


def _is_running(handle: asyncio.Handle) -> bool:
    process = _process_of(handle)
    return process is None or process.is_running


def _make_task(
    loop: asyncio.AbstractEventLoop,
    work: "Coroutine[Any, Any, T] | Generator[Any, None, T]",
    context: Context | None = None,
    **options: Any,
) -> "asyncio.Task[T]":
    assert isinstance(loop, VirtualLoop)
    task: asyncio.Task[T] = _Task(work, loop, context=context, **options)
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(process.tasks.pop)
    return task


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]], seed: int | None = None, longest: float = LONGEST) -> T:
    """What `main` returns, run on a loop of its own in virtual time.

    `TimeoutError` after `longest` virtual seconds; AssertionError if it leaves a task behind that still runs.
    """
    loop = VirtualLoop(seed)
    asyncio.set_event_loop(loop)
    try:
        loop.ends_at = START + longest
        result = loop.run_until_complete(main())
        loop.bury()
        left = [repr(task) for task in asyncio.all_tasks(loop)]
        assert not left, f"tasks were left behind: {', '.join(left)}"
        return result
    finally:
        _end(loop)


def _end(loop: VirtualLoop) -> None:
    """Cancel whatever is left after a failure, quietly: the failure is what counts."""
    loop.ends_at = float("inf")
    try:
        loop.bury()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=_BURIAL_SECONDS))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class VirtualClock:
    """The loop's time as a machine sees it; `skew_ms` is how far its wall clock is off."""

    def __init__(self, loop: asyncio.AbstractEventLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round((self._loop.time() - START) * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.time()
