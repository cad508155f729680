"""Safeguards that can be switched off: a simulation is believed only once its seeds find each of them missing.

Each names what is replaced, and by what, and the faults and the work among which its seeds look for it: drawn as ever,
only from fewer kinds, so that the table takes minutes and not hours.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any
from unittest.mock import patch
from uuid import UUID

from headrace.coordinator.share.shard import ShareStateShard
from headrace.coordinator.share.store import RoutedShareState
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.share_leader import ShareGroupSettings
from headrace.replication.share_window import ShareWindow
from headrace.server.dead_letters import DeadLetterTopics
from headrace.storage.checkpoints import PARTITION_METADATA, decode_partition_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """A safeguard, and how it is switched off."""

    guards: str
    """What goes wrong without it."""
    replaced: Mapping[str, Any]
    """By dotted name: what stands in its place."""
    faults: frozenset[str]
    work: frozenset[str] = frozenset()
    mix: Mapping[str, Any] = field(default_factory=dict)
    """What else of a mix is given, not drawn."""
    seeds: int = 20
    """In which the table looks for it."""


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


def _always(value: object) -> Callable[..., object]:
    return lambda *_, **__: value


async def _run_once(_self: object, _name: str, work: Callable[[], Any], _is_fatal: object) -> None:
    await work()


def _taken_for_duplicate(state: Any, header: Any) -> Any:
    """A batch from before all that are remembered is called a duplicate, though it may never have been taken."""
    last_sequence = header.base_sequence + header.last_offset_delta
    for batch in state.batches:
        if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
            return batch
    if state.batches and last_sequence < state.batches[0].base_sequence:
        raise CodedError(ErrorCode.duplicate_sequence_number)
    raise CodedError(ErrorCode.out_of_order_sequence_number)


def _done_at_once(_shard: object, done: Callable[[None], None], *_: object) -> None:
    done(None)


def _unknown_is_gone(image: Any, where: tuple[str, int], _topic_id: object) -> bool:
    return image.topic(where[0]) is None


def _unguarded(_store: object, operations: Iterable[Any]) -> list[Any]:
    return list(operations)


def _led_in_the_same_epoch(state: Any, leader: int) -> Any:
    return replace(state, leader=leader)


def _all_logs(manager: Any) -> frozenset[tuple[UUID, int]]:
    """Every log of a data directory, by topic id and partition, whether it was synced or not."""
    disk, data = manager._disk, manager.data_directory
    found = set()
    for name in disk.listdir(data):
        path, number = f"{data}/{name}/{PARTITION_METADATA}", name.rpartition("-")[2]
        topic_id = decode_partition_metadata(disk.read(path)) if number.isdecimal() and disk.exists(path) else None
        if topic_id is not None:
            found.add((topic_id, int(number)))
    return frozenset(found)


async def _read_nothing(store: Any, key: Any, leader_epoch: int) -> Any:
    """Each leader begins where the partition does, as if nobody had read it."""
    state = await _READ_STATE(store, key, leader_epoch)
    return replace(state, start_offset=min(state.start_offset, 0), batches=())


_READ_STATE = RoutedShareState.read


async def _at_once(*_: object) -> None:
    pass


async def _or_not(store: Any, dead: Any) -> None:
    with suppress(CodedError):
        await _WRITE_LETTERS(store, dead)


_WRITE_LETTERS = DeadLetterTopics.write


async def _write_later(store: Any, key: Any, change: Any) -> None:
    async def write() -> None:
        with suppress(CodedError):
            await _WRITE_STATE(store, key, change)

    store._coordinator.runtime.spawn(write())


_WRITE_STATE = RoutedShareState.write


def _in_any_state_epoch(shard: Any, key: Any, change: Any) -> None:
    entry = shard.entries.get(key)
    _WRITE_TO_SHARD(shard, key, change if entry is None else replace(change, state_epoch=entry.state.state_epoch))


_WRITE_TO_SHARD = ShareStateShard.write


def _expired_soon(window: Any, now: float, *, delivery_limit: int) -> Any:
    return _RELEASE_EXPIRED(window, now + 1.5, delivery_limit=delivery_limit)


_RELEASE_EXPIRED = ShareWindow.release_expired
_SETTINGS_OF = ShareGroupSettings.of
_reads_all = staticmethod(lambda broker, group: replace(_SETTINGS_OF(broker, group), read_committed=False))

_REPLICATED: Mapping[str, Any] = {"brokers": 3, "replicas": 3, "min_isr": 2}
_SHARING = frozenset({"idempotent", "share"})
_MACHINES = _of("kill", "pause", "cut", "stop", "store cut")

ABLATIONS: Mapping[str, Ablation] = {
    "log_health": Ablation(
        guards="an offline, empty or lost log tells no position, is in no ISR and leads nothing",
        replaced={
            "headrace.replication.partition.Partition.may_lead": property(_always(True)),
            "headrace.replication.partition.Partition.may_follow": property(_always(True)),
            "headrace.storage.manager.LogManager._was_held": _always(False),
        },
        faults=_of("lost directory", "kill"),
        work=_of("idempotent", "plain"),
        mix={**_REPLICATED, "partitions": 3, "busy": 0.1},
    ),
    "log_recovery": Ablation(
        guards="where everyone who held everything lost power the log that reaches furthest leads",
        replaced={"headrace.cluster.election.awaits_recovery": _always(False)},
        faults=_of("site power loss", "power loss"),
        mix={"brokers": 3, "replicas": 3},
    ),
    "waiting_followers": Ablation(
        guards="a follower with nothing to fetch is caught up: the ISR of idle partitions stays",
        replaced={"headrace.replication.follower_session.FollowerSession._has_waited": _always(None)},
        faults=_of(),
        mix={"brokers": 3, "replicas": 3, "latency": 0.02, "busy": 1.0, "pace": 10.0},
    ),
    "task_owners": Ablation(
        guards="a background task that fails is begun anew",
        replaced={"headrace.net.tasks.Tasks._keep": _run_once},
        faults=_of("task failure", "cut"),
        work=_of("idempotent", "transactions"),
        mix={**_REPLICATED, "partitions": 1, "rounds": 12},
        seeds=40,
    ),
    "deletion_on_the_isr": Ablation(
        guards="DeleteRecords is answered once the whole ISR has deleted",
        replaced={"headrace.replication.followers.Followers.low_watermark": lambda _followers, own_start: own_start},
        faults=_of("kill on answer", "slow link"),
        work=_of("delete records", "idempotent"),
        mix={**_REPLICATED, "partitions": 3, "pace": 1.0, "busy": 0.3, "answers": (ApiKey.DELETE_RECORDS,)},
    ),
    "start_inside_a_batch": Ablation(
        guards="a replica can begin inside a batch whose earlier records were deleted",
        replaced={"headrace.replication.partition.Partition._begin_with": _always(None)},
        faults=_of("rolling restart", "kill"),
        work=_of("delete records", "idempotent", "large batches", "reassignment"),
        mix={"brokers": 4, "replicas": 2, "min_isr": 1, "pace": 2.0, "busy": 0.3, "operator_pace": 1.0},
    ),
    "agreement_first": Ablation(
        guards="a follower hears of the high watermark once its log agrees with the leader's",
        replaced={"headrace.replication.follower_session.FollowerSession._agrees": _always(True)},
        faults=_of("store expiry", "store cut"),
        work=_of("nearby", "acks=1", "idempotent", "large batches", "pipelined"),
        mix={
            "brokers": 3,
            "replicas": 3,
            "min_isr": 1,
            "partitions": 6,
            "latency": 0.02,
            "busy": 0.02,
            "much_work": 1_000,
            "pace": 0.3,
            "rounds": 25,
            "settings": {"replica.fetch.response.max.bytes": "1024"},
        },
    ),
    "known_deletions": Ablation(
        guards="a topic that the transaction coordinator does not know is not taken for a deleted one",
        replaced={"headrace.coordinator.transactions.markers.is_gone": _unknown_is_gone},
        faults=_of("kill on answer"),
        work=_of("transactions", "compaction", "retention"),
        mix={
            "brokers": 3,
            "replicas": 3,
            "partitions": 1,
            "feed_page": 1,
            "latency": 0.05,
            "busy": 0.1,
            "pace": 3.0,
            "rounds": 25,
            "answers": (ApiKey.END_TXN,),
            "all_die": 1.0,
        },
    ),
    "fresh_producer_ids": Ablation(
        guards="no producer id is handed out twice, also after the store was set back",
        replaced={"headrace.cluster.producer_ids.SKIPPED": 0},
        faults=_of("store set back", "full restart"),
        work=_of("idempotent"),
        mix={**_REPLICATED, "partitions": 1, "busy": 0.05, "much_work": 300, "pace": 2.0, "new_producers": 0.3},
    ),
    "remembered_batches": Ablation(
        guards="only a batch that is in the log is called a duplicate",
        replaced={"headrace.storage.producer_state._find_duplicate": _taken_for_duplicate},
        faults=_MACHINES | {"power loss"},
        work=_of("idempotent", "pipelined", "large batches"),
    ),
    "whole_refusals": Ablation(
        guards="what was sent behind a refused batch is refused like it",
        replaced={"headrace.server.handlers.produce.check_order": _always(None)},
        faults=_of("kill", "cut"),
        work=_of("idempotent", "pipelined", "renumbering"),
        mix={
            "brokers": 3,
            "replicas": 2,
            "min_isr": 2,
            "partitions": 6,
            "latency": 0.1,
            "busy": 0.05,
            "much_work": 300,
            "pace": 1.0,
            "rounds": 25,
        },
        seeds=100,
    ),
    "truncation_by_epoch": Ablation(
        guards="followers cut what their leader does not have, by leader epoch",
        replaced={"headrace.replication.partition.diverging_at": _always(None)},
        faults=_MACHINES,
        work=_of("idempotent", "acks=1"),
        mix={"brokers": 3, "replicas": 3},
    ),
    "leader_epoch": Ablation(
        guards="each leader has an epoch of its own: what an earlier one wrote, says or asks for is told apart",
        replaced={"headrace.cluster.election._led": _led_in_the_same_epoch},
        faults=_MACHINES,
        work=_of("idempotent", "acks=1"),
        mix={"brokers": 3, "replicas": 3, "partitions": 1},
    ),
    "controller_epoch": Ablation(
        guards="a controller that has a successor changes nothing: each of its commits checks its epoch",
        replaced={"headrace.cluster.fenced.FencedStore._guarded": _unguarded},
        faults=_of("late commit", "cut"),
        work=_of("idempotent", "plain", "reassignment"),
        mix={
            "brokers": 4,
            "replicas": 3,
            "partitions": 1,
            "pace": 1.0,
            "busy": 0.3,
            "rounds": 40,
            "operator_pace": 1.0,
            "settings": {"replica.lag.time.max.ms": "1000"},
        },
        seeds=40,
    ),
    "coordinator_commit": Ablation(
        guards="a coordinator answers, and sends markers, only once what it has written is committed",
        replaced={"headrace.coordinator.runtime.shard.Shard.after_commit": _done_at_once},
        faults=_of("kill", "cut"),
        work=_of("transactions"),
        mix={**_REPLICATED, "partitions": 2, "busy": 0.1, "pace": 2.0, "rounds": 20},
        seeds=60,
    ),
    "producer_epoch": Ablation(
        guards="a transactional producer that has a successor writes nothing and ends nothing",
        replaced={
            "headrace.coordinator.transactions.decisions._is_fenced": _always(False),
            "headrace.storage.producer_state._check_epoch": _always(None),
        },
        faults=_of("kill", "pause"),
        work=_of("transactions", "zombies"),
        mix={"brokers": 3, "replicas": 3, "partitions": 2, "busy": 0.3, "rounds": 8},
    ),
    "min_isr": Ablation(
        guards="nothing is acknowledged while fewer than min.insync.replicas hold it",
        replaced={"headrace.replication.partition.Partition.is_short_of_replicas": property(_always(False))},
        faults=_of("kill", "cut", "pause", "store cut"),
        work=_of("idempotent", "plain"),
        mix=_REPLICATED,
    ),
    "sync_before_ack": Ablation(
        guards="with flush.messages=1 nothing is acknowledged before it is on stable storage",
        replaced={
            "headrace.replication.partition.Partition.is_durable": property(_always(False)),
            "headrace.replication.partition.Partition.is_proven_synced": property(_always(True)),
        },
        faults=_of("site power loss"),
        work=_of("idempotent", "plain"),
        mix={
            "brokers": 3,
            "replicas": 2,
            "partitions": 1,
            "is_durable": True,
            "busy": 0.1,
            "pace": 2.0,
            "rounds": 12,
            "flush_ms": None,
        },
    ),
    "synced_proof": Ablation(
        guards="after a power loss a log is counted on only if all that it acknowledged was synced",
        replaced={"headrace.storage.manager.LogManager.proven_synced": _all_logs},
        faults=_of("power loss", "site power loss"),
        work=_of("idempotent", "plain", "flush setting"),
        mix={**_REPLICATED, "is_durable": False, "busy": 0.3, "pace": 3.0, "rounds": 25, "operator_pace": 2.0},
        seeds=40,
    ),
    "session_step_down": Ablation(
        guards="a broker that may have lost its session leads nothing",
        replaced={
            "headrace.server.clustered.member.ClusterMember._step_aside": _always(None),
            "headrace.server.clustered.member.ClusterMember.step_down": _always(None),
        },
        faults=_of("pause"),
        work=_of("acks=1"),
        mix={
            "brokers": 3,
            "replicas": 3,
            "partitions": 1,
            "busy": 0.05,
            "much_work": 400,
            "pace": 4.0,
            "rounds": 25,
            "pause_seconds": (2.2, 4.5),
        },
    ),
    "share_state_first": Ablation(
        guards="who takes over a share-partition reads its state before it gives anything out",
        replaced={"headrace.coordinator.share.store.RoutedShareState.read": _read_nothing},
        faults=_of("kill", "stop"),
        work=_SHARING,
        mix={**_REPLICATED, "busy": 0.1},
    ),
    "share_commit": Ablation(
        guards="members of share groups are answered once what they said is committed",
        replaced={"headrace.coordinator.share.store.RoutedShareState.write": _write_later},
        faults=_of("kill", "pause"),
        work=_SHARING,
        mix={**_REPLICATED, "busy": 0.1, "pace": 1.0, "rounds": 25, "latency": 0.02},
        seeds=40,
    ),
    "share_locks": Ablation(
        guards="a record is its member's alone until its lock has expired",
        replaced={"headrace.replication.share_window.ShareWindow.release_expired": _expired_soon},
        faults=_of("pause"),
        work=_SHARING,
        mix={**_REPLICATED, "busy": 0.1},
    ),
    "share_isolation": Ablation(
        guards="a share group that reads committed records is given none of transactions that are open or aborted",
        replaced={"headrace.replication.share_leader.ShareGroupSettings.of": _reads_all},
        faults=_of("kill"),
        work=_SHARING | {"transactions"},
        mix={**_REPLICATED, "busy": 0.1},
    ),
    "share_state_epoch": Ablation(
        guards="what a leader still writes of a share group that was begun anew meanwhile is refused",
        replaced={"headrace.coordinator.share.shard.ShareStateShard.write": _in_any_state_epoch},
        faults=_of("cut", "hold"),
        work=_SHARING | {"rewind"},
        mix={**_REPLICATED, "partitions": 1, "busy": 0.1, "pace": 2.0, "rounds": 25, "operator_pace": 1.5},
        seeds=40,
    ),
    "letter_first": Ablation(
        guards="a record that a share group gives up is archived once its dead letter is committed",
        replaced={"headrace.server.dead_letters.DeadLetterTopics.write": _or_not},
        faults=_of("kill", "cut", "pause"),
        work=_SHARING,
        mix={**_REPLICATED, "busy": 0.1, "pace": 1.0, "rounds": 25},
        seeds=60,
    ),
}


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Runs with these safeguards switched off."""
    with ExitStack() as stack:
        for name in names:
            for dotted, replacement in ABLATIONS[name].replaced.items():
                stack.enter_context(patch.object(*_place(dotted), replacement))
        yield


def _place(dotted: str) -> tuple[Any, str]:
    """The module or class that something is in, and its name there."""
    owner, _, name = dotted.rpartition(".")
    try:
        return import_module(owner), name
    except ModuleNotFoundError:
        module, _, cls = owner.rpartition(".")
        return getattr(import_module(module), cls), name
