"""Committed offsets of a group, as a client that is no member of it: through the group's coordinator."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.protocol.topic_partition import TopicPartition

from ..core.groups import (
    CommittedOffset,
    commit_passes,
    commit_request,
    committed_request,
    read_committed,
    read_refused_commits,
)
from ..core.metadata import CoordinatorKind
from ..errors import ClientError
from .channel import Channel
from .retry import TryAgain, refused, refused_or_again

if TYPE_CHECKING:
    from .cluster import Cluster


def commit(cluster: "Cluster", group: str, offsets: Mapping[TopicPartition, int]) -> None:
    values = commit_request(group, {where: CommittedOffset(offset) for where, offset in offsets.items()})

    def attempt(channel: Channel) -> None:
        refusals = read_refused_commits(channel.ask(ApiKey.OFFSET_COMMIT, values))
        for where, code in refusals.items():
            raise _commit_error(code, group, where)

    cluster.with_coordinator(CoordinatorKind.GROUP, group, attempt)


def committed(cluster: "Cluster", group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
    values = committed_request(group, partitions, require_stable=True)

    def attempt(channel: Channel) -> dict[TopicPartition, int | None]:
        answer = channel.ask(ApiKey.OFFSET_FETCH, values)
        _check(getattr(answer, "error_code", ErrorCode.none), group)
        found: dict[TopicPartition, int | None] = dict.fromkeys(partitions)
        for where, (code, offset) in read_committed(answer).items():
            _check(code, group)
            found[where] = None if offset is None else offset.offset
        return found

    return cluster.with_coordinator(CoordinatorKind.GROUP, group, attempt)


def _check(code: ErrorCode, group: str) -> None:
    if code is not ErrorCode.none:
        raise refused_or_again(code, f"the coordinator of '{group}'")


def _commit_error(code: ErrorCode, group: str, where: TopicPartition) -> Exception:
    if code is ErrorCode.unknown_member_id or code is ErrorCode.illegal_generation:
        return ClientError(
            f"group '{group}' has members, and only they may commit its offsets; use a group of its own",
            code.name.upper(),
        )
    error = refused(code, f"group '{group}' cannot commit {where.text}")
    # Who is no member waits until those who are have joined again.
    return TryAgain(error) if commit_passes(code) or code is ErrorCode.rebalance_in_progress else error
