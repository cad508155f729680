"""A group's next target, from what the group and the topics are at one time. Nothing of it changes meanwhile, so that a
thread can make the target of a large group while its members are served; they go on with the target they have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from headrace.cluster.image import ClusterImage, Topic
from headrace.coordinator.groups.targets import NOTHING, Assignment, TargetMember, racks_of
from headrace.coordinator.runtime.decision import CoordinatorRecord

from . import subscriptions
from .assignors import ASSIGNORS, AssignedMember
from .member import ConsumerMember
from .records import encode
from .state import GroupState


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignment:
    """What each member of an epoch is to hold."""

    epoch: int
    size: int
    """Members and partitions."""
    targets: Mapping[str, Assignment]
    """By member id. Where nothing changes it is the very object of the target before."""
    records: Mapping[str, CoordinatorRecord]
    """The records of those that change."""
    instances: Mapping[str, str]
    """The instance ids of static members, who may have another member id by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAssignmentBuilder:
    """All that a target is made from."""

    group_id: str
    epoch: int
    assignor: str
    members: Mapping[str, ConsumerMember]
    targets: Mapping[str, Assignment]
    resolved: subscriptions.Resolved
    racks: Mapping[int, str]
    image: ClusterImage
    """Only looked up in. Where topics change meanwhile, the group enters another epoch."""

    @classmethod
    def of(cls, group_id: str, state: GroupState, assignor: str, image: ClusterImage) -> "TargetAssignmentBuilder":
        """What counts now."""
        return cls(
            group_id=group_id,
            epoch=state.epoch,
            assignor=assignor,
            members=state.members.copy(),
            targets=state.targets.copy(),
            resolved=state.resolved.copy(),
            racks=racks_of(image),
            image=image,
        )

    def build(self) -> TargetAssignment:
        """The target of the epoch."""
        resolved, image = self.resolved, self.image
        names_of = {member.id: subscriptions.subscribed_names(member, resolved) for member in self.members.values()}
        names = set().union(*names_of.values())
        topics_by_name = {name: topic for name in names if (topic := image.topic(name)) is not None}
        topics = subscriptions.shapes(topics_by_name.values(), self.racks)
        made = ASSIGNORS[self.assignor](self._subscribers(names_of, topics_by_name), topics)
        targets = {member_id: self._same(member_id, target) for member_id, target in made.items()}
        return TargetAssignment(
            epoch=self.epoch,
            size=len(targets) + sum(topic.partitions for topic in topics.values()),
            targets=targets,
            records={
                member_id: encode(self.group_id, TargetMember(member_id, target))
                for member_id, target in targets.items()
                if target is not self.targets.get(member_id)
            },
            instances={member.id: member.instance_id for member in self.members.values() if member.instance_id},
        )

    def _subscribers(
        self, names_of: Mapping[str, frozenset[str]], topics_by_name: Mapping[str, Topic]
    ) -> dict[str, AssignedMember]:
        ids_of: dict[frozenset[str], frozenset[UUID]] = {}
        subscribers = {}
        for member_id, names in names_of.items():
            ids = ids_of.get(names)
            if ids is None:
                ids = ids_of[names] = frozenset([topics_by_name[name].id for name in names if name in topics_by_name])
            member = self.members[member_id]
            subscribers[member_id] = AssignedMember(
                topics=ids,
                assigned=self.targets.get(member_id, NOTHING),
                instance_id=member.instance_id,
                rack=member.rack_id,
            )
        return subscribers

    def _same(self, member_id: str, target: Assignment) -> Assignment:
        before = self.targets.get(member_id)
        return target if before is None or before != target else before
