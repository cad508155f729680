"""`headrace worker`: the handlers of an application, in one process or several."""

import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from .client_options import resolve_target, was_given
from .console import ExitCode, Failure, bad_input, examples, note, say
from .listening import stop_with_stdin
from .logs import FormatOption, LevelOption, LogFormat, LogLevel, configure_logs
from .options import DEFAULT_BOOTSTRAP, Bootstrap, ClientProperties
from .supervisor import DEVELOPMENT, UNATTENDED, Child, Supervisor, leave

if TYPE_CHECKING:
    from headrace.client.handlers import App

app = typer.Typer(no_args_is_help=True, help="Run the handlers of an application.")

log: Final = logging.getLogger("headrace.handlers")
_LOOK_SECONDS: Final = 0.5
_GRACE_SECONDS: Final = 25.0
"""How long handlers may go on that have begun when the worker is to stop."""
_LOST_SECONDS: Final = 20.0
"""How much longer everything else may take: what waits for brokers has ends of its own below that."""
_LOOP_SECONDS: Final = 1.0
_OWN_OPTIONS: Final = {"--processes": 1, "--reload": 0}
"""Options that are for the process that starts others, and how many words follow them."""


@app.command(
    epilog=examples(
        "headrace worker run shop.billing:app",
        "headrace worker run shop.billing:app --processes 4",
        "headrace worker run billing:app --reload",
    )
)
def run(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the application is.")],
    processes: Annotated[int, typer.Option("--processes", min=1, help="So many, which share the partitions.")] = 1,
    reload: Annotated[bool, typer.Option("--reload", help="For development: start anew when a file changes.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: ClientProperties = None,
    log_format: FormatOption = LogFormat.TEXT,
    log_level: LevelOption = LogLevel.INFO,
    with_stdin: Annotated[bool, typer.Option("--stop-with-stdin", hidden=True)] = False,
) -> None:
    """Run an application's handlers until SIGINT or SIGTERM, which let those finish that have begun.

    Several processes are members of the same groups; one that ends is started again. A handler that fails for good,
    with nothing said of dead letters, ends its process with code 1: its message is not committed. A second Ctrl-C ends
    a worker that waits for its handlers, or for brokers.
    """
    configure_logs(log_format, log_level)
    if processes > 1 or reload:
        _loaded(target)
        asyncio.run(_supervise(processes, reload=reload))
        return
    if with_stdin:
        stop_with_stdin()
    application = _loaded(target)
    where = resolve_target(bootstrap, properties)
    from headrace.client.properties import for_librdkafka

    if application.bootstrap is None or was_given("bootstrap"):
        application.bootstrap = where.bootstrap
    application.settings = {**for_librdkafka(where.settings), **(application.settings or {})}
    asyncio.run(_run(application, target))


async def _run(application: "App", target: str) -> None:
    from headrace.client import ClientError
    from headrace.client.handlers import Worker

    stop = asyncio.Event()
    _stop_on_signals(asyncio.get_running_loop(), stop)
    try:
        await Worker(application, grace=_GRACE_SECONDS).run(stop, lambda: say(f"headrace ready worker={target}"))
    except (ClientError, Failure):
        raise
    except Exception as error:  # the application's own, as of its lifespan
        log.error("%s failed", target, exc_info=error)
        raise Failure(f"{target} failed: {type(error).__name__}: {error}") from error


def _stop_on_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop when asked to, at once at a second Ctrl-C; with a handler that keeps the event loop from running, without
    having asked the loop."""
    interrupts = 0
    is_asked = threading.Event()

    def end_at_last() -> None:
        time.sleep(_GRACE_SECONDS + _LOST_SECONDS)
        note(f"headrace: {_what_hangs(loop)}")
        os._exit(ExitCode.FAILED)

    def ask(number: int, _frame: object) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT  # one Ctrl-C may come with the SIGTERM of who started this process
        if interrupts > 1:
            note("headrace: interrupted again; the worker ends at once, and what it had begun is handled again")
            os._exit(ExitCode.FAILED)
        if not is_asked.is_set():
            is_asked.set()
            threading.Thread(target=end_at_last, name="headrace-end", daemon=True).start()
        loop.call_soon_threadsafe(stop.set)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)


def _what_hangs(loop: asyncio.AbstractEventLoop) -> str:
    """Why a worker has not ended in time."""
    goes_on = threading.Event()
    loop.call_soon_threadsafe(goes_on.set)
    if goes_on.wait(_LOOP_SECONDS):
        return "the brokers do not answer; the worker ends, and what it could not tell them of is handled again"
    return "a handler does not let the event loop go on; the worker ends without it"


def _loaded(target: str) -> "App":
    """The application that `module:name` stands for, found from the current directory."""
    from headrace.client.handlers import App

    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise bad_input(f"'{target}' is not MODULE:APP, such as shop.billing:app")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise Failure(f"{module_name} needs the module {error.name}, which is not installed") from error
        raise bad_input(f"there is no module {module_name} here or among what is installed") from error
    except Exception as error:
        raise Failure(f"{module_name} cannot be loaded: {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if not isinstance(found, App):
        names = ", ".join(key for key, value in vars(module).items() if isinstance(value, App)) or "none"
        raise bad_input(f"{module_name} has no App named {name}; it has {names}")
    if not found.subscriptions:
        raise bad_input(f"{target} subscribes to nothing")
    return found


async def _supervise(processes: int, *, reload: bool) -> None:
    arguments = tuple(_without_own(sys.argv[1:]))
    async with Supervisor() as supervisor:
        revival = DEVELOPMENT if reload else UNATTENDED
        children = [
            await supervisor.start(*arguments, name=f"worker {number + 1}", revival=revival)
            for number in range(processes)
        ]
        watch = asyncio.create_task(_watch(supervisor, children)) if reload else None
        try:
            if await supervisor.all_ready():
                say(f"headrace ready workers={processes}")
                await supervisor.finished()
        finally:
            if watch is not None:
                watch.cancel()
    leave(supervisor)


def _without_own(arguments: list[str]) -> Iterator[str]:
    """The command line of one that starts no others."""
    left = iter(arguments)
    for word in left:
        name, equals, _ = word.partition("=")
        if name in _OWN_OPTIONS:
            for _ in range(0 if equals else _OWN_OPTIONS[name]):
                next(left, None)
        else:
            yield word


async def _watch(supervisor: Supervisor, children: list[Child]) -> None:
    """Start the children again whenever a Python file below the current directory changes."""
    seen = await asyncio.to_thread(_files)
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        now = await asyncio.to_thread(_files)
        if now != seen:
            changed = sorted({path for path, _ in seen ^ now})
            seen = now
            note(f"headrace: {', '.join(changed[:3])} changed; the workers start anew")
            for child in children:
                await supervisor.restart(child)


def _files() -> set[tuple[str, int]]:
    found = set()
    for root, directories, names in os.walk("."):
        directories[:] = [each for each in directories if not each.startswith(".") and each not in _NOT_WATCHED]
        for name in names:
            if name.endswith(".py"):
                path = Path(root, name)
                try:
                    found.add((str(path), path.stat().st_mtime_ns))
                except OSError:
                    pass
    return found


_NOT_WATCHED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
