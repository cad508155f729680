"""Which quotas hold for a user and a client id, and the buckets of those who have some.

Each quota is looked for by itself, in Kafka's order: the first entity that sets it counts.

    1 user and client id            5 default user and default client id
    2 user and default client id    6 default user
    3 user                          7 client id
    4 default user and client id    8 default client id

Who is named by the entity has one bucket together: a quota for a user is shared by all its clients, one for the default
user is each user's own, one for a user and the default client id is each pair's own.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final, NamedTuple, TypeVar

from headrace.cluster.entries import EntryKind, EntryValues
from headrace.cluster.image import ClusterImage
from headrace.net.address import owner_of

from .bucket import BURST, Bucket
from .entities import (
    CLIENT_ID,
    CLIENT_QUOTAS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    STORAGE_BYTES,
    TOPIC_PREFIX,
    USER,
    Entity,
    address_of,
    entity_of,
    quotas_of,
)

MOST_PAUSE_SECONDS: Final = 600.0
"""The longest that anybody waits because of bytes it has sent or got."""
PREPAID_SECONDS: Final = 0.01
MOST_BUCKETS: Final = 10_000
"""Of those who have no quota of their own; a client can call itself by any number of names."""

LONGEST_CLIENT_ID: Final = 256
"""Characters by which client ids differ that no quota names: one may have 32 KiB, and costs its client nothing."""

K = TypeVar("K")
Key = tuple[str | None, str | None]


class Windows(NamedTuple):
    """The time that rates are averaged over: `quota.window.num` samples of `quota.window.size.seconds`, and the same
    of `controller.quota`."""

    samples: int = 11
    seconds: int = 1
    controller_samples: int = 11
    controller_seconds: int = 1


WINDOWS: Final = Windows()


class Limits:
    """What a client is limited to; None where it is not. Other quotas make another.

    Most requests cost one subtraction from `left`, and most turns one from `left_ns`: bytes and time, taken from
    the buckets in advance, never more than these fill with in `PREPAID_SECONDS`. Below zero somebody has to look.
    """

    __slots__ = ("client_id", "fetch", "left", "left_ns", "produce", "request", "user")

    def __init__(
        self, user: str, client_id: str, produce: Bucket | None, fetch: Bucket | None, request: Bucket | None
    ) -> None:
        self.user = user
        self.client_id = client_id
        self.produce = produce
        """Bytes of requests."""
        self.fetch = fetch
        """Bytes of answers."""
        self.request = request
        """Seconds of the event loop."""
        self.left: float = inf if produce is None else 0.0
        """Bytes of Produce requests that are paid for."""
        self.left_ns: float = inf if request is None else 0.0
        """Nanoseconds of the event loop that are."""

    def produced(self, now: float) -> float:
        """Bytes have come, and `left` is below zero: the seconds until that is paid, or 0 and bytes to go on with."""
        bucket, owed = self.produce, -self.left
        self.looked_at()
        if bucket is None:
            return 0.0
        seconds = bucket.charge(owed, now) if owed < inf else bucket.pause(now)
        if seconds <= 0:
            self.left = bucket.take_some(PREPAID_SECONDS, now)
        return seconds

    def looked_at(self) -> None:
        """What was owed is known."""
        self.left = inf if self.produce is None else max(self.left, 0.0)

    def took(self, now: float) -> None:
        """Time of the event loop was used, and `left_ns` is below zero; who owes some is looked at with its next
        request."""
        bucket, owed_ns = self.request, -self.left_ns
        if bucket is None:
            return
        self.left_ns = 0.0
        if bucket.charge(owed_ns / 1e9, now) > 0:
            self.left = -inf
        else:
            self.left_ns = bucket.take_some(PREPAID_SECONDS, now) * 1e9


class Resolved(NamedTuple):
    """A quota that holds for somebody, and who shares it: user and client id, None where all of them do."""

    rate: float
    shared: Key


class QuotaTable:
    """The quotas of all users and client ids."""

    def __init__(self) -> None:
        self._rates: dict[str, dict[tuple[str, ...], dict[Key, float]]] = {quota: {} for quota in CLIENT_QUOTAS}

    def put(self, entity: Entity, quotas: Mapping[str, float]) -> None:
        """An entity has these quotas and no others."""
        kinds, names = tuple(kind for kind, _ in entity), dict(entity)
        key = (names.get(USER), names.get(CLIENT_ID))
        for quota in CLIENT_QUOTAS:
            rates = self._rates[quota].setdefault(kinds, {})
            if quota in quotas:
                rates[key] = quotas[quota]
            else:
                rates.pop(key, None)
                if not rates:
                    del self._rates[quota][kinds]

    def __bool__(self) -> bool:
        return any(self._rates.values())

    def resolve(self, quota: str, user: str, client_id: str) -> Resolved | None:
        """The quota that holds for a user with a client id."""
        rates = self._rates[quota]
        if not rates:
            return None
        both, users, clients = rates.get((USER, CLIENT_ID), {}), rates.get((USER,), {}), rates.get((CLIENT_ID,), {})
        pair, of_user, of_client = (user, client_id), (user, None), (None, client_id)
        for table, key, shared in (
            (both, pair, pair),
            (both, of_user, pair),
            (users, of_user, of_user),
            (both, of_client, pair),
            (both, (None, None), pair),
            (users, (None, None), of_user),
            (clients, of_client, of_client),
            (clients, (None, None), of_client),
        ):
            rate = table.get(key)
            if rate is not None:
                return Resolved(rate, shared)
        return None


class ClientQuotas:
    """The quotas of the cluster as they are now, and what has been used of them on this broker."""

    def __init__(self, now: Callable[[], float], windows: Windows = WINDOWS) -> None:
        self.now = now
        self.averaged_seconds = max(windows.samples - 1, 1) * windows.seconds
        self._controller_burst = windows.controller_samples * windows.controller_seconds
        self._table = QuotaTable()
        self._connection_rates: dict[str | None, float] = {}
        self._buckets: dict[tuple[str, Key], Bucket] = {}
        self._limits: dict[tuple[str, str], Limits | None] = {}
        self._long_ids: set[str] = set()
        """Client ids longer than that which a quota has named."""
        self._listeners: list[Callable[[], None]] = []
        self.longest_request_pause = float(windows.seconds)
        """The longest that anybody waits at a time because of the event loop's time it has used."""
        self.storage: dict[str, float] = {}
        """Bytes that topics may hold together, by what their names begin with."""

    @property
    def is_on(self) -> bool:
        """Whether any user or client id has a quota."""
        return bool(self._table)

    def follow(self, image: ClusterImage) -> None:
        """Take up what the cluster's metadata has, and what becomes of it."""
        for name, values in image.entries[EntryKind.QUOTA].items():
            self._put(name, values)
        image.on_entry(self._changed)
        self._notify()

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called after each change."""
        self._listeners.append(listener)

    def limits_of(self, user: str, client_id: str) -> Limits | None:
        """What a client is limited to in each request; None where it is not limited."""
        client_id = self._kept(client_id)
        who = (user, client_id)
        if who not in self._limits:
            if len(self._limits) >= MOST_BUCKETS:
                self._limits.clear()
            self._limits[who] = self._make_limits(user, client_id)
        return self._limits[who]

    def mutations_of(self, user: str, client_id: str) -> Bucket | None:
        """Partitions that a client may make and delete; None where it is not limited."""
        burst = self._controller_burst
        return self._bucket(CONTROLLER_MUTATION_RATE, user, self._kept(client_id), burst, MOST_PAUSE_SECONDS)

    def _kept(self, client_id: str) -> str:
        """What a client id is remembered by."""
        if len(client_id) <= LONGEST_CLIENT_ID or client_id in self._long_ids:
            return client_id
        return client_id[:LONGEST_CLIENT_ID]

    def connection_rate(self, address: str) -> tuple[float, str] | None:
        """Connections a second that an address may open, and who shares them; None where no quota says."""
        rates = self._connection_rates
        if address in rates:
            return rates[address], address
        return (rates[None], owner_of(address)) if None in rates else None

    def _make_limits(self, user: str, client_id: str) -> Limits | None:
        burst = self.averaged_seconds * BURST
        produce = self._bucket(PRODUCER_BYTE_RATE, user, client_id, burst, MOST_PAUSE_SECONDS)
        fetch = self._bucket(CONSUMER_BYTE_RATE, user, client_id, burst, MOST_PAUSE_SECONDS)
        request = self._bucket(REQUEST_PERCENTAGE, user, client_id, burst, self.averaged_seconds, 0.01)
        mutations = self._table.resolve(CONTROLLER_MUTATION_RATE, user, client_id)
        if produce is None and fetch is None and request is None and mutations is None:
            return None
        return Limits(user, client_id, produce, fetch, request)

    def _bucket(
        self, quota: str, user: str, client_id: str, burst: float, most_debt: float, unit: float = 1.0
    ) -> Bucket | None:
        resolved = self._table.resolve(quota, user, client_id)
        if resolved is None:
            return None
        key, rate = (quota, resolved.shared), resolved.rate * unit
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rate != rate:
            self._make_room()
            bucket = Bucket(rate, burst_seconds=burst, most_debt_seconds=most_debt, now=self.now())
            self._buckets[key] = bucket
        return bucket

    def _make_room(self) -> None:
        if len(self._buckets) < MOST_BUCKETS:
            return
        now = self.now()
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full(now)}
        while len(self._buckets) >= MOST_BUCKETS:
            del self._buckets[next(iter(self._buckets))]
        self._limits.clear()

    def _changed(self, kind: EntryKind, name: str, values: EntryValues) -> None:
        if kind is EntryKind.QUOTA:
            self._put(name, values)
            self._notify()

    def _put(self, name: str, values: EntryValues) -> None:
        entity, quotas = entity_of(name), quotas_of(values)
        kind, first = entity[0]
        if kind == IP:
            address = None if first is None else address_of(first)
            if first is None or address is not None:
                _set(self._connection_rates, address, quotas.get(CONNECTION_CREATION_RATE))
        elif kind == TOPIC_PREFIX and first is not None:
            _set(self.storage, first, quotas.get(STORAGE_BYTES))
        elif kind in (USER, CLIENT_ID):
            named = dict(entity).get(CLIENT_ID) or ""
            if len(named) > LONGEST_CLIENT_ID:
                self._long_ids.add(named)
            self._table.put(entity, quotas)
            self._limits.clear()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()


def _set(table: dict[K, float], key: K, value: float | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
