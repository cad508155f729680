"""The classic group protocol as a pure state machine: requests and timers in, decisions out. Kafka's rules throughout.

A rebalance, seen from the group:

1.  Something changes (`MEMBERS_CHANGED`). Heartbeats now answer REBALANCE_IN_PROGRESS, so that members join again.
2.  A JoinGroup waits until every member has joined, or the longest rebalance timeout of them has passed; dynamic
    members that have not joined by then are out. The first rebalance of an empty group also waits a little
    (`group.initial.rebalance.delay.ms`) for members that start at the same time.
3.  A new generation begins (`ALL_JOINED`). Each JoinGroup is answered with the protocol and the leader; the leader's
    also with all members.
4.  The leader's SyncGroup brings the assignments (`ASSIGNED`). They are written to the log before anyone is
    answered.
    Members that never sync are out after the rebalance timeout.

A member is known by its id, and a static one also by its instance id: when an instance returns with no member id it
takes over the place, the assignment and the leadership of its former self, without a rebalance unless the chosen
protocol would change, and its former self is fenced.

A request that waits is answered exactly once, whatever becomes of its member.
"""

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from typing import Any, Final

from headrace.coordinator.groups.group import Group, GroupType
from headrace.coordinator.groups.kinds import GroupEnvironment, GroupKind
from headrace.coordinator.groups.settings import NEW_MEMBER_TIMEOUT_MS, ClassicSettings
from headrace.coordinator.runtime.decision import CoordinatorRecord, Decision, Reply
from headrace.protocol.consumer_protocol import CONSUMER
from headrace.protocol.errors import CodedError, ErrorCode

from .answers import JOIN_TIMER, SYNC_TIMER, heartbeat_answer, join_refused, session_timer, sync_answer
from .member import ClassicMember, JoinRequest, LeavingMember, SyncRequest
from .members import EVERY_TOPIC, Members
from .records import CLASSIC_KEY, StoredGroup, decode_group, encode_group, group_key
from .states import TRANSITIONS, ClassicEvent, ClassicState

_SHORTEST_WAIT_MS: Final = 1_000
"""Between two looks whether a static member is back, where members gave no time to join in."""


class ClassicGroup(Group):
    """One group of the classic protocol. `wall_ms` is the time of day, for what is stored."""

    type = GroupType.CLASSIC

    def __init__(
        self, group_id: str, settings: ClassicSettings, *, wall_ms: Callable[[], int], new_id: Callable[[], str]
    ) -> None:
        self.group_id = group_id
        self.state = ClassicState.EMPTY
        self.generation = 0
        self.protocol_type = None
        self.protocol_name: str | None = None
        self.state_timestamp = wall_ms()
        self.is_stored = False
        """Whether the log has a record of this group."""
        self.members = Members()
        self._settings = settings
        self._wall_ms = wall_ms
        self._new_id = new_id
        self._to_sync: set[str] = set()
        """Members of this generation whose SyncGroup has not come yet."""
        self._is_initial = False
        """Whether this rebalance is the first after the group was empty: more members may be about to come."""
        self._delay_again = False
        """Whether a member came during the initial delay, which then goes on."""
        self._delay_left_ms = 0

    @property
    def is_empty(self) -> bool:
        return self.state is ClassicState.EMPTY

    @property
    def is_dead(self) -> bool:
        return self.state is ClassicState.DEAD

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_blank(self) -> bool:
        """Whether the group is empty and unwritten: no record, no member, no member id handed out."""
        return not self.is_stored and self.is_empty and not self.members.pending

    # Persistence

    def replay(self, key: bytes, value: bytes | None) -> None:  # noqa: ARG002 - a classic group has one record
        """Become what a record of the log says."""
        self.members = Members()
        if value is None:
            self.state = ClassicState.DEAD
            return
        stored = decode_group(value)
        self.is_stored = True
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.protocol_name = stored.protocol
        self.state_timestamp = stored.state_timestamp
        self.state = ClassicState.STABLE if stored.members else ClassicState.EMPTY
        self.members.leader = stored.leader
        for member in stored.members:
            self.members.add(ClassicMember.restored(member, stored.protocol))

    def tombstones(self) -> list[CoordinatorRecord]:
        """The record that deletes the group."""
        return [CoordinatorRecord(group_key(self.group_id), None)]

    def _store(self, decision: Decision, stored: StoredGroup, change: Callable[[], None] | None = None) -> None:
        """Write the group as it is to be, and change it once that is written."""

        def written() -> None:
            self.is_stored = True
            if change is not None:
                change()

        decision.record(group_key(self.group_id), encode_group(stored))
        decision.when_written(written)

    def _stored(self, members: Members, timestamp: int, assignments: Mapping[str, bytes]) -> StoredGroup:
        """This generation with these members and what they are assigned."""
        stored = [member.store(self.protocol_name, assignments[member.member_id]) for member in members.by_id.values()]
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=members.leader,
            state_timestamp=timestamp,
            members=tuple(stored),
        )

    def _move(self, event: ClassicEvent, timestamp: int) -> None:
        self.state = TRANSITIONS[self.state, event]
        self.state_timestamp = timestamp

    def resign(self, code: ErrorCode) -> list[Reply]:
        """Answer waiting members with NOT_COORDINATOR: this broker no longer coordinates the group."""
        decision = Decision(0)
        for member in self.members.by_id.values():
            decision.reply(self.members.set_join_token(member, None), join_refused(code, member.member_id))
            decision.reply(member.sync_token, sync_answer(code))
            member.sync_token = None
        return decision.replies

    # Joining

    def join(self, request: JoinRequest, now_ms: int) -> Decision:
        """A JoinGroup whose session timeout is within bounds."""
        decision = Decision(now_ms)
        code = self._refusal(request)
        if code is not ErrorCode.none:
            decision.reply(request.token, join_refused(code, request.member_id))
            if code is ErrorCode.group_max_size_reached:
                self._turn_away(request.member_id, decision)
            return decision
        if request.member_id:
            self._join_known(request, decision)
        elif request.instance_id is not None:
            self._join_static(request, request.instance_id, decision)
        else:
            self._join_dynamic(request, decision)
        if not self.is_stored and not decision.records:
            self._store(decision, StoredGroup.blank(self.state_timestamp))
        return decision

    def _refusal(self, request: JoinRequest) -> ErrorCode:
        if self.is_dead:
            return ErrorCode.coordinator_not_available
        if not self._has_room(request.member_id):
            return ErrorCode.group_max_size_reached
        if not self._supports(request):
            return ErrorCode.inconsistent_group_protocol
        return ErrorCode.none

    def _has_room(self, member_id: str) -> bool:
        """While members join, those who wait are counted, so that a group that grew too large loses its last."""
        limit = self._settings.max_size
        member = self.members.by_id.get(member_id)
        if self.state is ClassicState.EMPTY:
            return True
        if self.state is ClassicState.PREPARING_REBALANCE:
            return (member is not None and member.is_joining) or self.members.joining < limit
        return member is not None or len(self.members) < limit

    def _turn_away(self, member_id: str, decision: Decision) -> None:
        """Forget a member that there is no room for; the others may have waited only for it."""
        if member_id in self.members.by_id or member_id in self.members.pending:
            self._drop(member_id, decision)
            self._complete_if_all_joined(decision)

    def _supports(self, request: JoinRequest) -> bool:
        if self.is_empty:
            return bool(request.protocol_type) and bool(request.protocols)
        return self.protocol_type == request.protocol_type and self.members.supports_any(request.protocols)

    def _join_dynamic(self, request: JoinRequest, decision: Decision) -> None:
        member_id = f"{request.client_id}-{self._new_id()}"
        if not request.must_know_its_id:
            self._admit(request, member_id, decision)
            return
        self.members.pending.add(member_id)
        decision.wake(session_timer(member_id), request.session_timeout_ms)
        decision.reply(request.token, join_refused(ErrorCode.member_id_required, member_id))

    def _join_static(self, request: JoinRequest, instance_id: str, decision: Decision) -> None:
        member_id = f"{instance_id}-{self._new_id()}"
        known = self.members.static_id(instance_id)
        if known is None:
            self._admit(request, member_id, decision)
        else:
            self._replace(request, self.members.by_id[known], member_id, decision)

    def _join_known(self, request: JoinRequest, decision: Decision) -> None:
        member_id = request.member_id
        if member_id in self.members.pending and request.instance_id is None:
            self._admit(request, member_id, decision)
            return
        try:
            member = self.members.check(member_id, request.instance_id)
        except CodedError as error:
            decision.reply(request.token, join_refused(error.code, member_id))
            return
        unchanged = member.protocols == request.protocols and list(member.protocols) == list(request.protocols)
        leads_stable = self.state is ClassicState.STABLE and self.members.leader == member_id
        if self.state is ClassicState.PREPARING_REBALANCE or not unchanged or leads_stable:
            self._update(request, member, decision)
            self._rebalance_or_complete(decision)
        elif self.state in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
            # The answer was lost, or it asks again without need: it gets what it has.
            decision.reply(request.token, self._joined(member, self.members))
        else:
            decision.reply(request.token, join_refused(ErrorCode.unknown_member_id, member_id))

    def _admit(self, request: JoinRequest, member_id: str, decision: Decision) -> None:
        if not len(self.members):
            self.protocol_type = request.protocol_type
        self._delay_again = self.state is ClassicState.PREPARING_REBALANCE and self._is_initial
        self.members.add(
            ClassicMember(
                member_id=member_id,
                instance_id=request.instance_id,
                client_id=request.client_id,
                client_host=request.client_host,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                protocols=request.protocols,
                is_new=True,
                join_token=request.token,
            )
        )
        decision.wake(session_timer(member_id), NEW_MEMBER_TIMEOUT_MS)
        self._rebalance_or_complete(decision)

    def _update(self, request: JoinRequest, member: ClassicMember, decision: Decision) -> None:
        self.members.update(member, request.protocols, request.session_timeout_ms, request.rebalance_timeout_ms)
        before = self.members.set_join_token(member, request.token)
        decision.reply(before, join_refused(ErrorCode.rebalance_in_progress, member.member_id))

    def _replace(self, request: JoinRequest, member: ClassicMember, new_id: str, decision: Decision) -> None:
        """A static member returns: its former self is fenced, the new one takes its place."""
        fenced = ErrorCode.fenced_instance_id
        decision.reply(self.members.set_join_token(member, None), join_refused(fenced, member.member_id))
        decision.reply(member.sync_token, sync_answer(fenced))
        member.sync_token = None
        self._to_sync.discard(member.member_id)
        decision.cancel(session_timer(member.member_id))
        decision.wake(session_timer(new_id), request.session_timeout_ms)
        if self.state is ClassicState.STABLE:
            members = self.members.copy()
            members.replace(member, request, new_id)
            if members.select_protocol() == self.protocol_name:
                self._welcome_back(request, members, new_id, decision)
                return
            self.members = members
        else:
            self.members.replace(member, request, new_id)
        self.members.set_join_token(self.members.by_id[new_id], request.token)
        if self.state is ClassicState.PREPARING_REBALANCE:
            self._complete_if_all_joined(decision)
        else:
            # The leader may know the former id, so its assignments would miss the new one.
            self._prepare(decision)

    def _welcome_back(self, request: JoinRequest, members: Members, member_id: str, decision: Decision) -> None:
        """The generation goes on with the new member. Older clients have no field to skip the assignment: they
        are answered with the former leader, and follow."""
        answer = self._joined(members.by_id[member_id], members)
        if request.can_skip_assignment:
            answer["skip_assignment"] = members.leader == member_id
        else:
            answer |= {"leader": self.members.leader or "", "members": ()}
        decision.reply(request.token, answer)

        def replaced() -> None:
            self.members = members

        assignments = {member.member_id: member.assignment for member in members.by_id.values()}
        self._store(decision, self._stored(members, self.state_timestamp, assignments), replaced)

    def _joined(self, member: ClassicMember, members: Members) -> dict[str, Any]:
        leads = members.leader == member.member_id
        others = members.by_id.values() if leads else ()
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.none,
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol_name,
            "leader": members.leader or "",
            "skip_assignment": False,
            "member_id": member.member_id,
            "members": [
                {
                    "member_id": other.member_id,
                    "group_instance_id": other.instance_id,
                    "metadata": other.metadata(self.protocol_name),
                }
                for other in others
            ],
        }

    # From one generation to the next

    def rebalance(self, now_ms: int) -> Decision:
        """Have every member join again."""
        decision = Decision(now_ms)
        self._prepare(decision)
        return decision

    def _rebalance_or_complete(self, decision: Decision) -> None:
        if (self.state, ClassicEvent.MEMBERS_CHANGED) in TRANSITIONS:
            self._prepare(decision)
        else:
            self._complete_if_all_joined(decision)

    def _prepare(self, decision: Decision) -> None:
        if self.state is ClassicState.COMPLETING_REBALANCE:
            for member in self.members.by_id.values():
                member.assignment = b""
                self._end_sync(member, sync_answer(ErrorCode.rebalance_in_progress), decision)
        self._to_sync.clear()
        decision.cancel(SYNC_TIMER)
        self._is_initial = self.is_empty
        self._move(ClassicEvent.MEMBERS_CHANGED, self._wall_ms())
        if self._is_initial:
            delay = self._settings.initial_rebalance_delay_ms
            self._delay_again = False
            self._delay_left_ms = max(self.members.rebalance_timeout_ms - delay, 0)
            decision.wake(JOIN_TIMER, delay)
        elif self.members.all_joined:
            self._complete(decision)
        else:
            decision.wake(JOIN_TIMER, self.members.rebalance_timeout_ms)

    def _complete_if_all_joined(self, decision: Decision) -> None:
        if self.state is ClassicState.PREPARING_REBALANCE and not self._is_initial and self.members.all_joined:
            self._complete(decision)

    def _end_initial_delay(self, decision: Decision) -> None:
        if self._delay_again and self._delay_left_ms:
            self._delay_again = False
            delay = min(self._settings.initial_rebalance_delay_ms, self._delay_left_ms)
            self._delay_left_ms = max(self._delay_left_ms - delay, 0)
            decision.wake(JOIN_TIMER, delay)
        else:
            self._complete(decision)

    def _complete(self, decision: Decision) -> None:
        decision.cancel(JOIN_TIMER)
        late = [m.member_id for m in self.members.by_id.values() if not m.is_joining and m.instance_id is None]
        for member_id in late:
            self._drop(member_id, decision)
        if len(self.members) and not self.members.elect_joined_leader():
            decision.wake(JOIN_TIMER, max(self.members.rebalance_timeout_ms, _SHORTEST_WAIT_MS))
            return
        if not len(self.members):
            self._become_empty(decision)
            return
        self.generation += 1
        self._is_initial = False
        self._to_sync.clear()
        self.protocol_name = self.members.select_protocol()
        self._move(ClassicEvent.ALL_JOINED, self._wall_ms())
        for member in self.members.by_id.values():
            decision.reply(self.members.set_join_token(member, None), self._joined(member, self.members))
            decision.wake(session_timer(member.member_id), member.session_timeout_ms)
            member.is_new = False
            self._to_sync.add(member.member_id)
        decision.wake(SYNC_TIMER, self.members.rebalance_timeout_ms)

    def _become_empty(self, decision: Decision) -> None:
        generation, timestamp = self.generation + 1, self._wall_ms()
        stored = StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=generation,
            protocol=None,
            leader=self.members.leader,
            state_timestamp=timestamp,
        )

        def emptied() -> None:
            self.generation = generation
            self.protocol_name = None
            self._is_initial = False
            self._to_sync.clear()
            self._move(ClassicEvent.NONE_JOINED, timestamp)

        self._store(decision, stored, emptied)

    # Syncing

    def sync(self, request: SyncRequest, now_ms: int) -> Decision:
        """A SyncGroup: the leader's brings the assignments, the others' ask for theirs."""
        decision = Decision(now_ms)
        try:
            member = self._check_sync(request)
        except CodedError as error:
            decision.reply(request.token, sync_answer(error.code))
            return decision
        self._to_sync.discard(member.member_id)
        if not self._to_sync:
            decision.cancel(SYNC_TIMER)
        if self.state is ClassicState.STABLE:
            decision.reply(request.token, self._assigned(member.assignment))
            return decision
        decision.reply(member.sync_token, sync_answer(ErrorCode.rebalance_in_progress))
        member.sync_token = request.token
        if self.members.leader == member.member_id:
            self._assign(request, decision)
        return decision

    def _check_sync(self, request: SyncRequest) -> ClassicMember:
        if self.is_empty or self.is_dead:
            raise CodedError(ErrorCode.unknown_member_id)
        member = self.members.check(request.member_id, request.instance_id)
        if request.generation != self.generation:
            raise CodedError(ErrorCode.illegal_generation)
        if request.protocol_type not in (None, self.protocol_type) or (
            self.protocol_name is not None and request.protocol_name not in (None, self.protocol_name)
        ):
            raise CodedError(ErrorCode.inconsistent_group_protocol)
        if self.state is ClassicState.PREPARING_REBALANCE:
            raise CodedError(ErrorCode.rebalance_in_progress)
        return member

    def _assign(self, request: SyncRequest, decision: Decision) -> None:
        timestamp = self._wall_ms()
        assignments = {member_id: request.assignments.get(member_id, b"") for member_id in self.members.by_id}

        def assigned() -> None:
            for member_id, member in self.members.by_id.items():
                member.assignment = assignments[member_id]
            self._move(ClassicEvent.ASSIGNED, timestamp)

        self._store(decision, self._stored(self.members, timestamp, assignments), assigned)
        for member_id, member in self.members.by_id.items():
            self._end_sync(member, self._assigned(assignments[member_id]), decision)

    def _assigned(self, assignment: bytes) -> dict[str, Any]:
        return sync_answer(ErrorCode.none, assignment, self.protocol_type, self.protocol_name)

    def _end_sync(self, member: ClassicMember, answer: dict[str, Any], decision: Decision) -> None:
        if member.sync_token is not None:
            decision.reply(member.sync_token, answer)
            member.sync_token = None
            decision.wake(session_timer(member.member_id), member.session_timeout_ms)

    # Staying and leaving

    def classic_heartbeat(
        self, token: object, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> Decision:
        """A Heartbeat: the member lives, and learns whether it must join again."""
        decision = Decision(now_ms)
        try:
            member = self.members.check(member_id, instance_id)
            if generation != self.generation:
                raise CodedError(ErrorCode.illegal_generation)
        except CodedError as error:
            decision.reply(token, heartbeat_answer(error.code))
            return decision
        decision.wake(session_timer(member_id), member.session_timeout_ms)
        preparing = self.state is ClassicState.PREPARING_REBALANCE
        decision.reply(token, heartbeat_answer(ErrorCode.rebalance_in_progress if preparing else ErrorCode.none))
        return decision

    def leave(self, token: object, leaving: Sequence[LeavingMember], now_ms: int) -> Decision:
        """A LeaveGroup of one member or of many."""
        decision = Decision(now_ms)
        before = len(self.members)
        answers = [
            {
                "member_id": one.member_id,
                "group_instance_id": one.instance_id,
                "error_code": self._leave_one(one, decision),
            }
            for one in leaving
        ]
        if len(self.members) < before:
            self._rebalance_or_complete(decision)
        else:
            self._complete_if_all_joined(decision)
        decision.reply(token, {"throttle_time": 0, "error_code": ErrorCode.none, "members": answers})
        return decision

    def _leave_one(self, leaving: LeavingMember, decision: Decision) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id and leaving.instance_id is not None:
            member_id = self.members.static_id(leaving.instance_id) or ""
        if member_id not in self.members.pending:
            try:
                self.members.check(member_id, leaving.instance_id)
            except CodedError as error:
                return error.code
        self._drop(member_id, decision)
        return ErrorCode.none

    def _drop(self, member_id: str, decision: Decision) -> None:
        member = self.members.by_id.get(member_id)
        if member is not None:
            unknown = ErrorCode.unknown_member_id
            decision.reply(self.members.set_join_token(member, None), join_refused(unknown))
            decision.reply(member.sync_token, sync_answer(unknown))
            member.sync_token = None
        self.members.remove(member_id)
        self._to_sync.discard(member_id)
        decision.cancel(session_timer(member_id))

    # Timers

    def on_loaded(self, now_ms: int) -> Decision:
        """Every member gets a session timeout to show that it is still there."""
        decision = Decision(now_ms)
        for member in self.members.by_id.values():
            decision.wake(session_timer(member.member_id), member.session_timeout_ms)
        if len(self.members) > self._settings.max_size:
            self._prepare(decision)
        return decision

    def on_timer(self, name: Hashable, now_ms: int) -> Decision:
        """A timer expires: for a silent member, for those who did not join, or for those who did not sync."""
        decision = Decision(now_ms)
        if name == JOIN_TIMER:
            if self.state is ClassicState.PREPARING_REBALANCE and self._is_initial:
                self._end_initial_delay(decision)
            elif self.state is ClassicState.PREPARING_REBALANCE:
                self._complete(decision)
        elif name == SYNC_TIMER:
            self._expire_syncs(decision)
        elif isinstance(name, tuple):
            self._expire_session(name[1], decision)
        return decision

    def _expire_syncs(self, decision: Decision) -> None:
        if self._to_sync and self.state in (ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE):
            for member_id in list(self._to_sync):
                self._drop(member_id, decision)
            self._prepare(decision)

    def _expire_session(self, member_id: str, decision: Decision) -> None:
        member = self.members.by_id.get(member_id)
        if member is None and member_id not in self.members.pending:
            return
        if member is not None and member.is_excused:
            return
        self._drop(member_id, decision)
        if self.state is ClassicState.PREPARING_REBALANCE:
            if self.members.all_joined:
                self._complete(decision)
        elif member is not None:
            self._prepare(decision)

    # Queries

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, *, transactional: bool = False
    ) -> Decision:
        """Whether this member may commit offsets now (`CodedError` if not). A commit also counts as a heartbeat."""
        decision = Decision(now_ms)
        if generation < 0 and self.is_empty:
            return decision
        member: ClassicMember | None = None
        if generation >= 0 or member_id or instance_id is not None:
            member = self.members.check(member_id, instance_id)
            if generation != self.generation:
                raise CodedError(ErrorCode.illegal_generation)
        elif not transactional and not self.is_empty:
            raise CodedError(ErrorCode.unknown_member_id)
        if not transactional and self.state is ClassicState.COMPLETING_REBALANCE:
            raise CodedError(ErrorCode.rebalance_in_progress)
        if member is not None and not transactional:
            decision.wake(session_timer(member_id), member.session_timeout_ms)
        return decision

    def check_offset_delete(self) -> None:
        """Offsets of a group with members can be deleted only where it is known what the members read."""
        if not self.is_empty and self.protocol_type != CONSUMER:
            raise CodedError(ErrorCode.non_empty_group)

    def subscribed_topics(self) -> Container[str]:
        """The topics that members are subscribed to; all, where a subscription cannot be read."""
        return self.members.subscribed_topics(self.protocol_name) if self.protocol_type == CONSUMER else ()

    def offsets_idle_since(self, commit_timestamp: int) -> int | None:
        """Since when an offset is of no use, for its expiry; None while it is."""
        if self.protocol_type is None:
            return commit_timestamp
        if self.is_empty:
            # Later than Kafka where a consumer without membership goes on to commit: its offsets are in use.
            return max(commit_timestamp, self.state_timestamp)
        if self.protocol_type != CONSUMER or self.state is not ClassicState.STABLE:
            return None
        return None if self.subscribed_topics() is EVERY_TOPIC else commit_timestamp

    def describe(self) -> dict[str, Any]:
        """The group in the words of DescribeGroups; what members are assigned is known only of a stable one."""
        is_stable = self.state is ClassicState.STABLE
        return {
            "error_code": ErrorCode.none,
            "group_id": self.group_id,
            "group_state": self.state.value,
            "protocol_type": self.protocol_type or "",
            "protocol_data": (self.protocol_name or "") if is_stable else "",
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "member_metadata": member.metadata(self.protocol_name) if is_stable else b"",
                    "member_assignment": member.assignment if is_stable else b"",
                }
                for member in self.members.by_id.values()
            ],
        }


def _make(group_id: str, environment: GroupEnvironment) -> ClassicGroup:
    return ClassicGroup(group_id, environment.settings.classic, wall_ms=environment.wall_ms, new_id=environment.new_id)


CLASSIC: Final = GroupKind(type=GroupType.CLASSIC, records=frozenset({CLASSIC_KEY}), make=_make)
