"""Producers of a wild run that answer errors as librdkafka does, which takes more for granted than the protocol says.

Several batches are sent behind one another. After an error all answers are awaited, then all is sent again from the
first that is missing. An acknowledged batch acknowledges those before it. One that is out of order, though not the
first, makes all that are missing get new numbers, in a new producer epoch.
"""

import asyncio
from collections.abc import Sequence

from headrace.net.address import Address
from headrace.protocol.errors import ErrorCode
from tests.support.simulation.clients import Failed

from .clients import AGAIN, DELIVERY_SECONDS, MOST_IN_FLIGHT, NEVER_WRITTEN, OUT_OF_SEQUENCE
from .producers import Batch, Stream

MOST_BETWEEN = 0.05
"""Seconds between two batches of a window."""
BACKOFF = 0.05
"""Seconds before all is sent again."""

Answer = tuple[ErrorCode, int]


class RenumberingStream(Stream):
    """What one producer id sends to one partition, as long as nothing is given up."""

    _epoch = 0
    _pump: asyncio.Task[None] | None = None

    async def deliver(self, batch: Batch) -> bool:
        """Sends it, in its turn, until that is known to have worked, or to be in vain; whether it has worked."""
        if self._pump is None or self._pump.done():
            self._pump = asyncio.ensure_future(self._send_all())
        return await batch.outcome

    async def _send_all(self) -> None:
        try:
            async with asyncio.timeout(None) as deadline:
                while self.in_flight and not self.is_broken:
                    deadline.reschedule(self.in_flight[0].begun + DELIVERY_SECONDS)
                    if not await self._send_window():
                        self._client.mistrust(self._topic)
                        await asyncio.sleep(BACKOFF)
        except TimeoutError:
            self.is_broken = True
        for batch in list(self.in_flight):
            self._settle(batch, None)

    async def _send_window(self) -> bool:
        """Whether all that was sent is acknowledged."""
        window = self.in_flight[:MOST_IN_FLIGHT]
        for batch in window:
            batch.may_be_there = True
        answers = await self._send_in_order(window)
        is_out_of_order = False
        for batch, (code, offset) in zip(window, answers, strict=False):
            if code in OUT_OF_SEQUENCE and batch is not self.in_flight[0]:
                is_out_of_order = True
            elif code is ErrorCode.none:
                self._acknowledge(batch, offset)
            elif code not in AGAIN or code is ErrorCode.unknown_topic_id:
                self._give_up(code)
        if is_out_of_order:
            self._renumber()
        return all(code is ErrorCode.none for code, _ in answers)

    async def _send_in_order(self, window: Sequence[Batch]) -> list[Answer]:
        """The answers, of as many as were sent before there was an error."""
        try:
            leader = await self._client.leader_of(self._topic, self._partition, self._id)
        except Failed as failed:
            return [(failed.code, -1)]
        except OSError:
            return [(ErrorCode.network_exception, -1)]
        tasks: list[asyncio.Task[Answer]] = []
        for batch in window:
            if any(task.done() and task.result()[0] is not ErrorCode.none for task in tasks):
                break
            data = self._client.batch(
                batch.values,
                batch.keys,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=batch.sequence,
            )
            tasks.append(asyncio.ensure_future(self._try(data, leader)))
            await asyncio.sleep(self._client.rng.uniform(0, MOST_BETWEEN))
            await asyncio.sleep(0)  # a connection that ends at this moment ends for all that were sent
            await asyncio.sleep(0)
        return list(await asyncio.gather(*tasks))

    async def _try(self, data: bytes, leader: Address) -> Answer:
        try:
            return await self._client.produce_batch(self._topic, self._id, self._partition, data, leader=leader)
        except OSError:
            return ErrorCode.network_exception, -1

    def _acknowledge(self, batch: Batch, offset: int) -> None:
        while batch in self.in_flight:
            first = self.in_flight[0]
            self._settle(first, offset if first is batch else -1)

    def _settle(self, batch: Batch, offset: int | None) -> None:
        self.in_flight.remove(batch)
        if offset is not None:
            batch.operation.ok(offset=offset)
        elif batch.may_be_there:
            batch.operation.info()
        else:
            batch.operation.fail()
        batch.outcome.set_result(offset is not None)

    def _give_up(self, code: ErrorCode) -> None:
        self.is_broken = True
        if code not in AGAIN | NEVER_WRITTEN | OUT_OF_SEQUENCE:
            self._client.scene.history.complain(f"refused: {self._name} was told {code.name}")

    def _renumber(self) -> None:
        self._epoch += 1
        self._sequence = 0
        for batch in self.in_flight:
            batch.sequence = self._sequence
            self._sequence += len(batch.values)
