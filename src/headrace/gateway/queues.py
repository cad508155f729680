"""Members of share groups that callers receive by over HTTP.

The gateway is the member, one for each caller, topic and group. What it has acquired is named by receipts, and is the
caller's until its lock expires; a member that nobody uses any more, with nothing acquired, leaves its group.
"""

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import structlog

from headrace.client.aio.client import Client
from headrace.client.aio.reader import size_of
from headrace.client.aio.retrying import Unavailable
from headrace.client.aio.share_member import Acquired, Outcome, ShareMember
from headrace.client.core.errors import AuthenticationRefused, ConnectionLost
from headrace.client.messages import has_expired
from headrace.protocol.errors import CodedError
from headrace.web.problem import Problem

MOST_HELD: Final = 10_000
"""Messages that a member may have out."""
MOST_BYTES: Final = 32 << 20
IDLE_SECONDS: Final = 60.0
_JOIN_SECONDS: Final = 10.0
_SLICE_SECONDS: Final = 0.25
"""How long a fetch waits at the broker at a time: what is acknowledged meanwhile goes on the same connection."""
_LOOK_SECONDS: Final = 0.02
_TROUBLE: Final = (ConnectionLost, Unavailable, AuthenticationRefused, CodedError)

log = structlog.get_logger(__name__)


class Received(NamedTuple):
    """A message that is the caller's for now."""

    receipt: str
    acquired: Acquired


class _Held(NamedTuple):
    acquired: Acquired
    """Without its key, value and headers."""
    until: float


class QueueMember:
    """One member, from the first time that its caller receives."""

    def __init__(self, client: Client, topic: str, group: str) -> None:
        self.id = topic
        self.client = client
        self.group = group
        self._loop = asyncio.get_running_loop()
        self._last_used = self._loop.time()
        self._receivers = 0
        self._turn = asyncio.Lock()
        self._held: dict[str, _Held] = {}
        self._member = ShareMember(client.cluster, group, [topic])
        self._task = asyncio.ensure_future(self._member.run())
        self._background: set[asyncio.Task[None]] = set()

    @property
    def lock_seconds(self) -> float:
        """How long what is received is the caller's."""
        return self._member.lock_seconds

    @property
    def is_idle(self) -> bool:
        if self._receivers or self._loop.time() - self._last_used <= IDLE_SECONDS:
            return False
        self._forget_expired()
        return not self._held

    @property
    def is_over(self) -> bool:
        """Whether its group does not let it in any more."""
        return self._task.done()

    async def receive(self, most: int, wait_ms: int) -> list[Received]:
        """Up to so many messages; none when the time is over."""
        self._forget_expired()
        if len(self._held) + most > MOST_HELD:
            raise Problem(
                429,
                f"{len(self._held)} messages are out, of {MOST_HELD} that may be: acknowledge some",
                code="too-many-in-flight",
            )
        self._receivers += 1
        try:
            await self._joined()
            deadline = self._loop.time() + wait_ms / 1000
            while True:
                left = max(deadline - self._loop.time(), 0.0)
                found = await self._take(most, min(left, _SLICE_SECONDS))
                if found or not left:
                    return found
        finally:
            self._receivers -= 1
            self._last_used = self._loop.time()

    async def _joined(self) -> None:
        """Wait until the group has given partitions, at most a little: there may be none."""
        deadline = self._loop.time() + _JOIN_SECONDS
        while not self._member.has_partitions and self._loop.time() < deadline:
            self._raise_failure()
            await asyncio.sleep(_LOOK_SECONDS)
        self._raise_failure()

    async def _take(self, most: int, wait: float) -> list[Received]:
        """One fetch, to its end: to break it off would end the session, and release what others have received."""
        task = asyncio.ensure_future(self._fetch(most, wait))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._release_unseen)
            raise

    async def _fetch(self, most: int, wait: float) -> list[Received]:
        async with self._turn:
            found = await self._member.fetch(most, wait)
        expired = [each for each in found if has_expired(each.record.headers)]
        if expired:
            await self._member.acknowledge([(each, Outcome.ACCEPT) for each in expired])
        kept, others = _fitting([each for each in found if each not in expired] if expired else found)
        if others:
            await self._member.acknowledge([(each, Outcome.RELEASE) for each in others])
        return [Received(self._hold(each), each) for each in kept]

    def _hold(self, acquired: Acquired) -> str:
        receipt = secrets.token_urlsafe(16)
        bare = acquired.record._replace(key=None, value=None, headers=())
        self._held[receipt] = _Held(acquired._replace(record=bare), self._loop.time() + self.lock_seconds)
        return receipt

    def _release_unseen(self, task: "asyncio.Task[list[Received]]") -> None:
        """Give back at once what nobody waits for any more."""
        if task.cancelled() or task.exception() is not None or not task.result():
            return
        releasing = asyncio.ensure_future(self._release([each.receipt for each in task.result()]))
        self._background.add(releasing)
        releasing.add_done_callback(self._background.discard)

    async def _release(self, receipts: Sequence[str]) -> None:
        try:
            await self.acknowledge(receipts, Outcome.RELEASE)
        except _TROUBLE as error:
            log.info("messages nobody waited for come again when their locks expire", reason=str(error))

    async def acknowledge(
        self, receipts: Iterable[str], outcome: Outcome, release_seconds: float | None = None
    ) -> dict[str, str]:
        """Say what became of messages; those that are not the caller's any more, and why. What is released is delivered
        again after `release_seconds`, or the backoff of the group."""
        self._last_used = self._loop.time()
        self._forget_expired()
        wanted = {receipt: self._held.get(receipt) for receipt in receipts}
        lost = dict.fromkeys((receipt for receipt, held in wanted.items() if held is None), "unknown, or expired")
        known = {held.acquired: receipt for receipt, held in wanted.items() if held is not None}
        said = [(acquired, outcome) for acquired in known]
        refused = await self._member.acknowledge(said, release_seconds) if said else []
        lost |= {known[acquired]: reason for acquired, reason in refused}
        until = self._loop.time() + self.lock_seconds
        for acquired, receipt in known.items():
            if outcome is Outcome.RENEW and receipt not in lost:
                self._held[receipt] = _Held(acquired, until)
            else:
                self._held.pop(receipt, None)
        return lost

    async def close(self) -> None:
        """Give back what was received, leave the group."""
        self._task.cancel()
        await asyncio.gather(self._task, *self._background, return_exceptions=True)
        await self._member.leave()

    def _forget_expired(self) -> None:
        now = self._loop.time()
        for receipt in [receipt for receipt, held in self._held.items() if held.until <= now]:
            del self._held[receipt]

    def _raise_failure(self) -> None:
        if self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise error


def _fitting(found: Sequence[Acquired]) -> tuple[Sequence[Acquired], Sequence[Acquired]]:
    """Those that fit into one answer, of which the first always does, and the others."""
    size = 0
    for count, acquired in enumerate(found):
        size += size_of(acquired.record)
        if size > MOST_BYTES and count:
            return found[:count], found[count:]
    return found, ()
