"""Delivering a subscription that reads its topic as a queue: messages side by side, each on its own.

Every gateway is a member of the share group and delivers some. A message is posted until it is taken or buried, as in
`delivery`, and is kept locked meanwhile; then it is acknowledged. One that is refused holds up no other. What a gateway
has that dies goes to another when its lock expires.
"""

import asyncio
from typing import Final

from headrace.client.aio.share_member import Acquired, Outcome, ShareMember
from headrace.client.messages import has_expired
from headrace.protocol.topic_partition import TopicPartition

from .delivery import AGAIN_SECONDS, TROUBLE, PushDelivery
from .filters import matches
from .sending import CallbackSender

AT_A_TIME: Final = 16
"""Messages of a subscription that are on their way from one gateway."""
_WAIT_SECONDS: Final = 0.25
_RENEWALS: Final = 3
"""How often a lock is renewed within the time that it holds."""


class QueueDelivery(PushDelivery):
    """One subscription on this gateway, as one of those that deliver it."""

    _is_running = False

    @property
    def is_owner(self) -> bool:
        return self._is_running

    async def run(self) -> None:
        """Deliver until cancelled, through any trouble with the cluster."""
        self._is_running = True
        self._take_over()
        self.progress.owner = self._owner
        try:
            while True:
                try:
                    await self._be_member()
                except TROUBLE as error:
                    self.note_error(f"the queue cannot be read: {error}")
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._is_running = False

    async def _be_member(self) -> None:
        subscription = self.subscription
        member = ShareMember(self._client.cluster, subscription.group, (subscription.topic,))
        batch = _Active(self, member)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(member.run())
                tasks.create_task(batch.renew())
                tasks.create_task(batch.take())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group
        finally:
            await asyncio.shield(batch.end())

    def new_sender(self) -> CallbackSender:
        """What posts one message after another."""
        return self._sender()


class _Active:
    """The messages that are on their way."""

    def __init__(self, delivery: QueueDelivery, member: ShareMember) -> None:
        self._delivery = delivery
        self._member = member
        self._tasks: dict[Acquired, asyncio.Task[None]] = {}
        self._senders: list[CallbackSender] = []
        self._has_room = asyncio.Event()

    async def take(self) -> None:
        """Take messages as others are done with."""
        while True:
            room = AT_A_TIME - len(self._tasks)
            if not room:
                self._has_room.clear()
                await self._has_room.wait()
                continue
            for acquired in await self._member.fetch(room, _WAIT_SECONDS):
                self._tasks[acquired] = asyncio.ensure_future(self._deliver(acquired))

    async def _deliver(self, acquired: Acquired) -> None:
        """Post a message until it is taken or buried; then it is done with."""
        record, delivery = acquired.record, self._delivery
        try:
            if has_expired(record.headers) or not matches(delivery.subscription.filter, record):
                delivery.progress.filtered += 1
            else:
                sender = self._senders.pop() if self._senders else delivery.new_sender()
                try:
                    await delivery.deliver(sender, TopicPartition(acquired.topic, acquired.key[1]), [record])
                finally:
                    self._senders.append(sender)
            for _, reason in await self._member.acknowledge([(acquired, Outcome.ACCEPT)]):
                delivery.note_error(f"offset {record.offset} of partition {acquired.key[1]} is posted again: {reason}")
        finally:
            del self._tasks[acquired]
            self._has_room.set()

    async def renew(self) -> None:
        """Keep what is on its way locked."""
        while True:
            await asyncio.sleep(self._member.lock_seconds / _RENEWALS)
            if self._tasks:
                await self._member.acknowledge([(acquired, Outcome.RENEW) for acquired in self._tasks])

    async def end(self) -> None:
        """Give back what was not taken, and leave."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for sender in self._senders:
            sender.close()
        await self._member.leave()
