"""How a broker stands in the store while it lives: one ephemeral key, whose creation is the broker's epoch."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final
from uuid import UUID

import structlog

from headrace.protocol.levels import BEFORE_LEVELS, LevelRange

from .image import BrokerNode, endpoints_from_json
from .log_faults import LogKey
from .store import StoreError, Versioned

BROKERS: Final = "/brokers/ids"
ACCOUNTED: Final = "/brokers/accounted"
"""The registrations that have had their consequences, so that a new controller knows who has come anew."""
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
SECRET: Final = "/cluster/secret"
MOST_SYNCED_BYTES: Final = 512 * 1024
"""What a registration says of synced logs at the most; a store may refuse a record of one MiB."""

log = structlog.get_logger(__name__)


class DataLoss(Enum):
    """Of what a broker had written, and may have acknowledged."""

    NOTHING = "nothing"
    """Whatever became of its process."""
    UNSYNCED = "unsynced"
    """What was not on stable storage: its machine stopped without warning."""
    EVERYTHING = "everything"
    """Its directory is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself."""

    node: BrokerNode
    directory: str
    """The id of its data directory: two brokers of one number have different ones."""
    place: str = ""
    """Where that directory is served: one who registers with another place serves a copy of it, or has moved."""
    loss: DataLoss = DataLoss.NOTHING
    """What it may have lost since it was last registered."""
    synced: frozenset[LogKey] = frozenset()
    """Logs of which nothing acknowledged was lost with what was not synced, as all of it was."""
    saw_set_back: bool = False
    """Whether the store is older than what this broker has seen of it."""
    lineage: str = ""
    """The latest id of the store's lineage that this broker has heard of."""
    levels: LevelRange = BEFORE_LEVELS
    """The feature levels that it speaks."""
    version: str = ""
    """Of its software; unknown of brokers that were made before there were levels."""


def registration_key(broker: int) -> str:
    return f"{BROKERS}/{broker}"


def encode_registration(registration: Registration) -> bytes:
    node = registration.node
    record = {
        "host": node.host,
        "port": node.port,
        "rack": node.rack,
        "directory": registration.directory,
        "place": registration.place,
        "loss": registration.loss.value,
        "synced": encode_log_keys(registration.synced),
        "saw_set_back": registration.saw_set_back,
        "lineage": registration.lineage,
        "levels": registration.levels,
        "version": registration.version,
        "endpoints": node.endpoints_to_json(),
    }
    return json.dumps(record, separators=(",", ":")).encode()


def decode_registration(key: str, stored: Versioned) -> Registration:
    """The registration under a key; the broker's epoch is when it was created."""
    try:
        record = json.loads(stored.value.decode())
        inter_broker, endpoints = endpoints_from_json(record.get("endpoints"))
        node = BrokerNode(
            id=int(key.rpartition("/")[2]),
            host=record["host"],
            port=record["port"],
            rack=record["rack"],
            epoch=stored.created,
            endpoints=endpoints,
            inter_broker=inter_broker,
        )
        return Registration(
            node=node,
            directory=record["directory"],
            place=record["place"],
            loss=DataLoss(record["loss"]),
            synced=decode_log_keys(record.get("synced", {})),
            saw_set_back=record["saw_set_back"],
            lineage=record["lineage"],
            levels=LevelRange.read(record.get("levels")),
            version=str(record.get("version", "")),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StoreError(f"the record {key} in the metadata store cannot be read ({error!r})") from error


def encode_log_keys(keys: Iterable[LogKey], most_bytes: int = MOST_SYNCED_BYTES) -> dict[str, list[int]]:
    """Logs by topic id: the first and the last partition of each range. Of very many topics some are left out."""
    partitions: dict[UUID, list[int]] = defaultdict(list)
    for topic_id, partition in keys:
        partitions[topic_id].append(partition)
    encoded: dict[str, list[int]] = {}
    size = 0
    for topic_id in sorted(partitions):
        bounds = _ranges(sorted(partitions[topic_id]))
        more = len(f'"{topic_id.hex}":{bounds},')
        if size + more <= most_bytes:
            size += more
            encoded[topic_id.hex] = bounds
    if len(encoded) < len(partitions):
        log.warning("not all synced logs fit into the registration", topics=len(partitions), told=len(encoded))
    return encoded


def decode_log_keys(encoded: Mapping[str, Sequence[int]]) -> frozenset[LogKey]:
    return frozenset(
        (UUID(hex=topic_id), partition)
        for topic_id, bounds in encoded.items()
        for first, last in zip(bounds[::2], bounds[1::2], strict=True)
        for partition in range(first, last + 1)
    )


def _ranges(numbers: Sequence[int]) -> list[int]:
    bounds: list[int] = []
    for number in numbers:
        if bounds and bounds[-1] == number - 1:
            bounds[-1] = number
        else:
            bounds += [number, number]
    return bounds
