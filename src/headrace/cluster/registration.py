"""How a broker stands in the store while it lives: one ephemeral key, whose creation is the broker's epoch."""

import json
from dataclasses import dataclass
from typing import Final

from .image import BrokerNode
from .store import StoreError, Versioned

BROKERS: Final = "/brokers/ids"
ACCOUNTED: Final = "/brokers/accounted"
"""The registrations that have had their consequences, so that a new controller knows who has come anew."""
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
SECRET: Final = "/cluster/secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself."""

    node: BrokerNode
    directory: str
    """The id of its data directory: two brokers of one number have different ones."""
    is_suspect: bool = False
    """Whether it may have lost records that it had written: its machine stopped without warning since."""


def registration_key(broker: int) -> str:
    return f"{BROKERS}/{broker}"


def encode_registration(registration: Registration) -> bytes:
    node = registration.node
    record = {
        "host": node.host,
        "port": node.port,
        "rack": node.rack,
        "directory": registration.directory,
        "suspect": registration.is_suspect,
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
        return Registration(node=node, directory=record["directory"], is_suspect=record["suspect"])
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the record {key} in the metadata store cannot be read ({error!r})") from error
