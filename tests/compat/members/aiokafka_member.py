"""A member with aiokafka.

It rebalances beside the program, so a lock keeps a batch whole: what is revoked is not being processed.
"""

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError

from .common import (
    FETCH_WAIT_MS,
    METADATA_AGE_MS,
    POLL_INTERVAL_MS,
    POLL_SECONDS,
    Order,
    say,
    say_partitions,
    say_record,
    stop_requested,
)


class _Member(ConsumerRebalanceListener):  # type: ignore[misc] # untyped library
    def __init__(self, order: Order) -> None:
        self._busy = asyncio.Lock()
        self._owned: set[TopicPartition] = set()
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=order.bootstrap,
            group_id=order.group,
            group_instance_id=order.instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=FETCH_WAIT_MS,
            metadata_max_age_ms=METADATA_AGE_MS,
            session_timeout_ms=order.session_ms,
            heartbeat_interval_ms=order.heartbeat_ms,
            max_poll_interval_ms=POLL_INTERVAL_MS,
            rebalance_timeout_ms=POLL_INTERVAL_MS,
        )
        if order.regex is None:
            self.consumer.subscribe(topics=order.topics, listener=self)
        else:
            self.consumer.subscribe(pattern=f"^{order.regex}$", listener=self)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        async with self._busy:
            self._owned.difference_update(revoked)
            say_partitions("revoked", revoked)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._owned.update(assigned)
        say_partitions("assigned", assigned)

    async def poll(self) -> None:
        batches = await self.consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000))
        async with self._busy:
            following = {}
            for place, batch in batches.items():
                for message in batch if place in self._owned else ():
                    say_record(message.topic, message.partition, message.offset, message.value)
                    following[place] = message.offset + 1
            if following:
                await self.consumer.commit(following)


async def _run(order: Order) -> None:
    stop = stop_requested()
    member = _Member(order)
    await member.consumer.start()
    while not stop.is_set():
        try:
            await member.poll()
        except KafkaError as error:
            say("trouble", error=repr(error))
    say("closing")
    await member.consumer.stop()


if __name__ == "__main__":
    asyncio.run(_run(Order.given()))
