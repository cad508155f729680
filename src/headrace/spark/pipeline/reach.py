"""Whether the brokers of a pipeline answer, and where its topics end, asked beside its queries: these wait for a broker
that is away, and say so only when they give up; and they know where a topic ended when their batch began.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import LATEST, TopicPartition
from headrace.client.errors import ClientError

from ..sink.options import parse_sink_options
from .building import BOOTSTRAP
from .model import Declaration, Source, ToTopic
from .vocabulary import client_of

_PAUSE_SECONDS: Final = 2.0
PATIENCE: Final = {
    "default.api.timeout.ms": "3000",
    "request.timeout.ms": "3000",
    "socket.connection.setup.timeout.ms": "3000",
}
Probe = Callable[[], object]
"""Raises `ClientError` if no broker answers."""
Ends = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, int]]
"""Where partitions end now, for who reads what is committed."""


@dataclass(frozen=True, slots=True)
class Outage:
    """No broker has answered since a time, in seconds since 1970."""

    message: str
    since: float
    must_rest: bool = False
    """Whether queries may not even go on with what they have."""


class BrokerProbe:
    """Asks brokers whether they answer, in a thread of its own, for the length of a `with` block."""

    def __init__(
        self,
        probes: Sequence[Probe],
        ends: Ends = lambda _partitions: {},
        *,
        pause: float = _PAUSE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._probes = probes
        self._ends = ends
        self._pause = pause
        self._clock = clock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="headrace-reach", daemon=True)
        self._followed: frozenset[TopicPartition] = frozenset()
        self.outage: Outage | None = None
        self.ends: Mapping[TopicPartition, int] = {}
        """Where the partitions that are followed end, as far as it is known."""

    def follow(self, partitions: Iterable[TopicPartition]) -> None:
        """Look where these partitions end, from now on."""
        self._followed = frozenset(partitions)

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
            self.ends = self._look_up(self._followed)

    def _look_up(self, partitions: frozenset[TopicPartition]) -> Mapping[TopicPartition, int]:
        try:
            return self._ends(partitions) if partitions else {}
        except ClientError:
            return {}  # A topic that is gone is for the query to tell of.

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


def reach_of(declaration: Declaration, bootstrap: str, stack: ExitStack) -> BrokerProbe:
    """For all clusters that a pipeline reads and writes; what it opens is closed with `stack`."""
    clusters = [stack.enter_context(Cluster({**client, **PATIENCE})) for client in clients_of(declaration, bootstrap)]
    is_one = len({_address(source, bootstrap) for source in declaration.sources}) == 1
    ends = _ends_in(clusters[0]) if is_one else lambda _partitions: {}
    return stack.enter_context(BrokerProbe([cluster.brokers for cluster in clusters], ends))


def _ends_in(cluster: Cluster) -> Ends:
    def ends(partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        found = cluster.offsets(dict.fromkeys(partitions, LATEST), read_committed=True)
        return {where: end for where, end in found.items() if end is not None}

    return ends


def _address(source: Source, bootstrap: str) -> str:
    return client_of({BOOTSTRAP: bootstrap, **source.options})["bootstrap.servers"]


def clients_of(declaration: Declaration, bootstrap: str) -> list[dict[str, str]]:
    """The settings of a client for each cluster, by their addresses."""
    clients: dict[str, dict[str, str]] = {}
    for source in declaration.sources:
        _add(clients, client_of({BOOTSTRAP: bootstrap, **source.options}))
    for sink in declaration.sinks:
        if isinstance(sink.output, ToTopic):
            _add(clients, parse_sink_options({BOOTSTRAP: bootstrap, **sink.output.options}).client)
    return list(clients.values())


def _add(found: dict[str, dict[str, str]], client: Mapping[str, str]) -> None:
    found.setdefault(client["bootstrap.servers"], dict(client))
