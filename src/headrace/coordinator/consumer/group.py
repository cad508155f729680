"""A consumer group (KIP-848): members say by heartbeats what they want and what they own, and are told by the answers
what to own. Events in, effects out; the same state comes back from replaying the records written.

A heartbeat takes up to four steps, each of which is left out where nothing changed:

1. The member's subscription is kept. If it changed, or a topic did, the group enters a new epoch.
2. An assignor makes the target of that epoch. For a large group a thread does; it counts with the next heartbeat then.
3. The member takes its next step from what it holds to its target (see `reconcile`).
4. It is answered with its epoch and, if it changed, with what it may own.

| group state | when                                                          |
|-------------|---------------------------------------------------------------|
| Empty       | no members                                                    |
| Assigning   | the epoch is newer than the target                            |
| Reconciling | a member is not yet at its target                             |
| Stable      | all are                                                       |
| Dead        | it was deleted                                                |
"""

from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from headrace.protocol.errors import CodedError, ErrorCode

from ..classic import ClassicGroup
from ..effects import Effect, Reply
from ..group import GroupType
from .classic_members import ClassicMembers
from .core import REBALANCE, SESSION, Decision
from .describe import describe
from .member import AWAY, JOINING, Assignment, Member, MemberState
from .migration import upgraded
from .records import CurrentAssignment, decode
from .regex import topic_matcher
from .requests import HeartbeatRequest, answer, check_epoch, refusal

NO_EPOCH: Final = -1


class ConsumerGroup(ClassicMembers):
    """One group."""

    type: Final = GroupType.CONSUMER
    protocol_type: Final = "consumer"

    @property
    def state_name(self) -> str:
        state = self.state
        if self.is_dead:
            return "Dead"
        if not state.members:
            return "Empty"
        if state.epoch > state.target_epoch:
            return "Assigning"
        reconciled = all(member.is_reconciled_to(state.target_epoch) for member in state.members.values())
        return "Stable" if reconciled else "Reconciling"

    @property
    def is_dead(self) -> bool:
        return self.state.is_deleted

    @property
    def is_empty(self) -> bool:
        return not self.state.members

    @property
    def is_blank(self) -> bool:
        return self.is_empty and self.state.epoch == 0

    def take_over(self, classic: ClassicGroup, now_ms: int) -> list[Effect]:
        """Become, without members of its own yet, what a classic group with members is; `CodedError` if it cannot."""
        decision = self._decide(now_ms)
        for change in upgraded(classic, self._settings(), self._image):
            decision.apply(change)
        return [*classic.tombstones(), *decision.effects, *self.on_loaded(now_ms)]

    # Heartbeats

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> list[Effect]:
        """A ConsumerGroupHeartbeat that `check_request` found valid: a member joins, lives on, or leaves."""
        decision = self._decide(now_ms)
        try:
            if request.member_epoch < JOINING:
                self._leave(decision, request)
            else:
                self._beat(decision, request)
        except CodedError as error:
            return [Reply(request.token, refusal(error))]
        return decision.effects

    def _beat(self, decision: Decision, request: HeartbeatRequest) -> None:
        self._check_room(request.member_id, request.instance_id)
        old = self._member_of(decision, request)
        member = _told(old, request)
        changed = self._subscribe(decision, old, member)
        self._refresh(decision, bump=changed or self.state.epoch == 0)
        self._assign(decision)
        member = self._reconcile(decision, member, request.owned, changed)
        settings = self._settings()
        decision.wake(SESSION, member.id, settings.session_timeout_ms)
        shows = request.member_epoch == JOINING or request.is_full or member.assigned != old.assigned
        assigned: Assignment | None = member.assigned if shows else None
        decision.reply(request.token, answer(member.id, member.epoch, settings.heartbeat_interval_ms, assigned))

    def _member_of(self, decision: Decision, request: HeartbeatRequest) -> Member:
        if request.subscribed_topic_regex:
            topic_matcher(request.subscribed_topic_regex)
        if request.instance_id is not None and request.member_epoch == JOINING:
            return self._joining_static(decision, request, request.instance_id)
        if request.instance_id is not None:
            member = self._known_static(request.member_id, request.instance_id)
        elif request.member_epoch == JOINING:
            member = self.state.members.get(request.member_id) or Member(id=request.member_id)
        else:
            member = self._known(request.member_id)
        check_epoch(member, request)
        return member

    def _joining_static(self, decision: Decision, request: HeartbeatRequest, instance_id: str) -> Member:
        member = self.state.static_member(instance_id)
        if member is None:
            return self.state.members.get(request.member_id) or Member(id=request.member_id)
        if member.id == request.member_id and member.epoch != AWAY:
            return member
        if member.classic is None and member.epoch != AWAY:
            raise CodedError(
                ErrorCode.unreleased_instance_id,
                f"Static member {request.member_id} with instance id {instance_id} cannot join the group because the "
                f"instance id is owned by {member.id} member.",
            )
        return self._replace(decision, member, request.member_id)

    def _leave(self, decision: Decision, request: HeartbeatRequest) -> None:
        if request.instance_id is None:
            member = self._known(request.member_id)
        else:
            member = self._known_static(request.member_id, request.instance_id)
        if request.member_epoch == AWAY:
            away = replace(member, epoch=AWAY, pending_revocation={})
            decision.apply(CurrentAssignment(member.id, away))
            decision.forget(REBALANCE, member.id)
        else:
            self._fence(decision, [member])
        decision.reply(request.token, answer(request.member_id, request.member_epoch))

    # Time

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """Every member gets a session timeout to show that it is still there."""
        decision = self._decide(now_ms)
        session_timeout_ms = self._settings().session_timeout_ms
        for member in self.state.members.values():
            classic = member.classic
            timeout = session_timeout_ms if classic is None else classic.session_timeout_ms
            decision.wake(SESSION, member.id, timeout)
            if member.state is MemberState.UNREVOKED_PARTITIONS and classic is None:
                decision.wake(REBALANCE, member.id, member.rebalance_timeout_ms)
        return decision.effects

    def on_alarm(self, name: Hashable, now_ms: int) -> list[Effect]:
        """A member was silent for too long, or did not give up in time what it was asked to."""
        decision = self._decide(now_ms)
        self._on_member_alarm(decision, name)
        return decision.effects

    # The log

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take a record of the log in, as it was once written."""
        _, change = decode(key, value)
        if change is not None:
            self.state.apply(change)

    def resign(self, code: ErrorCode) -> Sequence[Reply]:  # noqa: ARG002
        """Nobody waits: every heartbeat is answered at once."""
        return ()

    # What others may do

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,  # noqa: ARG002
        *,
        transactional: bool = False,
    ) -> Sequence[Effect]:
        """`CodedError` unless this member may commit offsets: STALE_MEMBER_EPOCH when its epoch is not its own."""
        if generation < 0 and self.is_empty:
            return ()
        if transactional and generation == NO_EPOCH and not member_id and instance_id is None:
            return ()
        _check_member_epoch(self._known(member_id), generation)
        return ()

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """`CodedError` unless this member may read the group's offsets; whoever names no member may."""
        if not member_id and member_epoch < 0:
            return
        _check_member_epoch(self._known(member_id or ""), member_epoch)

    def check_offset_delete(self) -> None:
        """Single offsets may be deleted, except those of topics that members read (see `subscribed_topics`)."""

    def check_delete(self) -> None:
        """`CodedError` unless the group may be deleted."""
        if not self.is_empty:
            raise CodedError(ErrorCode.non_empty_group)

    def subscribed_topics(self) -> Container[str]:
        """The topics that members read, or may be reading."""
        return self.state.subscribed_names()

    def offsets_idle_since(self, commit_timestamp: int) -> int | None:
        """Offsets grow old from the time that they were committed, unless a member reads their topic."""
        return commit_timestamp

    def describe(self) -> Mapping[str, Any]:
        """The group in the field names of ConsumerGroupDescribe."""
        return describe(self.group_id, self.state_name, self._assignor_name(), self.state, self._image)


def _told(old: Member, request: HeartbeatRequest) -> Member:
    """The member as it is after what it said. Who joins says everything: a static member that returns with another
    subscription keeps nothing of its former one."""
    if request.member_epoch == JOINING:
        old = replace(
            old, subscribed_topic_names=frozenset(), subscribed_topic_regex=None, rack_id=None, server_assignor=None
        )
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout = request.rebalance_timeout_ms
    return replace(
        old,
        instance_id=old.instance_id if request.instance_id is None else request.instance_id,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout == -1 else timeout,
        server_assignor=old.server_assignor if request.server_assignor is None else request.server_assignor,
        subscribed_topic_names=old.subscribed_topic_names if names is None else names,
        subscribed_topic_regex=old.subscribed_topic_regex if regex is None else regex,
        client_id=request.client_id,
        client_host=request.client_host,
        classic=None,
    )


def _check_member_epoch(member: Member, epoch: int) -> None:
    if epoch == member.epoch:
        return
    if member.classic is not None:
        raise CodedError(
            ErrorCode.illegal_generation,
            f"The received generation id {epoch} does not match the expected member epoch {member.epoch}.",
        )
    raise CodedError(
        ErrorCode.stale_member_epoch,
        f"The received member epoch {epoch} does not match the expected member epoch {member.epoch}.",
    )
