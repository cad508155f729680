"""Connections to the brokers of one cluster: opened on demand, lent to one user at a time, kept for the next."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from headrace.client.columnar.channel import Channel
from headrace.client.columnar.connect import open_channel
from headrace.client.core.errors import ConnectionLost
from headrace.net.address import Address

from .retry import Patience, unreachable
from .settings import ClientSettings

_FIRST_SECONDS: Final = 3.0
"""How long a cluster that never answered is tried: more likely than that it restarts is that its address is wrong."""
_MOST_IDLE: Final = 8
"""Connections to one broker that are kept for later."""


class Connections:
    """Lends channels. Threads may borrow at the same time; each has its channels for itself."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._was_reached = False
        self._lock = threading.Lock()
        self._idle: dict[Address, list[tuple[Channel, float]]] = {}
        self._open: set[Channel] = set()
        self._failed: dict[Address, float] = {}
        """When an address last gave no connection: a machine that is down costs a timeout each time it is tried."""

    def reset_after_fork(self) -> None:
        """Start anew in a child process: the connections are its parent's, the lock may be held by nobody here."""
        self._lock = threading.Lock()
        self.close()

    @contextmanager
    def lent(self, address: Address) -> Iterator[Channel]:
        """A channel to that broker for the length of a `with` block."""
        channel = self.borrow(address)
        try:
            yield channel
        finally:
            self.give_back(channel)

    @contextmanager
    def lent_by_any(self, known: Iterable[Address]) -> Iterator[Channel]:
        """A channel to one of the known brokers or, where none of them answers, of those of `bootstrap.servers`."""
        channel = self._borrow_any([*known, *self._settings.bootstrap])
        try:
            yield channel
        finally:
            self.give_back(channel)

    def borrow(self, address: Address) -> Channel:
        """A channel to be given back; `ConnectionLost` when there is no connection to be had."""
        kept = self._take_idle(address)
        if kept is not None:
            return kept
        try:
            channel = open_channel(address, self._settings.connection)
        except ConnectionLost:
            self._failed[address] = time.monotonic()
            raise
        self._failed.pop(address, None)
        self._was_reached = True
        with self._lock:
            self._open.add(channel)
        return channel

    def give_back(self, channel: Channel) -> None:
        """Keep it for the next borrower if it is still of use; an answer on its way makes it useless."""
        now = time.monotonic()
        if channel.is_reusable(now):
            channel.rest()
            with self._lock:
                idle = self._idle.setdefault(channel.address, [])
                if channel in self._open and len(idle) < _MOST_IDLE:
                    idle.append((channel, now))
                    return
        self._drop(channel)

    def close(self) -> None:
        """Close every connection, lent or not."""
        with self._lock:
            channels, self._open, self._idle = self._open, set(), {}
        for channel in channels:
            channel.close()

    def _borrow_any(self, addresses: list[Address]) -> Channel:
        patience = Patience(self._settings, _FIRST_SECONDS)
        while True:
            reasons = []
            for address in sorted(dict.fromkeys(addresses), key=lambda one: self._failed.get(one, 0.0)):
                try:
                    return self.borrow(address)
                except ConnectionLost as error:
                    reasons.append(str(error))
            lost = ConnectionLost(", ".join(reasons))
            if self._was_reached:
                raise lost
            patience.pause(unreachable(lost))

    def _take_idle(self, address: Address) -> Channel | None:
        oldest = time.monotonic() - self._settings.seconds("connections.max.idle.ms")
        while True:
            with self._lock:
                idle = self._idle.get(address)
                if not idle:
                    return None
                channel, since = idle.pop()
            if since >= oldest and channel.is_reusable(time.monotonic()):
                return channel
            self._drop(channel)

    def _drop(self, channel: Channel) -> None:
        channel.close()
        with self._lock:
            self._open.discard(channel)
