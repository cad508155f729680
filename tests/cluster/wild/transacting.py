"""Producers of a wild run that write in transactions, by either protocol; a copier also keeps its place in them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from tests.support.simulation.clients import Failed, offset_topics

from .clients import AGAIN, Client, Scene, shown

PATIENCE_SECONDS: Final = 15.0
TIMEOUT_MS: Final = 8_000
ZOMBIES: Final = 0.3
"""How often a producer is taken for dead in the middle of a transaction, where that is a part of the work."""


class GaveUp(Exception):
    """The transaction cannot go on: its producer begins anew."""


class TransactionalProducer:
    """Writes to several partitions at once. When anything goes wrong it begins anew, which ends what it had open."""

    def __init__(self, scene: Scene, name: str, topic: str, *, newer: bool, client_name: str = "") -> None:
        self.name = name
        self.client = Client(scene, client_name or name)
        self.rng = self.client.rng
        self.scene = scene
        self.count = 0
        """Transactions that were committed."""
        self._topic = topic
        self._newer = newer
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}
        self._added: set[int] = set()
        self._begun = 0
        self._zombies: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        while not self.scene.is_over:
            try:
                await self.transact()
            except (GaveUp, OSError, Failed, CodedError, TimeoutError):
                self._producer = None
                await self.client.pause()
            await self.client.rest()
        await self.close()

    async def close(self) -> None:
        """Once those who were taken for dead have ended as well."""
        if self._zombies:
            await asyncio.wait(self._zombies)
        self.client.close()

    async def transact(self) -> None:
        """One transaction."""
        transaction = await self.begin()
        known = await self.client.known(self._topic)
        for _ in range(self.rng.randint(1, 3)):
            values = [f"{transaction}-{self.rng.randrange(1 << 40):x}" for _ in range(self.rng.choice((1, 2, 5)))]
            await self.write(transaction, known.id, self.rng.randrange(known.count), values)
        if self.scene.mix.does("zombies") and self.rng.random() < ZOMBIES:
            self._leave_zombie(transaction, known.id, self.rng.randrange(known.count))
            raise GaveUp("taken for dead")
        await self.finish(transaction)

    def _leave_zombie(self, transaction: str, topic_id: UUID, partition: int) -> None:
        """Who was taken for dead goes on with its transaction, while another takes its place."""
        client_name = f"{self.name}-zombie{self._begun}"
        zombie = TransactionalProducer(self.scene, self.name, self._topic, newer=self._newer, client_name=client_name)
        zombie._producer, zombie._sequences, zombie._added = self._producer, dict(self._sequences), set(self._added)
        task = asyncio.ensure_future(zombie.go_on(transaction, topic_id, partition))
        self._zombies.add(task)
        task.add_done_callback(self._zombies.discard)

    async def go_on(self, transaction: str, topic_id: UUID, partition: int) -> None:
        """Write some more after a while, and commit."""
        await asyncio.sleep(self.rng.uniform(0, 2))
        with suppress(GaveUp, OSError, Failed, CodedError, TimeoutError):
            await self.write(transaction, topic_id, partition, [f"{transaction}-late"])
            await self._end(transaction, True, "", ())
        self.client.close()

    async def begin(self) -> str:
        if self._producer is None:
            await self._init()
        self._begun += 1
        self._added.clear()
        return f"{self.name}-{self._begun}"

    async def finish(self, transaction: str, group: str = "", consumed: Sequence[Any] = ()) -> None:
        """Commits it, or gives it up as applications do now and then: aborts, or forgets it."""
        draw = self.rng.random()
        if draw < 0.06:
            raise GaveUp("died in the middle of a transaction")
        await self._end(transaction, draw > 0.2, group, consumed)

    async def _init(self) -> None:
        values = {
            "transactional_id": self.name,
            "transaction_timeout": TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = await self.ask(ApiKey.INIT_PRODUCER_ID, 4, values, lambda found: found.error_code)
        self._producer = (answer.producer_id, answer.producer_epoch)
        self._sequences.clear()

    @property
    def _ids(self) -> tuple[int, int]:
        return self._producer or (-1, -1)

    async def write(self, transaction: str, topic_id: UUID, partition: int, values: Sequence[str]) -> None:
        """Returns when it is acknowledged."""
        if not self._newer and partition not in self._added:
            await self._add(partition)
        producer_id, epoch = self._ids
        sequence = self._sequences.get(partition, 0)
        batch = self.client.batch(
            values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True
        )
        operation = self.scene.history.send(
            self.name, topic_id.hex, partition, values, stream=f"{self.name}/{producer_id}", transaction=transaction
        )
        offsets: list[int] = []

        async def ask() -> ErrorCode:
            code, offset = await self.client.produce_batch(
                self._topic, topic_id, partition, batch, transactional_id=self.name
            )
            offsets[:] = [offset]
            return code

        await self._until(ask)
        operation.ok(offset=offsets[0])
        self._sequences[partition] = sequence + len(values)

    async def _add(self, partition: int) -> None:
        producer_id, epoch = self._ids
        values = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": producer_id,
            "v3_and_below_producer_epoch": epoch,
            "v3_and_below_topics": [{"name": self._topic, "partitions": [partition]}],
        }
        await self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            values,
            lambda found: found.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )
        self._added.add(partition)

    async def commit_offset(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Within the transaction."""
        producer_id, epoch = self._ids
        if not self._newer:
            values: dict[str, Any] = {
                "transactional_id": self.name,
                "producer_id": producer_id,
                "producer_epoch": epoch,
                "group_id": group,
            }
            await self.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, values, lambda found: found.error_code)
        values = {
            "transactional_id": self.name,
            "group_id": group,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": offset_topics(topic, partition, offset),
        }
        await self.ask(
            ApiKey.TXN_OFFSET_COMMIT,
            5 if self._newer else 3,
            values,
            lambda found: found.topics[0].partitions[0].error_code,
            group,
        )

    async def _end(self, transaction: str, commit: bool, group: str, consumed: Sequence[Any]) -> None:
        producer_id, epoch = self._ids
        values = {
            "transactional_id": self.name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": commit,
        }
        operation = self.scene.history.invoke(
            "end", transaction=transaction, commit=commit, group=group, consumed=list(consumed)
        )
        answer = await self.ask(ApiKey.END_TXN, 5 if self._newer else 3, values, lambda found: found.error_code)
        operation.ok()
        self.count += commit
        if self._newer:
            self._producer = (answer.producer_id, answer.producer_epoch)
            self._sequences.clear()

    async def ask(
        self, api_key: ApiKey, version: int, values: dict[str, Any], code_of: Callable[[Any], int], group: str = ""
    ) -> Any:
        """The answer of the transaction's coordinator, or a group's, whoever that is by then."""
        answers: list[Any] = []

        async def ask() -> ErrorCode:
            answer = await self.client.ask(await coordinator(self.client, group, self.name), api_key, version, values)
            answers[:] = [answer]
            return ErrorCode(code_of(answer))

        await self._until(ask)
        return answers[0]

    async def _until(self, ask: Callable[[], Awaitable[ErrorCode]]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    code = await ask()
                except OSError:
                    code = ErrorCode.network_exception
                except Failed as failed:
                    code = failed.code
                if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                    return
                if code not in AGAIN:
                    raise GaveUp(code.name)
                self.client.mistrust(self._topic)
                await self.client.pause()


class Copier(TransactionalProducer):
    """Copies a topic into another: what it has read, what it writes and its place in the source are one transaction."""

    def __init__(self, scene: Scene, name: str, source: str, target: str, *, newer: bool) -> None:
        super().__init__(scene, name, target, newer=newer)
        self._source = source
        self.group = f"group-of-{name}"

    async def transact(self) -> None:
        source = await self.client.known(self._source)
        target = await self.client.known(self._topic)
        transaction = await self.begin()
        consumed = []
        for partition in range(source.count):
            start = await self._place(partition)
            found = await self.client.fetch_from(
                await self.client.leader_of(self._source, partition, source.id),
                source.id,
                partition,
                start,
                committed_only=True,
            )
            if found.error_code == ErrorCode.offset_out_of_range:
                start = await self.client.list_offset(self._source, partition)
                await self.commit_offset(self.group, self._source, partition, start)
                consumed.append([source.id.hex, partition, start, start])
                continue
            if found.error_code != ErrorCode.none:
                self.client.mistrust(self._source)
                raise Failed(ErrorCode(found.error_code))
            fetched = shown(found, start, committed_only=True)
            copies = [f"{transaction} {partition}:{offset}" for offset, _, _ in fetched.records]
            if copies:
                await self.write(transaction, target.id, partition % target.count, copies)
            if fetched.next > start:
                await self.commit_offset(self.group, self._source, partition, fetched.next)
                consumed.append([source.id.hex, partition, start, fetched.next])
        if consumed:
            await self.finish(transaction, self.group, consumed)

    async def _place(self, partition: int) -> int:
        offset = await committed_offset(self.client, self.group, self._source, partition)
        return max(offset, 0)


async def coordinator(client: Client, group: str, transactional_id: str = "") -> Address:
    """Of a group where one is named, else of a transactional id."""
    values = {"key": group or transactional_id, "key_type": 0 if group else 1}
    answer = await client.ask_anyone(ApiKey.FIND_COORDINATOR, 3, values)
    if answer.error_code != ErrorCode.none:
        raise Failed(ErrorCode(answer.error_code))
    return Address(answer.host, answer.port)


async def committed_offset(client: Client, group: str, topic: str, partition: int) -> int:
    """What a group has committed, -1 for nothing; waits while that is being decided by a transaction."""
    values = {
        "group_id": group,
        "topics": [{"name": topic, "partition_indexes": [partition]}],
        "require_stable": True,
    }
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                answer = await client.ask(await coordinator(client, group), ApiKey.OFFSET_FETCH, 7, values)
                code = ErrorCode(answer.error_code or answer.topics[0].partitions[0].error_code)
                if code is ErrorCode.none:
                    return int(answer.topics[0].partitions[0].committed_offset)
                if code not in AGAIN:
                    raise GaveUp(code.name)
            except (OSError, Failed):
                pass
            await client.pause()
