"""What `headrace worker` says of applications that it cannot run, and of its own options."""

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.cli import worker
from headrace.cli.console import ExitCode, Failure
from headrace.cli.worker import _loaded, _what_hangs, _without_own

FILES = {
    "worker_of_shop": "from headrace.client.handlers import App\napp = App()\napp.subscribe('t', group='g')(id)",
    "worker_needy": "import nowhere_at_all",
    "worker_idle": "from headrace.client.handlers import App\napp = App()",
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.parametrize(
    ("target", "code", "reason"),
    [
        ("worker_of_shop", ExitCode.USAGE, "is not MODULE:APP"),
        ("absent_module:app", ExitCode.USAGE, "no module absent_module"),
        ("worker_of_shop:other", ExitCode.USAGE, "no App named other; it has app"),
        ("worker_needy:app", ExitCode.FAILED, "needs the module nowhere_at_all"),
        ("worker_idle:app", ExitCode.USAGE, "subscribes to nothing"),
    ],
)
def test_what_is_no_application_is_told_with_the_reason(
    target: str, code: ExitCode, reason: str, directory: Path
) -> None:
    with pytest.raises(Failure, match=reason) as failure:
        _loaded(target)
    assert failure.value.code == code


def test_an_application_is_found_in_the_current_directory(directory: Path) -> None:
    assert _loaded("worker_of_shop:app").subscriptions[0].topics == ("t",)


def test_the_processes_of_a_worker_get_its_options_but_those_that_would_make_more_of_them() -> None:
    given = ["worker", "run", "a:b", "--processes", "4", "-X", "x=y", "--reload", "--processes=2", "-b", "h:1"]
    assert list(_without_own(given)) == ["worker", "run", "a:b", "-X", "x=y", "-b", "h:1"]


def test_a_worker_that_does_not_end_says_whether_its_brokers_or_a_handler_are_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    monkeypatch.setattr(worker, "_LOOP_SECONDS", 60.0)
    assert "the brokers do not answer" in _what_hangs(loop)
    blocked, free = threading.Event(), threading.Event()

    def handler() -> None:
        blocked.set()
        free.wait()

    loop.call_soon_threadsafe(handler)
    blocked.wait()
    monkeypatch.setattr(worker, "_LOOP_SECONDS", 0.05)
    assert "a handler does not let the event loop go on" in _what_hangs(loop)
    free.set()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


_STUBBORN = """
import asyncio
from headrace.cli.worker import _stop_on_signals

async def main():
    _stop_on_signals(asyncio.get_running_loop(), stop := asyncio.Event())
    print("ready", flush=True)
    await stop.wait()
    print("asked", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_second_interrupt_ends_a_worker_that_waits_and_a_term_beside_the_first_does_not() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _STUBBORN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == ExitCode.FAILED
        assert "interrupted again" in process.stderr.read()
