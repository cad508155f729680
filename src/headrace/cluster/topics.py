"""Topics as the store holds them, and the rules for their names.

A topic is one record, so that a change of it is one compare-and-set; where it has more than a thousand partitions, the
others follow in pages of a thousand, so that no record grows past what a store takes (ZooKeeper: 1 MB) and a change of
one partition writes one page. Partition states are short arrays: a cluster has many, and nearly all are alike.
"""

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from headrace.config import shown
from headrace.protocol.errors import CodedError, ErrorCode

from .image import PartitionState, Topic
from .store import Check, Create, Delete, Entries, Operation, Put, StoreError, Versioned

TOPICS: Final = "/topics/"
DELETED: Final = "/deleted_topics/"
"""A key for each topic that was deleted, by its id: who was away then can tell it from one that the store has lost."""
MAX_NAME: Final = 249
INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__audit_log"})
"""The topics in which the broker keeps state of its own, and that no client may write to."""

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")
PAGE: Final = 1000
"""Partitions of one record."""
MOST_AT_ONCE: Final = 8 * PAGE
"""Partitions next to each other that are changed in one commit: their records fit, whatever their states are."""


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


def too_many(topic: Topic) -> CodedError:
    """What the creation of a topic is answered with whose records do not fit in one commit."""
    advice = "create it with fewer, then add the others"
    message = f"{len(topic.partitions)} partitions are more than the metadata store takes at once; {advice}"
    return CodedError(ErrorCode.invalid_partitions, message)


def already_exists(name: str) -> CodedError:
    """What the second creation of a topic is answered with."""
    return CodedError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")


def collision_key(name: str) -> str:
    """Equal for names that metrics, which know no '.', could not tell apart."""
    return name.replace(".", "_")


def led_by_first(
    assignments: Iterable[tuple[int, ...]], alive: Container[int], leader_epoch: int = 0
) -> Iterable[PartitionState]:
    """The states of new partitions: all replicas that live are in sync, the first of them leads."""
    states: list[PartitionState] = []
    for replicas in assignments:
        isr = tuple(r for r in replicas if r in alive)
        if not isr:
            raise CodedError(
                ErrorCode.invalid_replica_assignment,
                f"The replica assignment is invalid: none of the brokers {list(replicas)} is alive",
            )
        states.append(PartitionState(replicas=replicas, isr=isr, leader=isr[0], leader_epoch=leader_epoch))
    return states


def together(states: Mapping[int, PartitionState]) -> Iterable[Mapping[int, PartitionState]]:
    """Next states in portions that one commit of the store takes. Each partition's change stands for itself."""
    portions: dict[int, dict[int, PartitionState]] = {}
    for index, state in states.items():
        portions.setdefault(index // MOST_AT_ONCE, {})[index] = state
    return portions.values()


def growth_steps(current: int, total: int) -> Iterable[int]:
    """The numbers of partitions by which a topic grows, each in one commit."""
    return [*range(current + MOST_AT_ONCE, total, MOST_AT_ONCE), total]


def creation(topic: Topic) -> tuple[list[Operation], Topic]:
    """What stores a new topic, and the topic with the versions it then has."""
    operations: list[Operation] = [Create(topic_key(topic.name), _encode_head(topic))]
    pages = range(1, _pages(topic) + 1)
    operations += [Create(_page_key(topic.name, page), _encode_page(topic, page)) for page in pages]
    return operations, replace(topic, version=0, page_versions=(0,) * len(pages))


def change(before: Topic, after: Topic) -> tuple[list[Operation], Topic]:
    """What stores a changed topic: of its partitions only the pages that differ, and never fewer than before."""
    operations: list[Operation] = [Put(topic_key(after.name), _encode_head(after), before.version)]
    versions = list(before.page_versions)
    for page in range(1, _pages(after) + 1):
        key = _page_key(after.name, page)
        if page > len(versions):
            operations.append(Create(key, _encode_page(after, page)))
            versions.append(0)
        elif _on_page(before, page) != _on_page(after, page):
            operations.append(Put(key, _encode_page(after, page), versions[page - 1]))
            versions[page - 1] += 1
    is_head_same = _on_page(before, 0) == _on_page(after, 0) and before.configs == after.configs
    if len(operations) > 1 and is_head_same:
        operations[0] = Check(topic_key(after.name), before.version)
        return operations, replace(after, version=before.version, page_versions=tuple(versions))
    return operations, replace(after, version=before.version + 1, page_versions=tuple(versions))


def taken_back(before: Topic, after: Topic) -> tuple[list[Operation], Topic]:
    """What stores a topic as it was before a change that has been stored."""
    kept = len(before.page_versions)
    operations, undone = change(replace(after, page_versions=after.page_versions[:kept]), before)
    added = enumerate(after.page_versions[kept:], start=kept + 1)
    operations += [Delete(_page_key(after.name, page), version) for page, version in added]
    return operations, undone


def removal(topic: Topic) -> list[Operation]:
    """What removes a topic from the store as if it had never been there."""
    pages = enumerate(topic.page_versions, start=1)
    operations: list[Operation] = [Delete(_page_key(topic.name, page), version) for page, version in pages]
    return [*operations, Delete(topic_key(topic.name), topic.version)]


def deletion(topic: Topic) -> list[Operation]:
    """What deletes a topic, and keeps its id among those that were deleted."""
    return [*removal(topic), Create(DELETED + topic.id.hex, topic.name.encode())]


def decode_deleted(entries: Entries) -> list[UUID]:
    """The ids of the topics that were deleted, the oldest first, from all keys under `DELETED`."""
    in_order = sorted(entries, key=lambda entry: entry[1].created)
    return [UUID(hex=key.removeprefix(DELETED)) for key, _ in in_order]


def decode_topics(entries: Entries) -> Iterator[Topic]:
    """The topics of all records under `TOPICS`. Equal partition states are one value in all of them."""
    states: dict[str, PartitionState] = {}
    pages: dict[str, list[tuple[str, Versioned]]] = {}
    for key, stored in entries:
        pages.setdefault(key[len(TOPICS) :].partition("/")[0], []).append((key, stored))
    for name, records in pages.items():
        yield _decode_topic(name, records, states)


def _decode_topic(name: str, records: Entries, states: dict[str, PartitionState]) -> Topic:
    (key, head), *rest = records
    try:
        record = json.loads(head.value.decode())
        partitions = [_state(values, states) for values in record["partitions"]]
        for key, page in rest:  # noqa: B007 - the error names it
            partitions += [_state(values, states) for values in json.loads(page.value.decode())]
        return Topic(
            name=name,
            id=UUID(hex=record["id"]),
            partitions=tuple(partitions),
            configs=record["configs"],
            internal=name in INTERNAL,
            version=head.version,
            page_versions=tuple(page.version for _, page in rest),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the record {key} in the metadata store cannot be read ({error!r})") from error


def _encode_head(topic: Topic) -> bytes:
    record = {"id": topic.id.hex, "partitions": _states_of(topic, 0), "configs": dict(topic.configs)}
    return json.dumps(record, separators=(",", ":")).encode()


def _encode_page(topic: Topic, page: int) -> bytes:
    return json.dumps(_states_of(topic, page), separators=(",", ":")).encode()


def _states_of(topic: Topic, page: int) -> list[list[Any]]:
    return [encode_state(state) for state in _on_page(topic, page)]


def _on_page(topic: Topic, page: int) -> tuple[PartitionState, ...]:
    return topic.partitions[page * PAGE : (page + 1) * PAGE]


def _pages(topic: Topic) -> int:
    """How many records a topic needs besides its first."""
    return (len(topic.partitions) - 1) // PAGE


def _page_key(name: str, page: int) -> str:
    return f"{TOPICS}{name}/{page:04}"


def encode_state(state: PartitionState) -> list[Any]:
    """A partition's state as a short list, in the store and between brokers."""
    values: list[Any] = [state.replicas, state.isr, state.leader, state.leader_epoch, state.partition_epoch]
    if state.adding or state.removing or state.elr or state.last_known_elr:
        values += [state.adding, state.removing, state.elr]
    if state.last_known_elr:
        values += [state.last_known_elr, state.emptied]
    return values


def decode_state(values: list[Any]) -> PartitionState:
    """The state that `encode_state` made a list of."""
    replicas, isr, leader, leader_epoch, partition_epoch, *others = values
    adding, removing, elr, last_known_elr, emptied = (*others, (), (), (), (), ())[:5]
    return PartitionState(
        replicas=tuple(replicas),
        isr=tuple(isr),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        adding=tuple(adding),
        removing=tuple(removing),
        elr=tuple(elr),
        last_known_elr=tuple(last_known_elr),
        emptied=tuple(emptied),
    )


def _state(values: list[Any], states: dict[str, PartitionState]) -> PartitionState:
    text = str(values)
    state = states.get(text)
    if state is None:
        state = states[text] = decode_state(values)
    return state


def encode_configs(configs: Mapping[str, str]) -> bytes:
    return json.dumps(dict(configs), separators=(",", ":")).encode()


def decode_configs(key: str, stored: Versioned) -> dict[str, str]:
    try:
        return dict(json.loads(stored.value.decode()))
    except (ValueError, TypeError) as error:
        raise StoreError(f"the record {key} in the metadata store cannot be read ({error!r})") from error
