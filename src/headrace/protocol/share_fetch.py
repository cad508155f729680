"""The response of ShareFetch, by hand: as that of Fetch, ranges of files are sent between headers of ours.

Versions 1 and 2, which are alike: flexible, topics named by their ids.

Requests that acknowledge, ShareFetch and ShareAcknowledge, may end with a tagged field of ours, which other brokers
pass over: after how many milliseconds what they release is delivered again. As all tagged fields of a request are its
end, it is read there, without a walk through the request.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final
from uuid import UUID

from .compression import Buffer
from .encode import write_count, write_text, write_topic
from .fetch import FileRange, Response

_TOP: Final = Struct(">ih")
_I16: Final = Struct(">h")
_I32: Final = Struct(">i")
_PARTITION: Final = Struct(">ih")
_LEADER: Final = Struct(">iiB")
_ACQUIRED: Final = Struct(">qqhB")
_DELAY: Final = Struct(">iB")
_DELAY_TAG: Final = b"\x01\xc8\xa4\xa9\x03\x05"
"""One field, its tag (6,967,880), its size."""
_DELAY_END: Final = 0x68
"""Not zero, with which requests without tagged fields end."""
Range = tuple[int, int, int]
"""Of acquired records: the first offset, the last, and how often they were delivered."""


def delay_releases(body: bytearray, milliseconds: int) -> None:
    """Have what an encoded request releases be delivered again so late."""
    assert not body[-1], "it has no tagged fields"
    body[-1:] = _DELAY_TAG + _DELAY.pack(milliseconds, _DELAY_END)


def release_delay(body: Buffer) -> int | None:
    """The milliseconds that a request says; None where it says nothing."""
    if not body or body[-1] != _DELAY_END:
        return None
    end = bytes(body[-len(_DELAY_TAG) - _DELAY.size :])
    if len(end) < len(_DELAY_TAG) + _DELAY.size or not end.startswith(_DELAY_TAG):
        return None
    milliseconds: int = _DELAY.unpack_from(end, len(_DELAY_TAG))[0]
    return milliseconds


@dataclass(slots=True)
class SharedPartition:
    """What one partition answers: records, what became of acknowledgements, or why neither."""

    partition: int
    code: int = 0
    message: str | None = None
    acknowledge_code: int = 0
    acknowledge_message: str | None = None
    leader: tuple[int, int] = (-1, -1)
    """The broker that leads it and its leader epoch, for who asked another."""
    records: FileRange | None = None
    acquired: Sequence[Range] = ()

    @property
    def is_news(self) -> bool:
        return bool(self.code or self.acknowledge_code or self.acquired)


@dataclass(frozen=True, slots=True)
class NodeEndpoint:
    """Where a leader is found."""

    node_id: int
    host: str
    port: int
    rack: str | None


def write_response(
    response: Response,
    topics: Mapping[UUID, Sequence[SharedPartition]],
    *,
    code: int = 0,
    message: str | None = None,
    throttle_ms: int = 0,
    lock_ms: int = 0,
    endpoints: Iterable[NodeEndpoint] = (),
) -> None:
    """Append the body of a response."""
    response.run.extend(_TOP.pack(throttle_ms, code))
    write_text(response.run, message, flexible=True)
    response.run.extend(_I32.pack(lock_ms))
    write_count(response.run, len(topics), flexible=True)
    for topic_id, partitions in topics.items():
        write_topic(response.run, "", topic_id.bytes, by_id=True, flexible=True)
        write_count(response.run, len(partitions), flexible=True)
        for partition in partitions:
            _write_partition(response, partition)
        response.run.append(0)
    nodes = list(endpoints)
    write_count(response.run, len(nodes), flexible=True)
    for node in nodes:
        response.run.extend(_I32.pack(node.node_id))
        write_text(response.run, node.host, flexible=True)
        response.run.extend(_I32.pack(node.port))
        write_text(response.run, node.rack, flexible=True)
        response.run.append(0)
    response.run.append(0)


def _write_partition(response: Response, partition: SharedPartition) -> None:
    run = response.run
    run += _PARTITION.pack(partition.partition, partition.code)
    write_text(run, partition.message, flexible=True)
    run += _I16.pack(partition.acknowledge_code)
    write_text(run, partition.acknowledge_message, flexible=True)
    run += _LEADER.pack(*partition.leader, 0)
    response.records(partition.records, flexible=True)
    run = response.run
    write_count(run, len(partition.acquired), flexible=True)
    for first, last, delivery_count in partition.acquired:
        run += _ACQUIRED.pack(first, last, delivery_count, 0)
    run.append(0)
