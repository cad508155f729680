"""How a broker stands in the store while it lives: one ephemeral key, whose creation is the broker's epoch."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Final

from .image import BrokerNode
from .store import StoreError, Versioned

BROKERS: Final = "/brokers/ids"
ACCOUNTED: Final = "/brokers/accounted"
"""The registrations that have had their consequences, so that a new controller knows who has come anew."""
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
SECRET: Final = "/cluster/secret"


class Loss(Enum):
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
    loss: Loss = Loss.NOTHING
    """What it may have lost since it was last registered."""
    saw_set_back: bool = False
    """Whether the store is older than what this broker has seen of it."""
    lineage: str = ""
    """The latest id of the store's lineage that this broker has heard of."""


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
        "saw_set_back": registration.saw_set_back,
        "lineage": registration.lineage,
    }
    return json.dumps(record, separators=(",", ":")).encode()


def decode_registration(key: str, stored: Versioned) -> Registration:
    """The registration under a key; the broker's epoch is when it was created."""
    try:
        record = json.loads(stored.value.decode())
        node = BrokerNode(
            id=int(key.rpartition("/")[2]),
            host=record["host"],
            port=record["port"],
            rack=record["rack"],
            epoch=stored.created,
        )
        return Registration(
            node=node,
            directory=record["directory"],
            place=record["place"],
            loss=Loss(record["loss"]),
            saw_set_back=record["saw_set_back"],
            lineage=record["lineage"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the record {key} in the metadata store cannot be read ({error!r})") from error
