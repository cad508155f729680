"""Producers of a simulated cluster that write in transactions, by either protocol, and readers of what is committed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from headrace.net.address import Address
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import HEADER_SIZE, read_header
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records import Record, decode_marker, decode_records, encode_batch
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import VirtualClock

from .clients import RETRIABLE, ClusterClient, Failed

TRANSACTION_TOPIC: Final = "__transaction_state"
AGAIN: Final = RETRIABLE | {ErrorCode.concurrent_transactions, ErrorCode.network_exception}
PATIENCE_SECONDS: Final = 120.0
OLDER, NEWER = False, True


class TransactionalProducer:
    """Writes a value to several partitions at once. What it was told of each transaction is in `told`."""

    def __init__(self, cluster: SimulatedCluster, name: str, topic: str, *, newer: bool, timeout_ms: int) -> None:
        self.name = name
        self.client = ClusterClient(cluster, f"producer-{name}")
        self.told: dict[str, bool | None] = {}
        """Whether a transaction was committed or aborted; None where nobody was told."""
        self._topic = topic
        self._newer = newer
        self._timeout_ms = timeout_ms
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}

    def as_it_is(self, cluster: SimulatedCluster) -> "TransactionalProducer":
        """The same producer at this moment, on connections of its own: what it sends comes late, when it is sent."""
        late = TransactionalProducer(cluster, self.name, self._topic, newer=self._newer, timeout_ms=self._timeout_ms)
        late._producer = self._producer
        late._sequences = dict(self._sequences)
        return late

    async def run(self, count: int, partitions: Sequence[int]) -> None:
        """So many transactions; every fourth is aborted."""
        for number in range(count):
            value = f"{self.name}-{number}"
            self.told[value] = None
            try:
                await self.transact(value, partitions, commit=number % 4 != 3)
            except Failed:
                self._producer = None

    async def transact(self, value: str, partitions: Sequence[int], *, commit: bool) -> None:
        """One transaction, to its certain end; `Failed` where the producer was shut out, or has to begin anew."""
        if self._producer is None:
            await self.init()
        if not self._newer:
            await self.add(partitions)
        for partition in partitions:
            await self.write(partition, value)
        await self.end(commit=commit)
        self.told[value] = commit

    @property
    def identity(self) -> tuple[int, int] | None:
        """Its producer id and epoch, once it has any."""
        return self._producer

    async def init(self) -> None:
        values = {
            "transactional_id": self.name,
            "transaction_timeout": self._timeout_ms,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        answer = await self._ask(ApiKey.INIT_PRODUCER_ID, 4, values, lambda found: found.error_code)
        self._producer = (answer.producer_id, answer.producer_epoch)
        self._sequences.clear()

    async def add(self, partitions: Sequence[int]) -> None:
        producer_id, epoch = self._producer or (-1, -1)
        values = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": producer_id,
            "v3_and_below_producer_epoch": epoch,
            "v3_and_below_topics": [{"name": self._topic, "partitions": list(partitions)}],
        }
        await self._ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            values,
            lambda found: found.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )

    async def write(self, partition: int, value: str) -> None:
        producer_id, epoch = self._producer or (-1, -1)
        sequence = self._sequences.get(partition, 0)
        now = VirtualClock(asyncio.get_running_loop()).now_ms()
        batch = encode_batch(
            [Record(0, now, None, value.encode())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        data = {"name": self._topic, "partition_data": [{"index": partition, "records": bytes(batch)}]}
        values = {"transactional_id": self.name, "acks": -1, "timeout": 3_000, "topic_data": [data]}

        async def ask() -> ErrorCode:
            leader = await self.client.leader(self._topic, partition)
            answer = await self.client.ask(leader, ApiKey.PRODUCE, 12 if self._newer else 9, values)
            return ErrorCode(answer.responses[0].partition_responses[0].error_code)

        await self._until(ask, lambda: self.client.forget(self._topic, partition))
        self._sequences[partition] = sequence + 1

    async def end(self, *, commit: bool) -> None:
        producer_id, epoch = self._producer or (-1, -1)
        values = {
            "transactional_id": self.name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "committed": commit,
        }
        answer = await self._ask(ApiKey.END_TXN, 5 if self._newer else 3, values, lambda found: found.error_code)
        if self._newer:
            self._producer = (answer.producer_id, answer.producer_epoch)
            self._sequences.clear()

    async def _ask(self, api_key: ApiKey, version: int, values: dict[str, Any], code_of: Callable[[Any], int]) -> Any:
        """The coordinator's answer, whoever that is by then."""
        answers: list[Any] = []

        async def ask() -> ErrorCode:
            answer = await self.client.ask(await self._coordinator(), api_key, version, values)
            answers[:] = [answer]
            return ErrorCode(code_of(answer))

        await self._until(ask, lambda: None)
        return answers[0]

    async def _coordinator(self) -> Address:
        answer = await self.client.ask_anyone(ApiKey.FIND_COORDINATOR, 3, {"key": self.name, "key_type": 1})
        if answer.error_code != ErrorCode.none:
            raise Failed(ErrorCode(answer.error_code))
        return Address(answer.host, answer.port)

    async def _until(self, ask: Callable[[], Awaitable[ErrorCode]], missed: Callable[[], None]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    code = await ask()
                except OSError:
                    code = ErrorCode.network_exception
                except Failed as failed:
                    code = failed.code
                if code is ErrorCode.none:
                    return
                if code not in AGAIN:
                    raise Failed(code)
                missed()
                await self.client.pause()


async def committed_values(client: ClusterClient, topic: str, partition: int) -> list[str]:
    """What a reader of committed records sees of a whole partition; returns once nothing is open in it."""
    offset, values = 0, []
    aborted: dict[int, int] = {}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await _fetch(client, topic, partition, offset)
            if found is None:
                client.forget(topic, partition)
                await client.pause()
                continue
            pending = sorted((each.first_offset, each.producer_id) for each in found.aborted_transactions or ())
            records = found.records or b""
            while len(records) >= HEADER_SIZE and len(records) >= (size := read_header(records).size):
                header, batch, records = read_header(records), records[:size], records[size:]
                offset = header.last_offset + 1
                while pending and pending[0][0] <= header.last_offset:
                    first, producer_id = pending.pop(0)
                    aborted[producer_id] = first
                if header.is_control:
                    marker = decode_marker(batch)
                    if marker is not None and not marker.committed:
                        aborted.pop(header.producer_id, None)
                elif header.producer_id not in aborted:
                    values += [(record.value or b"").decode() for record in decode_records(batch)]
            if offset >= found.high_watermark:
                return values
            if not found.records:
                await client.pause()


async def _fetch(client: ClusterClient, topic: str, partition: int, offset: int) -> Any | None:
    wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 30}
    request = {
        "max_wait": 500,
        "min_bytes": 1,
        "isolation_level": 1,
        "topics": [{"topic": topic, "partitions": [wanted]}],
        "forgotten_topics_data": (),
        "rack_id": "",
    }
    try:
        leader = await client.leader(topic, partition)
        answer = await client.ask(leader, ApiKey.FETCH, 12, request)
    except (OSError, Failed):
        return None
    found = answer.responses[0].partitions[0]
    return found if found.error_code == ErrorCode.none else None
