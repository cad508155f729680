"""Members of the classic protocol in a consumer group: their requests, mapped on the new machine (KIP-848).

A generation is the member's epoch. JoinGroup is its heartbeat: it tells the subscription and what the member owns, and
takes the next step towards the target. SyncGroup gets what the member may hold, Heartbeat whether there is more to do.
There is no leader: the broker assigns, so nobody waits for others.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headrace.protocol.errors import CodedError, ErrorCode

from ..classic import JoinRequest, LeavingMember, SyncRequest
from ..classic.turn import heartbeat_answer, join_refused, sync_answer
from ..effects import Effect, Reply
from ..fields import BadRecord
from .core import JOIN, SESSION, SYNC, Core, Decision
from .embedded import Subscription, by_id, parse_subscription, write_assignment
from .member import ClassicMetadata, Member, MemberState
from .migration import CONSUMER, protocol_version


class ClassicMembers(Core):
    """What classic members ask of a consumer group."""

    def join(self, request: JoinRequest, now_ms: int) -> list[Effect]:
        """A JoinGroup, answered at once."""
        decision = self._decide(now_ms)
        try:
            self._join(decision, request)
        except CodedError as error:
            return [Reply(request.token, join_refused(error.code, request.member_id))]
        return decision.effects

    def _join(self, decision: Decision, request: JoinRequest) -> None:
        member_id = request.member_id or f"{request.instance_id or request.client_id}-{self._new_id()}"
        self._check_room(member_id, request.instance_id)
        subscription = self._check_protocols(request)
        if request.must_know_its_id and not request.member_id and request.instance_id is None:
            decision.reply(request.token, join_refused(ErrorCode.member_id_required, member_id))
            return
        old = self._joining(decision, request, member_id)
        member = _joined(old, request, subscription)
        changed = self._subscribe(decision, old, member)
        self._refresh(decision, bump=changed)
        if old.classic is None and old.instance_id is not None and self._downgrade(decision):
            decision.reply(request.token, join_refused(ErrorCode.rebalance_in_progress, member.id))
            return
        self._assign(decision)
        member = self._reconcile(decision, member, by_id(subscription.owned, self._image), changed)
        self._expect_no_join(decision, member.id)
        decision.wake(SESSION, member.id, request.session_timeout_ms)
        decision.wake(SYNC, member.id, request.rebalance_timeout_ms)
        decision.reply(request.token, _join_answer(member))

    def _check_protocols(self, request: JoinRequest) -> Subscription:
        classic = [member.classic for member in self.state.members.values() if member.classic is not None]
        offered = set(request.protocols)
        common = offered.intersection(*({name for name, _ in one.protocols} for one in classic))
        if request.protocol_type != CONSUMER or not common:
            raise CodedError(ErrorCode.inconsistent_group_protocol)
        try:
            return parse_subscription(next(iter(request.protocols.values())))
        except BadRecord:
            raise CodedError(ErrorCode.inconsistent_group_protocol) from None

    def _joining(self, decision: Decision, request: JoinRequest, member_id: str) -> Member:
        instance_id = request.instance_id
        if instance_id is None:
            return self.state.members.get(member_id) or Member(id=member_id)
        if request.member_id:
            return self._known_static(member_id, instance_id)
        former = self.state.static_member(instance_id)
        return Member(id=member_id) if former is None else self._replace(decision, former, member_id)

    def sync(self, request: SyncRequest, now_ms: int) -> list[Effect]:
        """A SyncGroup, answered at once with what the member may hold."""
        decision = self._decide(now_ms)
        try:
            member, classic = self._classic_member(request.member_id, request.instance_id, request.generation)
            protocol, metadata = classic.protocols[0]
            if request.protocol_type not in (None, CONSUMER) or request.protocol_name not in (None, protocol):
                raise CodedError(ErrorCode.inconsistent_group_protocol)
            if self.state.epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
                self._expect_join(decision, member)
                raise CodedError(ErrorCode.rebalance_in_progress)
        except CodedError as error:
            decision.reply(request.token, sync_answer(error.code))
            return decision.effects
        decision.forget(SYNC, member.id)
        decision.wake(SESSION, member.id, classic.session_timeout_ms)
        assignment = write_assignment(protocol_version(metadata), member.assigned, self._image)
        answer = sync_answer(ErrorCode.none, assignment, request.protocol_type, request.protocol_name)
        decision.reply(request.token, answer)
        return decision.effects

    def classic_heartbeat(
        self, token: object, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> list[Effect]:
        """A Heartbeat: the member lives, and learns whether it must join again."""
        decision = self._decide(now_ms)
        try:
            member, classic = self._classic_member(member_id, instance_id, generation)
        except CodedError as error:
            return [Reply(token, heartbeat_answer(error.code))]
        decision.wake(SESSION, member.id, classic.session_timeout_ms)
        self._refresh(decision, bump=False)
        code = ErrorCode.none
        if self._must_rejoin(member):
            code = ErrorCode.rebalance_in_progress
            self._expect_join(decision, member)
        decision.reply(token, heartbeat_answer(code))
        return decision.effects

    def _must_rejoin(self, member: Member) -> bool:
        """There is a newer epoch, something to give up, or everything it waits for is free."""
        if member.epoch < self.state.epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        return member.state is MemberState.UNRELEASED_PARTITIONS and not self._waits(member)

    def _waits(self, member: Member) -> bool:
        return any(
            self.state.is_held(topic, index)
            for topic, indexes in self.state.target_of(member.id).items()
            for index in indexes - member.assigned.get(topic, frozenset())
        )

    def leave(self, token: object, leaving: Sequence[LeavingMember], now_ms: int) -> list[Effect]:
        """A LeaveGroup of one member or of many, of either protocol."""
        decision = self._decide(now_ms)
        answers: list[dict[str, Any]] = []
        gone: dict[str, Member] = {}
        for one in leaving:
            code = ErrorCode.none
            try:
                member = self._leaving(one)
                gone[member.id] = member
            except CodedError as error:
                code = error.code
            answers.append({"member_id": one.member_id, "group_instance_id": one.instance_id, "error_code": code})
        if gone:
            self._fence(decision, list(gone.values()))
        decision.reply(token, {"throttle_time": 0, "error_code": ErrorCode.none, "members": answers})
        return decision.effects

    def _leaving(self, one: LeavingMember) -> Member:
        if one.instance_id is None:
            return self._known(one.member_id)
        static = self.state.static_member(one.instance_id)
        return self._known_static(one.member_id or ("" if static is None else static.id), one.instance_id)

    def _classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[Member, ClassicMetadata]:
        member = self._known(member_id) if instance_id is None else self._known_static(member_id, instance_id)
        if member.classic is None:
            raise CodedError(ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol.")
        if member.epoch != generation:
            raise CodedError(ErrorCode.illegal_generation)
        return member, member.classic

    def _expect_join(self, decision: Decision, member: Member) -> None:
        """It was told to join again, and has its rebalance timeout to do so, from the first time it was told."""
        if member.id not in self._to_join:
            self._to_join.add(member.id)
            decision.wake(JOIN, member.id, member.rebalance_timeout_ms)

    def _expect_no_join(self, decision: Decision, member_id: str) -> None:
        self._to_join.discard(member_id)
        decision.forget(JOIN, member_id)


def _joined(old: Member, request: JoinRequest, subscription: Subscription) -> Member:
    return replace(
        old,
        instance_id=request.instance_id,
        rack_id=subscription.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=None,
        subscribed_topic_names=subscription.topics,
        subscribed_topic_regex="",
        client_id=request.client_id,
        client_host=request.client_host,
        classic=ClassicMetadata(
            session_timeout_ms=request.session_timeout_ms, protocols=tuple(request.protocols.items())
        ),
    )


def _join_answer(member: Member) -> dict[str, Any]:
    assert member.classic is not None
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "generation_id": member.epoch,
        "protocol_type": CONSUMER,
        "protocol_name": member.classic.protocols[0][0],
        "leader": "",
        "skip_assignment": False,
        "member_id": member.id,
        "members": (),
    }
