"""What a supervisor is to its children as systemd is to a service with `WatchdogSec`: one that falls silent is ended.

A child is told of a socket of its own (see `service_manager`). It counts once it has said READY=1, until it stops in
order or ends. A child whose event loop stands still gets SIGABRT, so that its traceback is printed where
PYTHONFAULTHANDLER is set, and SIGKILL should even that not end it.
"""

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import Final

ABORT_SECONDS: Final = 5.0
_LONGEST_MESSAGE: Final = 4096


class Watchdog:
    """Hears one child, through all its lives."""

    def __init__(self, seconds: float, end: Callable[[signal.Signals], None]) -> None:
        """`end` sends the child a signal, if it still runs."""
        self._seconds = seconds
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("")  # the kernel chooses an abstract name
        asyncio.get_running_loop().add_reader(self._socket, self._hear)

    @property
    def variables(self) -> dict[str, str]:
        """Of the child's environment."""
        name = self._socket.getsockname().decode()
        return {"NOTIFY_SOCKET": f"@{name[1:]}", "WATCHDOG_USEC": str(int(self._seconds * 1_000_000))}

    def rest(self) -> None:
        """The child has ended: nothing is expected of it before it is ready again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        self.rest()
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _hear(self) -> None:
        """Take in all that was said."""
        while True:
            try:
                message = self._socket.recv(_LONGEST_MESSAGE)
            except OSError:
                return
            self._heed(message.split(b"\n"))

    def _heed(self, lines: list[bytes]) -> None:
        if b"STOPPING=1" in lines:
            self.rest()
        elif b"READY=1" in lines or (b"WATCHDOG=1" in lines and self._timer is not None):
            self._wait(self._seconds, signal.SIGABRT)

    def _wait(self, seconds: float, number: signal.Signals) -> None:
        self.rest()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._bite, number)

    def _bite(self, number: signal.Signals) -> None:
        due = self._timer
        self._hear()  # this process may be the one that was slow
        if self._timer is not due:
            return
        self._timer = None
        self._end(number)
        if number is signal.SIGABRT:
            self._wait(ABORT_SECONDS, signal.SIGKILL)
