"""The registry's topic as this broker reads it: from its own log where it leads it, else from the broker that does."""

from typing import Final

import structlog

from headrace.cluster.image import ClusterImage
from headrace.net.peers import Peers, PeerUnreachable, Purpose
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import HEADER_SIZE, read_header
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import CodedError, ErrorCode, ProtocolViolation
from headrace.protocol.fetch_request import FetchPartition, fetch_request
from headrace.protocol.fetched import parse_fetch
from headrace.protocol.records import Record, readable_records
from headrace.protocol.topic_partition import TopicPartition
from headrace.replication.replica_manager import ReplicaManager
from headrace.schema_log.records import TOPIC

from .schema_book import Slice

SLICE_BYTES: Final = 1 << 20
_FETCH_VERSION: Final = 12

log = structlog.get_logger(__name__)


class RegistryReader:
    """Reads the topic in slices. A topic that is not there is an empty one: nothing is registered."""

    def __init__(
        self, *, broker_id: int, image: ClusterImage, replicas: ReplicaManager, peers: Peers | None = None
    ) -> None:
        self._broker_id = broker_id
        self._image = image
        self._replicas = replicas
        self._peers = peers

    async def read(self, offset: int) -> Slice:
        """What is committed from an offset on."""
        topic = self._image.topic(TOPIC)
        if topic is None:
            return Slice((), offset, offset)
        leader = topic.partitions[0].leader
        if leader == self._broker_id:
            return self._own(offset)
        if self._peers is None or leader < 0:
            raise CodedError(ErrorCode.leader_not_available, f"{TOPIC} has no leader for now")
        return await self._from(self._peers, leader, offset)

    def _own(self, offset: int) -> Slice:
        partition = self._replicas.partition(TOPIC, 0)
        partition.check_leads()
        end = partition.high_watermark
        found = partition.log.read(offset, SLICE_BYTES, end) if offset < end else None
        data = b"" if found is None else found.file.pread(found.length, found.position)
        return slice_of(memoryview(data), offset, end)

    async def _from(self, peers: Peers, leader: int, offset: int) -> Slice:
        body = encode_request(ApiKey.FETCH, _FETCH_VERSION, _fetch(offset))
        data = await peers.ask_bytes(leader, ApiKey.FETCH, _FETCH_VERSION, [body], purpose=Purpose.FORWARD)
        try:
            answer = parse_fetch(data, _FETCH_VERSION)
        except ProtocolViolation as error:
            raise PeerUnreachable(leader, str(error), was_sent=True) from error
        code = answer.code or next((part.code for part in answer.partitions), ErrorCode.unknown_server_error.value)
        if code:
            raise CodedError(ErrorCode(code), f"broker {leader} does not give {TOPIC}")
        part = answer.partitions[0]
        return slice_of(part.records, offset, part.high_watermark)


def slice_of(data: memoryview, offset: int, high_watermark: int) -> Slice:
    """The records of whole batches, from the offset on; a batch that is cut short comes again."""
    taken: list[Record] = []
    at, following = 0, offset
    while len(data) - at >= HEADER_SIZE:
        header = read_header(data, at)
        if not HEADER_SIZE <= header.size <= len(data) - at:
            break
        records = readable_records(data[at : at + header.size])
        if isinstance(records, CodedError):
            log.warning("unreadable batch skipped", topic=TOPIC, offset=header.base_offset, reason=records.message)
        elif not header.is_control:
            taken += records
        following = header.last_offset + 1
        at += header.size
    return Slice([record for record in taken if record.offset >= offset], following, high_watermark)


def _fetch(offset: int) -> dict[str, object]:
    partition = FetchPartition(TopicPartition(TOPIC, 0), offset, SLICE_BYTES)
    return fetch_request([partition], max_wait_ms=0, min_bytes=0, max_bytes=SLICE_BYTES)
