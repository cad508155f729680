"""Between the protocols while members are in the group: a classic group becomes a consumer group when a member of the
new protocol joins it, and a classic one again when the last of those has left (`group.consumer.migration.policy`).

Members keep what they hold either way: the partitions that the last leader assigned are the target and the holdings
of the new group, and back. Classic members learn by their heartbeats that they have to join again.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from headrace.cluster.image import ClusterImage
from headrace.coordinator.groups.classic import ClassicGroup
from headrace.coordinator.groups.classic.member import ClassicMember
from headrace.coordinator.groups.classic.records import StoredGroup, StoredMember, encode_group, group_key
from headrace.coordinator.groups.settings import ConsumerSettings
from headrace.coordinator.groups.targets import Assignment, GroupEpoch, TargetEpoch, TargetMember, metadata_hash
from headrace.coordinator.runtime.decision import CoordinatorRecord
from headrace.protocol.consumer_protocol import CONSUMER, NotConsumerProtocol, parse_assignment, parse_subscription
from headrace.protocol.errors import CodedError, ErrorCode

from .embedded import by_id, write_assignment
from .member import ClassicMetadata, ConsumerMember
from .records import Change, CurrentAssignment, MemberSubscription
from .state import GroupState


def upgraded(classic: ClassicGroup, settings: ConsumerSettings, image: ClusterImage) -> list[Change]:
    """What makes a consumer group of a classic one with members; `CodedError` when that cannot be."""
    _check_upgrade(classic, settings)
    try:
        members = [_upgraded_member(member, classic, image) for member in classic.members.by_id.values()]
    except NotConsumerProtocol:
        raise _cannot_upgrade(classic, "the embedded consumer protocol is malformed") from None
    names = set[str]().union(*(member.subscribed_topic_names for member in members))
    return [
        *(MemberSubscription(member.id, member) for member in members),
        GroupEpoch(classic.generation, metadata_hash(names, image)),
        *(TargetMember(member.id, member.assigned) for member in members),
        TargetEpoch(classic.generation),
        *(CurrentAssignment(member.id, member) for member in members),
    ]


def _check_upgrade(classic: ClassicGroup, settings: ConsumerSettings) -> None:
    if not settings.migration_policy.allows_upgrade:
        raise _cannot_upgrade(classic, "online upgrade is disabled")
    if classic.protocol_type != CONSUMER:
        raise _cannot_upgrade(classic, "the group does not use the consumer embedded protocol")
    if len(classic.members) > settings.max_size:
        raise _cannot_upgrade(classic, "the group size exceeds the consumer group maximum size")


def _upgraded_member(member: ClassicMember, classic: ClassicGroup, image: ClusterImage) -> ConsumerMember:
    metadata = member.metadata(classic.protocol_name) or next(iter(member.protocols.values()))
    subscription = parse_subscription(metadata)
    assigned, user_data = parse_assignment(member.assignment)
    if user_data:
        raise _cannot_upgrade(
            classic,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
            "assignor before re-attempting the upgrade",
        )
    return ConsumerMember(
        id=member.member_id,
        epoch=classic.generation,
        previous_epoch=classic.generation,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscribed_topic_names=subscription.topics,
        classic=ClassicMetadata(
            session_timeout_ms=member.session_timeout_ms, protocols=tuple(member.protocols.items())
        ),
        assigned=by_id(assigned, image),
    )


def _cannot_upgrade(classic: ClassicGroup, reason: str) -> CodedError:
    message = f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}."
    return CodedError(ErrorCode.group_id_not_found, message)


def can_downgrade(members: Sequence[ConsumerMember], settings: ConsumerSettings) -> bool:
    """Whether the members that remain are a classic group."""
    return (
        0 < len(members) <= settings.classic_max_size
        and settings.migration_policy.allows_downgrade
        and all(member.classic is not None for member in members)
        and bool(_common_protocols(members))
    )


def downgraded(state: GroupState, classic: ClassicGroup, image: ClusterImage) -> CoordinatorRecord:
    """Make `classic` the group of its record, which is returned."""
    members = list(state.members.values())
    protocol = select_protocol(members)
    stored = StoredGroup(
        protocol_type=CONSUMER,
        generation=state.epoch,
        protocol=protocol,
        leader=members[0].id,
        state_timestamp=classic.state_timestamp,
        members=tuple(_stored(member, protocol, state.target_of(member.id), image) for member in members),
    )
    record = CoordinatorRecord(group_key(classic.group_id), encode_group(stored))
    classic.replay(*record)
    return record


def _stored(member: ConsumerMember, protocol: str, target: Assignment, image: ClusterImage) -> StoredMember:
    assert member.classic is not None
    metadata = dict(member.classic.protocols)[protocol]
    return StoredMember(
        member_id=member.id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        subscription=metadata,
        assignment=write_assignment(protocol_version(metadata), target, image),
    )


def protocol_version(metadata: bytes) -> int:
    """The version of a member's embedded protocol."""
    return int.from_bytes(metadata[:2], signed=True) if len(metadata) >= 2 else 0


def select_protocol(members: Sequence[ConsumerMember]) -> str:
    """The protocol that most prefer among those that all support."""
    common = _common_protocols(members)
    votes = Counter(next(name for name in _names(member) if name in common) for member in members)
    return max(sorted(votes), key=lambda name: votes[name])


def _common_protocols(members: Iterable[ConsumerMember]) -> set[str]:
    return set.intersection(*(set(_names(member)) for member in members))


def _names(member: ConsumerMember) -> list[str]:
    return [] if member.classic is None else [name for name, _ in member.classic.protocols]
