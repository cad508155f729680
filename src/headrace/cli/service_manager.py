"""What systemd, or any other service manager that speaks its protocol, is told of this process (sd_notify).

A unit with `Type=notify` counts as started when READY=1 has come, and with `WatchdogSec` is killed and started again
when WATCHDOG=1 stays away. The watchdog is answered from the event loop: a loop that stands still is noticed.
"""

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Of the environment, by which a service manager says where and how often it wants to hear."""


class ServiceManager:
    """Whoever started this process as a service; nobody hears where it was started by hand."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self.watchdog_seconds = _watchdog_seconds(environment) if path else 0.0
        """Silence of this length is taken for a failure; 0 where nobody minds."""
        self._watchdog: asyncio.TimerHandle | None = None

    def ready(self, status: str = "") -> None:
        """This process serves. Called on the event loop, which answers the watchdog from then on."""
        self._notify("READY=1", f"STATUS={status}" if status else "")
        self.keep_alive()

    def keep_alive(self) -> None:
        """Answer the watchdog from the event loop that runs, twice as often as it wants."""
        if self.watchdog_seconds and self._watchdog is None:
            self._beat()

    def status(self, text: str) -> None:
        """One line that `systemctl status` shows."""
        self._notify(f"STATUS={text}")

    def stopping(self) -> None:
        """This process stops in order, which may take a while."""
        self._notify("STOPPING=1")

    def _beat(self) -> None:
        import asyncio

        self._notify("WATCHDOG=1")
        self._watchdog = asyncio.get_running_loop().call_later(self.watchdog_seconds / 2, self._beat)

    def _notify(self, *lines: str) -> None:
        """A manager that has gone away, or whose queue is full, is no reason to fail."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as link:
                link.sendto("\n".join(filter(None, lines)).encode(), self._address)
        except OSError:
            pass


def _watchdog_seconds(environment: Mapping[str, str]) -> float:
    microseconds, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    is_meant = not pid or pid == str(os.getpid())
    return int(microseconds) / 1_000_000 if microseconds.isdecimal() and is_meant else 0.0
