"""Whether the brokers of a pipeline answer, asked beside its queries: these wait for a broker that is away, and say so
only when they give up.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from headrace.client.columnar.cluster import Cluster
from headrace.client.errors import ClientError

from ..sink_options import parse_sink_options
from .building import BOOTSTRAP
from .model import Declaration, ToTopic
from .vocabulary import client_of

_PAUSE_SECONDS: Final = 2.0
_PATIENCE: Final = {
    "default.api.timeout.ms": "3000",
    "request.timeout.ms": "3000",
    "socket.connection.setup.timeout.ms": "3000",
}
Probe = Callable[[], object]
"""Raises `ClientError` if no broker answers."""


@dataclass(frozen=True, slots=True)
class Outage:
    """No broker has answered since a time, in seconds since 1970."""

    message: str
    since: float


class Reach:
    """Asks brokers whether they answer, in a thread of its own, for the length of a `with` block."""

    def __init__(
        self, probes: Sequence[Probe], *, pause: float = _PAUSE_SECONDS, clock: Callable[[], float] = time.time
    ) -> None:
        self._probes = probes
        self._pause = pause
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="headrace-reach", daemon=True)
        self.outage: Outage | None = None

    def look(self) -> None:
        """Ask once."""
        asked = self._clock()
        try:
            for probe in self._probes:
                probe()
        except ClientError as error:
            self.outage = Outage(error.message, asked if self.outage is None else self.outage.since)
        else:
            self.outage = None

    def _ask(self) -> None:
        while not self._over.wait(self._pause):
            self.look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()


def reach_of(declaration: Declaration, bootstrap: str, stack: ExitStack) -> Reach:
    """For all clusters that a pipeline reads and writes; what it opens is closed with `stack`."""
    clusters = [stack.enter_context(Cluster({**client, **_PATIENCE})) for client in clients_of(declaration, bootstrap)]
    return stack.enter_context(Reach([cluster.brokers for cluster in clusters]))


def clients_of(declaration: Declaration, bootstrap: str) -> list[dict[str, str]]:
    """The settings of a client for each cluster, by their addresses."""
    found: dict[str, dict[str, str]] = {}
    for source in declaration.sources:
        _add(found, client_of({BOOTSTRAP: bootstrap, **source.options}))
    for sink in declaration.sinks:
        if isinstance(sink.output, ToTopic):
            _add(found, parse_sink_options({BOOTSTRAP: bootstrap, **sink.output.options}).client)
    return list(found.values())


def _add(found: dict[str, dict[str, str]], client: Mapping[str, str]) -> None:
    found.setdefault(client["bootstrap.servers"], dict(client))
