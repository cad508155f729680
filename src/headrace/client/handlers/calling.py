"""Calling a handler, whatever kind of function it is."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final


class Threads:
    """Threads for functions that may block: as many as are called at a time. One whose function never returns does not
    keep the program from ending, as those of concurrent.futures do.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns."""
        outcome: Future[Any] = Future()
        self._calls.put((outcome, partial(copy_context().run, function, *arguments)))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._run, name="headrace-handler", daemon=True).start()
        return await asyncio.wrap_future(outcome)

    def _run(self) -> None:
        while True:
            _call(*self._calls.get())
            self._idle.release()


def _call(outcome: "Future[Any]", work: Callable[[], Any]) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        outcome.set_result(work())
    except StopIteration as error:  # which no future of asyncio takes
        outcome.set_exception(RuntimeError(f"StopIteration: {error}"))
    except BaseException as error:
        outcome.set_exception(error)


_THREADS: Final = Threads()
in_thread: Final = _THREADS.call
"""What a function returns that may block."""


def as_coroutine(handler: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """A handler as a coroutine function. One without `async` may block: it is called in a thread.

    What it awaits may be cancelled, and it may raise SystemExit (as command line parsers do) or another error that is
    no Exception: these are errors like others, unless the worker itself ends.
    """
    is_coroutine = inspect.iscoroutinefunction(handler)

    async def called(*arguments: Any) -> Any:
        try:
            result = handler(*arguments) if is_coroutine else await in_thread(handler, *arguments)
            return await result if inspect.isawaitable(result) else result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("something that the handler waited for was cancelled") from error
        except Exception:
            raise
        except BaseException as error:
            if is_coroutine and isinstance(error, KeyboardInterrupt | GeneratorExit):  # meant for this coroutine
                raise
            raise RuntimeError(f"the handler raised {type(error).__name__}: {error}") from error

    return called
