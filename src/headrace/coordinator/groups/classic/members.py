"""Who is in a classic group: members, static ids, those who are still to come, the leader, the protocols in common, the
topics that they are subscribed to."""

import dataclasses
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Final

from headrace.protocol.consumer_protocol import NotConsumerProtocol, parse_topics
from headrace.protocol.errors import CodedError, ErrorCode

from .member import ClassicMember, JoinRequest


class _EveryTopic:
    def __contains__(self, topic: object) -> bool:
        return True


EVERY_TOPIC: Final = _EveryTopic()
"""What members are subscribed to where a subscription cannot be read."""


class Members:
    """The members of one group. Counts what is asked often, so that a large group joins in linear time."""

    def __init__(self) -> None:
        self.by_id: dict[str, ClassicMember] = {}
        self.pending: set[str] = set()
        """Ids that were given out, whose members have not joined with them yet."""
        self.leader: str | None = None
        self._static: dict[str, str] = {}
        self._joining = 0
        self._support: Counter[str] = Counter()
        self._subscribed: dict[str | None, Container[str]] = {}
        """By protocol; of the members as they are, so that it is emptied whenever one comes, goes or changes."""

    def __len__(self) -> int:
        return len(self.by_id)

    @property
    def joining(self) -> int:
        """How many wait for their JoinGroup to be answered."""
        return self._joining

    @property
    def all_joined(self) -> bool:
        return self._joining == len(self.by_id) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member may take to join again."""
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    def add(self, member: ClassicMember) -> None:
        self.by_id[member.member_id] = member
        self.pending.discard(member.member_id)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._support.update(member.protocols.keys())
        self._subscribed.clear()
        self._joining += member.is_joining

    def remove(self, member_id: str) -> ClassicMember | None:
        self.pending.discard(member_id)
        member = self.by_id.pop(member_id, None)
        if member is None:
            return None
        self._support.subtract(member.protocols.keys())
        self._subscribed.clear()
        self._joining -= member.is_joining
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.by_id), None)
        return member

    def copy(self) -> "Members":
        """The same members, to decide what becomes of them."""
        copy = Members()
        copy.by_id, copy.pending, copy.leader = self.by_id.copy(), self.pending.copy(), self.leader
        copy._static, copy._joining, copy._support = self._static.copy(), self._joining, self._support.copy()
        return copy

    def replace(self, member: ClassicMember, request: JoinRequest, new_id: str) -> None:
        """Put a static member that joins under a new id in its own place; nobody waits under the former one."""
        assert member.join_token is None
        assert member.instance_id is not None
        returned = dataclasses.replace(member, member_id=new_id)
        del self.by_id[member.member_id]
        self.by_id[new_id] = returned
        self._static[member.instance_id] = new_id
        if self.leader == member.member_id:
            self.leader = new_id
        self.update(returned, request.protocols, request.session_timeout_ms, request.rebalance_timeout_ms)

    def update(self, member: ClassicMember, protocols: Mapping[str, bytes], session_ms: int, rebalance_ms: int) -> None:
        self._support.subtract(member.protocols.keys())
        self._support.update(protocols.keys())
        self._subscribed.clear()
        member.protocols = protocols
        member.session_timeout_ms = session_ms
        member.rebalance_timeout_ms = rebalance_ms

    def set_join_token(self, member: ClassicMember, token: object | None) -> object | None:
        """Set or clear the request of a member that waits; the token it waited with before."""
        before, member.join_token = member.join_token, token
        self._joining += (token is not None) - (before is not None)
        return before

    def static_id(self, instance_id: str) -> str | None:
        """The member id of a static member."""
        return self._static.get(instance_id)

    def check(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member; `CodedError` when it is unknown, or was replaced by another with its instance id."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is not None and known != member_id:
                raise CodedError(ErrorCode.fenced_instance_id)
            if known is None:
                raise CodedError(ErrorCode.unknown_member_id)
        member = self.by_id.get(member_id)
        if member is None:
            raise CodedError(ErrorCode.unknown_member_id)
        return member

    def subscribed_topics(self, protocol: str | None) -> Container[str]:
        """The topics of all subscriptions that members sent for a protocol; `EVERY_TOPIC` where one cannot be read."""
        if protocol not in self._subscribed:
            subscriptions = {member.metadata(protocol) for member in self.by_id.values()}
            self._subscribed[protocol] = _all_topics(subscriptions)
        return self._subscribed[protocol]

    def supports_any(self, protocols: Iterable[str]) -> bool:
        """Whether every member knows one of these protocols."""
        return any(self._support[name] == len(self.by_id) for name in protocols)

    def select_protocol(self) -> str:
        """The assignor that most members prefer, of those that all support."""
        candidates = [name for name, count in self._support.items() if count == len(self.by_id)]
        votes = Counter(member.vote(candidates) for member in self.by_id.values())
        return votes.most_common(1)[0][0]

    def elect_joined_leader(self) -> bool:
        """Keep the leader if it has joined, else make one of those who have the leader; False when nobody has."""
        leader = self.by_id.get(self.leader or "")
        if leader is not None and leader.is_joining:
            return True
        chosen = next((member for member in self.by_id.values() if member.is_joining), None)
        if chosen is None:
            return False
        self.leader = chosen.member_id
        return True


def _all_topics(subscriptions: Iterable[bytes]) -> Container[str]:
    try:
        return set[str]().union(*map(parse_topics, subscriptions))
    except NotConsumerProtocol:
        return EVERY_TOPIC
