"""A client on a simulated host: asks exactly what a test says, and learns exactly what came back."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from headrace.net.address import Address
from headrace.net.network import Link, LinkClosed
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import HEADER_SIZE, read_header
from headrace.protocol.decode import decode_response
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.exchange import matching_body, next_correlation_id, request_head
from headrace.protocol.fetch_request import FetchPartition, fetch_request
from headrace.protocol.records import Record, decode_records, encode_batch
from headrace.protocol.topic_partition import TopicPartition

from .loop import VirtualClock
from .network import SimulatedHost

PRODUCE_VERSION: Final = 12
FETCH_VERSION: Final = 12
CONNECT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 1 << 30


class SimulatedClient:
    """Keeps one connection to each broker; `LinkClosed` or another `OSError` when there is none."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._name = host.name.encode()
        self._links: dict[Address, Link] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._correlation_id = 0

    async def ask(self, broker: Address, api_key: int, version: int, values: Mapping[str, Any]) -> Any:
        """The broker's answer, an entity of kio, to a request given in the newest version's field names."""
        link = await self._link(broker)
        self._correlation_id = correlation_id = next_correlation_id(self._correlation_id)
        head = request_head(api_key, version, correlation_id, self._name)
        answer = await link.ask([head, encode_request(api_key, version, values)])
        try:
            body = matching_body(answer, correlation_id, api_key, version)
        except ProtocolViolation as error:
            raise LinkClosed(str(error)) from error
        return decode_response(api_key, version, body)

    async def produce(self, broker: Address, topic: str, *values: bytes, partition: int = 0, acks: int = -1) -> Any:
        """What a partition answered to one batch with these values."""
        now = VirtualClock(asyncio.get_running_loop()).now_ms()
        batch = encode_batch([Record(offset, now, None, value, ()) for offset, value in enumerate(values)])
        data = {"name": topic, "partition_data": [{"index": partition, "records": bytes(batch)}]}
        request = {"transactional_id": None, "acks": acks, "timeout": 30_000, "topic_data": [data]}
        answer = await self.ask(broker, ApiKey.PRODUCE, PRODUCE_VERSION, request)
        return answer.responses[0].partition_responses[0]

    async def fetch(
        self, broker: Address, topic: str, offset: int = 0, *, partition: int = 0, wait_ms: int = 0
    ) -> tuple[Any, list[bytes | None]]:
        """What a partition answered to a fetch from an offset on, and the values in it."""
        wanted = FetchPartition(TopicPartition(topic, partition), offset, _MOST_BYTES)
        request = fetch_request([wanted], max_wait_ms=wait_ms, min_bytes=1, max_bytes=_MOST_BYTES)
        answer = await self.ask(broker, ApiKey.FETCH, FETCH_VERSION, request)
        found = answer.responses[0].partitions[0]
        return found, values_in(found.records or b"")

    def is_connected(self, broker: Address) -> bool:
        """Whether there is a connection that the broker has not closed."""
        link = self._links.get(broker)
        return link is not None and not link.is_closed

    def drop(self, broker: Address) -> None:
        """Give up the connection to a broker, as after waiting too long for an answer."""
        link = self._links.pop(broker, None)
        if link is not None:
            link.close()

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    async def _link(self, broker: Address) -> Link:
        async with self._connecting.setdefault(broker, asyncio.Lock()):
            link = self._links.get(broker)
            if link is None or link.is_closed:
                link = self._links[broker] = await self._host.connect(*broker, CONNECT_SECONDS)
            return link


def values_in(records: bytes) -> list[bytes | None]:
    """The values of all whole batches in what a fetch returned."""
    values: list[bytes | None] = []
    while len(records) >= HEADER_SIZE and len(records) >= (size := read_header(records).size):
        values += [record.value for record in decode_records(records[:size])]
        records = records[size:]
    return values
