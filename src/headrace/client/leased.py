"""A member of a share group that renews its locks, with the methods of `confluent_kafka.ShareConsumer`.

librdkafka's own renews none. This one keeps every record that it has given locked in the background, until it is
acknowledged or `renew_for` seconds are over: it runs on an event loop in a thread.
"""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from .aio.cluster import Cluster
from .aio.retrying import Unavailable
from .aio.share_member import Acquired, Outcome, ShareMember
from .columnar.settings import ALIASES, SETTINGS, ClientSettings
from .core.errors import AuthenticationRefused, ConnectionLost, VersionNotServed
from .errors import AUTHENTICATION_FAILED, ClientError
from .producer import log

T = TypeVar("T")

_RENEWALS: Final = 3
"""How often a lock is renewed within the time that it holds."""
_LEAST_SECONDS: Final = 0.1


class LockLost(Exception):
    """A record is not this member's any more."""


class LeasedRecord:
    """A record with the methods of a `confluent_kafka.Message`."""

    __slots__ = ("acquired",)

    def __init__(self, acquired: Acquired) -> None:
        self.acquired = acquired

    def error(self) -> None:
        """It is none."""

    def topic(self) -> str:
        return self.acquired.topic

    def partition(self) -> int:
        return self.acquired.key[1]

    def offset(self) -> int:
        return self.acquired.record.offset

    def key(self) -> bytes | None:
        return self.acquired.record.key

    def value(self) -> bytes | None:
        return self.acquired.record.value

    def timestamp(self) -> tuple[int, int]:
        return 1, self.acquired.record.timestamp

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [(str(name), data) for name, data in self.acquired.record.headers]

    def delivery_count(self) -> int:
        return self.acquired.deliveries


class LeasedConsumer:
    """What `Queue` needs of a member, from one thread at a time."""

    def __init__(
        self, settings: Mapping[str, Any], group: str, topics: Sequence[str], *, most: int, renew_for: float
    ) -> None:
        self._settings = ClientSettings(dict(_of_connections(settings)))
        self._most = most
        self._renew_for = renew_for
        self._held: dict[Acquired, float] = {}
        """What was given and not acknowledged, with the time from which it is not renewed any more."""
        self._said: list[tuple[Acquired, Outcome, float | None]] = []
        self._failure: ClientError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-queue-leases", daemon=True)
        self._thread.start()
        self._run(self._open(group, topics), None)

    async def _open(self, group: str, topics: Sequence[str]) -> None:
        self._cluster = Cluster(self._settings.bootstrap, self._settings.connection)
        self._member = ShareMember(self._cluster, group, topics)
        self._holds = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._watched(self._member.run())),
            asyncio.create_task(self._watched(self._renew())),
        ]

    async def _watched(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._failure = _told(error)

    def _run(self, work: Coroutine[Any, Any, T], timeout: float | None) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)
        except (ConnectionLost, Unavailable, AuthenticationRefused, VersionNotServed) as error:
            raise _told(error) from error
        except Exception as error:
            if isinstance(error, ClientError):
                raise
            raise _told(error) from error

    # What a share consumer does

    def poll(self, timeout: float) -> Sequence[LeasedRecord]:
        """Tell of acknowledgements, then fetch."""
        return [LeasedRecord(acquired) for acquired in self._run(self._poll(timeout), None)]

    async def _poll(self, timeout: float) -> list[Acquired]:
        if self._failure is not None:
            raise self._failure
        await self._tell()
        found = await self._member.fetch(self._most, timeout)
        until = time.monotonic() + self._renew_for
        if found:
            self._held |= dict.fromkeys(found, until)
            self._holds.set()
        return found

    def acknowledge(self, record: LeasedRecord, how: Any, delay: float | None = None) -> None:
        """Note what is to be told with the next call; `LockLost` where it is known to be in vain. What is released is
        delivered again after the `delay`, in seconds."""
        if self._held.pop(record.acquired, None) is None:
            raise LockLost("its lock was not renewed in time")
        self._said.append((record.acquired, _OUTCOMES[str(how.name)], delay))

    def commit_async(self) -> None:
        """Tell the brokers, without waiting."""
        asyncio.run_coroutine_threadsafe(self._tell(), self._loop)

    def commit_sync(self, timeout: float) -> None:
        """Tell the brokers, and wait until they have heard."""
        self._run(self._tell(), timeout)

    async def _tell(self) -> None:
        said, self._said = self._said, []
        for delay in dict.fromkeys(delay for _, _, delay in said):
            some = [(acquired, outcome) for acquired, outcome, asked in said if asked == delay]
            for acquired, reason in await self._member.acknowledge(some, delay):
                log.warning("%s is not this worker's any more: %s", _place(acquired), reason)

    def close(self) -> None:
        """Release what is held, leave the group."""
        try:
            self._run(self._end(), None)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._said += [(acquired, Outcome.RELEASE, None) for acquired in self._held]
        self._held.clear()
        await self._tell()
        await self._member.leave()
        self._cluster.close()

    # Renewing

    async def _renew(self) -> None:
        while True:
            await self._holds.wait()  # only then the brokers have said how long locks hold
            if not self._held:
                self._holds.clear()
                continue
            await asyncio.sleep(max(self._member.lock_seconds / _RENEWALS, _LEAST_SECONDS))
            now = time.monotonic()
            due = [(acquired, Outcome.RENEW) for acquired, until in list(self._held.items()) if now < until]
            if not due:
                continue
            for acquired, reason in await self._member.acknowledge(due):
                if self._held.pop(acquired, None) is not None:
                    log.warning("%s goes to another worker, its lock is not renewed: %s", _place(acquired), reason)


def _of_connections(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings of librdkafka's, without those that tune it."""
    for name, value in settings.items():
        known = _NAMES.get(name, name)
        if known in SETTINGS or known in ALIASES or known.startswith(("ssl.", "sasl.")):
            yield known, value


def _place(acquired: Acquired) -> str:
    return f"{acquired.topic}-{acquired.key[1]}@{acquired.record.offset}"


def _told(error: Exception) -> ClientError:
    """Our error for one of the connections below."""
    if isinstance(error, AuthenticationRefused):
        return ClientError(f"not let in: {error}", AUTHENTICATION_FAILED)
    if isinstance(error, VersionNotServed):
        return ClientError(f"these brokers renew no locks of share groups: {error}", "UNSUPPORTED_VERSION")
    code = getattr(error, "code", None)
    return ClientError(str(error), str(getattr(code, "name", code or "_FAIL")).upper())


_NAMES: Final = {"ssl.ca.pem": "ssl.truststore.certificates"}
_OUTCOMES: Final = {"ACCEPT": Outcome.ACCEPT, "RELEASE": Outcome.RELEASE, "REJECT": Outcome.REJECT}
