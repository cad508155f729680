"""Offsets that a producer commits for a group, in a transaction: written at once, counting when it is committed.

The group's partition is part of the transaction as any other. Who begins it there is verified with the transaction
coordinator; its marker, which comes through the partition's log, decides (see `pending`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.transactions import Verification

from .offsets import pairs_of
from .service import GroupCoordinator, check_group_id
from .shard import Shard

_TOLD: Final = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.invalid_txn_state})
"""What a producer is told as it is, where its offsets cannot be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalCommit:
    """What is to be committed, and by whom."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds_itself: bool
    """Whether the commit makes the group's partition part of the transaction, where it is not yet."""
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: Mapping[str, Mapping[int, bytes]]
    """Encoded, by topic and partition."""


async def commit_in_transaction(coordinator: GroupCoordinator, commit: TransactionalCommit) -> None:
    """Keep offsets as part of a producer's transaction; `CodedError` with what the producer is to be told."""
    check_group_id(commit.group_id)
    verification = await _verify(coordinator, commit)
    shard = coordinator.shard(commit.group_id)
    _check_member(coordinator, shard, commit)
    try:
        pairs = pairs_of(commit.group_id, commit.offsets)
        shard.append_pending(commit.producer_id, commit.producer_epoch, pairs, verification)
    except CodedError as error:
        if error.code in _TOLD:
            raise
        raise CodedError(ErrorCode.coordinator_not_available, error.message) from error
    await coordinator.committed(shard)


async def _verify(coordinator: GroupCoordinator, commit: TransactionalCommit) -> Verification | None:
    """What the transaction may begin with on the group's partition, once its coordinator has agreed."""
    partition = coordinator.shard(commit.group_id).partition
    if partition.log.has_open_transaction(commit.producer_id, commit.producer_epoch):
        return None
    if coordinator.verifier is None:
        raise CodedError(ErrorCode.invalid_txn_state, "transactions are not available on this broker")
    verification = partition.verifications.begin(commit.producer_id, commit.producer_epoch)
    key = (partition.topic, partition.index)
    answered = await coordinator.verifier.verify(
        commit.transactional_id,
        commit.producer_id,
        commit.producer_epoch,
        [key],
        {partition.topic: UUID(bytes=partition.topic_id)},
        add=commit.adds_itself,
    )
    code = answered.get(key, ErrorCode.invalid_txn_state)
    if code is not ErrorCode.none:
        partition.verifications.end(commit.producer_id)
        raise CodedError(code, f"the transaction coordinator refuses {key[0]}-{key[1]}: {code.name}")
    return verification


def _check_member(coordinator: GroupCoordinator, shard: Shard, commit: TransactionalCommit) -> None:
    group = coordinator.group(shard, commit.group_id)
    if group is not None:
        effects = group.check_commit(
            commit.member_id, commit.instance_id, commit.generation, shard.now_ms(), transactional=True
        )
        shard.carry_out(group, effects)
    elif commit.generation >= 0:
        raise CodedError(ErrorCode.illegal_generation, f"there is no group {commit.group_id!r}")
