"""Topics as the store holds them, and the rules for their names.

A topic is one record, so that a change of it is one compare-and-set. Partition states are short arrays: a cluster has
many, and nearly all of a topic's are alike.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from headrace.config import shown
from headrace.protocol.errors import CodedError, ErrorCode

from .image import PartitionState, Topic
from .store import StoreError, Versioned

TOPICS: Final = "/topics/"
MAX_NAME: Final = 249
INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""The topics in which the broker keeps state of its own."""

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")
_States = dict[str, PartitionState]


def topic_key(name: str) -> str:
    return TOPICS + name


def validate_name(name: str) -> None:
    """Raises `CodedError` (INVALID_TOPIC_EXCEPTION) unless the name can be a topic's, and so a directory's."""
    if not name:
        problem = "is empty"
    elif name in (".", ".."):
        problem = "is '.' or '..', which name directories"
    elif len(name) > MAX_NAME:
        problem = f"has {len(name)} characters, more than {MAX_NAME}"
    elif not _LEGAL.fullmatch(name):
        problem = "has characters other than ASCII letters, digits, '.', '_' and '-'"
    else:
        return
    raise CodedError(ErrorCode.invalid_topic_exception, f"Topic name '{shown(name)}' is invalid: it {problem}")


def collision_key(name: str) -> str:
    """Equal for names that metrics, which know no '.', could not tell apart."""
    return name.replace(".", "_")


def encode_topic(topic: Topic) -> bytes:
    states = [[p.replicas, p.isr, p.leader, p.leader_epoch, p.partition_epoch] for p in topic.partitions]
    record = {"id": topic.id.hex, "partitions": states, "configs": dict(topic.configs)}
    return json.dumps(record, separators=(",", ":")).encode()


def decode_topic(key: str, stored: Versioned, known: "_States | None" = None) -> Topic:
    """The topic of a record. `known` shares equal partition states between topics that are read together."""
    states: _States = {} if known is None else known
    name = key[len(TOPICS) :]
    try:
        record = json.loads(stored.value.decode())
        return Topic(
            name=name,
            id=UUID(hex=record["id"]),
            partitions=tuple([_state(values, states) for values in record["partitions"]]),
            configs=record["configs"],
            internal=name in INTERNAL,
            version=stored.version,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the record {key} in the metadata store cannot be read ({error!r})") from error


def _state(values: list[Any], states: _States) -> PartitionState:
    text = str(values)
    state = states.get(text)
    if state is None:
        replicas, isr, leader, leader_epoch, partition_epoch = values
        state = states[text] = PartitionState(
            replicas=tuple(replicas),
            isr=tuple(isr),
            leader=leader,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
        )
    return state


def encode_configs(configs: Mapping[str, str]) -> bytes:
    return json.dumps(dict(configs), separators=(",", ":")).encode()


def decode_configs(key: str, stored: Versioned) -> dict[str, str]:
    try:
        return dict(json.loads(stored.value.decode()))
    except (ValueError, TypeError) as error:
        raise StoreError(f"the record {key} in the metadata store cannot be read ({error!r})") from error
