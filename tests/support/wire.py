"""A Kafka client of one socket that says exactly what a test wants said, sound or not."""

import datetime
import io
import socket
from struct import pack, unpack
from types import TracebackType
from typing import Any

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from headrace.protocol.api import response_header_is_flexible
from headrace.protocol.batch import HEADER_SIZE, read_header
from headrace.protocol.records import Record, decode_records, encode_batch

TIMEOUT_SECONDS = 120.0


class Closed(ConnectionError):
    """The broker closed the connection."""


class Wire:
    """A connection to a broker."""

    def __init__(self, bootstrap: str, timeout: float = TIMEOUT_SECONDS) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def __enter__(self) -> "Wire":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def ask(self, api_key: int, version: int, request: Any) -> Any:
        """The broker's answer to a request, an entity of kio."""
        self.send(api_key, version, request)
        return self.receive(api_key, version)

    def send(self, api_key: int, version: int, request: Any, client_id: bytes = b"test") -> None:
        out = io.BytesIO()
        entity_writer(type(request))(out, request)
        self.send_body(api_key, version, out.getvalue(), client_id)

    def send_body(self, api_key: int, version: int, body: bytes, client_id: bytes = b"test") -> None:
        """A request with a sound header and any body."""
        self._correlation += 1
        header = pack(">hhih", api_key, version, self._correlation, len(client_id)) + client_id
        try:
            if load_request_schema(api_key, version).__flexible__:
                header += b"\0"
        except Exception:  # noqa: S110 - no such API: the broker is to say so
            pass
        self.send_frame(header + body)

    def send_frame(self, frame: bytes) -> None:
        self.send_bytes(pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def receive(self, api_key: int, version: int) -> Any:
        frame = self.receive_frame()
        start = 5 if response_header_is_flexible(api_key, version) else 4
        entity, size = entity_reader(load_response_schema(api_key, version))(frame, start)
        assert start + size == len(frame)
        return entity

    def receive_frame(self) -> bytes:
        """The next frame without its length; raises `Closed` when there is none."""
        (length,) = unpack(">i", self._exactly(4))
        return self._exactly(length)

    def is_closed(self) -> bool:
        """Waits for the broker to close; False if it answers instead."""
        try:
            self.receive_frame()
        except Closed:
            return True
        return False

    def _exactly(self, size: int) -> bytes:
        try:
            return receive_exactly(self.socket, size)
        except ConnectionResetError:
            raise Closed from None


def receive_exactly(sock: socket.socket, size: int) -> bytes:
    """The next bytes of a connection; raises `Closed` when it ends before them."""
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise Closed
        data += chunk
    return bytes(data)


def request(api_key: int, version: int, **values: Any) -> Any:
    """A request entity of kio."""
    return load_request_schema(api_key, version)(**values)


def produce_request(
    topic: str, batch: bytes, *, partition: int = 0, acks: int = -1, version: int = 9, seconds: float = 60.0
) -> Any:
    """A Produce request with one batch, which waits so long for those who are in sync."""
    module: Any = load_payload_module(0, version, EntityType.request)
    data = module.PartitionProduceData(index=partition, records=batch)
    return module.ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout=datetime.timedelta(seconds=seconds),
        topic_data=(module.TopicProduceData(name=topic, partition_data=(data,)),),
    )


def create_topic(wire: Wire, name: str, partitions: int = 1) -> None:
    """Make a topic, without a client that leaves threads and descriptors behind."""
    module: Any = load_payload_module(19, 4, EntityType.request)
    topic = module.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
    )
    asked = module.CreateTopicsRequest(topics=(topic,), timeout=datetime.timedelta(seconds=60), validate_only=False)
    assert not int(wire.ask(19, 4, asked).topics[0].error_code)


def batch_of(*values: bytes, timestamp: int = 1_700_000_000_000, **options: Any) -> bytes:
    """A record batch with these values."""
    records = [Record(offset, timestamp, None, value, ()) for offset, value in enumerate(values)]
    return bytes(encode_batch(records, **options))


def values_in(records: bytes) -> list[bytes | None]:
    """The values of all whole batches in what a fetch returned."""
    values: list[bytes | None] = []
    while len(records) >= HEADER_SIZE and len(records) >= (size := read_header(records).size):
        values += [record.value for record in decode_records(records[:size])]
        records = records[size:]
    return values
