"""The classic group protocol as a pure state machine: requests and alarms in, effects out. Kafka's rules throughout.

A rebalance, seen from the group:

1.  Something changes (`MEMBERS_CHANGED`). Heartbeats now answer REBALANCE_IN_PROGRESS, so that members join again.
2.  A JoinGroup waits until every member has joined, or the longest rebalance timeout of them has passed; dynamic
    members that have not joined by then are out. The first rebalance of an empty group also waits a little
    (`group.initial.rebalance.delay.ms`) for members that start at the same time.
3.  A new generation begins (`ALL_JOINED`). Everyone is told the protocol and the leader; the leader is told everyone.
4.  The leader's SyncGroup brings the assignments (`ASSIGNED`). They are written to the log before anyone hears of them.
    Members that never sync are out after the rebalance timeout.

A member is known by its id, and a static one also by its instance id: when an instance returns with no member id it
takes over the place, the assignment and the leadership of its former self, without a rebalance unless the chosen
protocol would change, and its former self is fenced.

A request that waits is answered exactly once, whatever becomes of its member.
"""

from collections.abc import Callable, Container, Hashable, Sequence
from typing import Any, Final

from headrace.coordinator.groups.group import GroupType
from headrace.coordinator.groups.settings import NEW_MEMBER_TIMEOUT_MS, ClassicSettings
from headrace.coordinator.runtime.decision import Effect, Reply, Write
from headrace.protocol.consumer_protocol import CONSUMER, NotConsumerProtocol, parse_topics
from headrace.protocol.errors import CodedError, ErrorCode

from .member import JoinRequest, LeavingMember, Member, SyncRequest
from .members import Members
from .records import StoredGroup, decode_group, encode_group, group_key
from .states import TRANSITIONS, Event, State
from .turn import JOIN_ALARM, SYNC_ALARM, Turn, heartbeat_answer, join_refused, session_alarm, sync_answer

_SHORTEST_WAIT_MS: Final = 1_000
"""Between two looks whether a static member is back, where members gave no time to join in."""


class _Everything:
    """Holds every topic."""

    def __contains__(self, topic: object) -> bool:
        return True


_EVERYTHING: Final = _Everything()


class ClassicGroup:
    """One group of the classic protocol. `wall_ms` is the time of day, for what is stored."""

    type = GroupType.CLASSIC
    successor = None

    def __init__(
        self, group_id: str, settings: ClassicSettings, *, wall_ms: Callable[[], int], new_id: Callable[[], str]
    ) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
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
        self._subscribed: tuple[int, Container[str]] | None = None

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def is_dead(self) -> bool:
        return self.state is State.DEAD

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_blank(self) -> bool:
        """Nothing is known of it: no record, no member, not even one to come."""
        return not self.is_stored and self.is_empty and not self.members.pending

    # Persistence

    def replay(self, key: bytes, value: bytes | None) -> None:  # noqa: ARG002 - a classic group has one record
        """Become what a record of the log says."""
        self.members = Members()
        if value is None:
            self.state = State.DEAD
            return
        stored = decode_group(value)
        self.is_stored = True
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.protocol_name = stored.protocol
        self.state_timestamp = stored.state_timestamp
        self.state = State.STABLE if stored.members else State.EMPTY
        self.members.leader = stored.leader
        for member in stored.members:
            self.members.add(Member.restored(member, stored.protocol))

    def tombstones(self) -> list[Write]:
        """What takes the group's records out of the log."""
        return [Write(group_key(self.group_id), None)]

    def _store(self, turn: Turn) -> None:
        stored = StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.members.leader,
            state_timestamp=self.state_timestamp,
            members=tuple([member.store(self.protocol_name) for member in self.members.by_id.values()]),
        )
        self.is_stored = True
        turn.write(group_key(self.group_id), encode_group(stored))

    def _store_blank(self, turn: Turn) -> None:
        blank = StoredGroup(
            protocol_type="", generation=0, protocol=None, leader=None, state_timestamp=self.state_timestamp
        )
        self.is_stored = True
        turn.write(group_key(self.group_id), encode_group(blank))

    def _move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]
        self.state_timestamp = self._wall_ms()

    def resign(self, code: ErrorCode) -> list[Reply]:
        """Answer everyone who waits: this broker no longer speaks for the group."""
        turn = Turn(0)
        for member in self.members.by_id.values():
            turn.reply(self.members.set_join_token(member, None), join_refused(code, member.member_id))
            turn.reply(member.sync_token, sync_answer(code))
            member.sync_token = None
        return [effect for effect in turn.effects if isinstance(effect, Reply)]

    # Joining

    def join(self, request: JoinRequest, now_ms: int) -> list[Effect]:
        """A JoinGroup whose session timeout is within bounds."""
        turn = Turn(now_ms)
        was_stored = self.is_stored
        code = self._refusal(request)
        if code is not ErrorCode.none:
            turn.reply(request.token, join_refused(code, request.member_id))
            if code is ErrorCode.group_max_size_reached:
                self._turn_away(request.member_id, turn)
            return turn.effects
        if request.member_id:
            self._join_known(request, turn)
        elif request.instance_id is not None:
            self._join_static(request, request.instance_id, turn)
        else:
            self._join_dynamic(request, turn)
        if not was_stored and not self.is_stored:
            self._store_blank(turn)
        return turn.effects

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
        if self.state is State.EMPTY:
            return True
        if self.state is State.PREPARING_REBALANCE:
            return (member is not None and member.is_joining) or self.members.joining < limit
        return member is not None or len(self.members) < limit

    def _turn_away(self, member_id: str, turn: Turn) -> None:
        """One for whom there is no room is forgotten; the others may have waited only for it."""
        if member_id in self.members.by_id or member_id in self.members.pending:
            self._drop(member_id, turn)
            self._complete_if_all_joined(turn)

    def _supports(self, request: JoinRequest) -> bool:
        if self.is_empty:
            return bool(request.protocol_type) and bool(request.protocols)
        return self.protocol_type == request.protocol_type and self.members.supports_any(request.protocols)

    def _join_dynamic(self, request: JoinRequest, turn: Turn) -> None:
        member_id = f"{request.client_id}-{self._new_id()}"
        if not request.must_know_its_id:
            self._admit(request, member_id, turn)
            return
        self.members.pending.add(member_id)
        turn.wake(session_alarm(member_id), request.session_timeout_ms)
        turn.reply(request.token, join_refused(ErrorCode.member_id_required, member_id))

    def _join_static(self, request: JoinRequest, instance_id: str, turn: Turn) -> None:
        member_id = f"{instance_id}-{self._new_id()}"
        known = self.members.static_id(instance_id)
        if known is None:
            self._admit(request, member_id, turn)
        else:
            self._replace(request, self.members.by_id[known], member_id, turn)

    def _join_known(self, request: JoinRequest, turn: Turn) -> None:
        member_id = request.member_id
        if member_id in self.members.pending and request.instance_id is None:
            self._admit(request, member_id, turn)
            return
        try:
            member = self.members.check(member_id, request.instance_id)
        except CodedError as error:
            turn.reply(request.token, join_refused(error.code, member_id))
            return
        unchanged = member.protocols == request.protocols and list(member.protocols) == list(request.protocols)
        leads_stable = self.state is State.STABLE and self.members.leader == member_id
        if self.state is State.PREPARING_REBALANCE or not unchanged or leads_stable:
            self._update(request, member, turn)
            self._rebalance_or_complete(turn)
        elif self.state in (State.COMPLETING_REBALANCE, State.STABLE):
            # It did not hear our answer, or asks again without need: it gets what it has.
            turn.reply(request.token, self._joined(member))
        else:
            turn.reply(request.token, join_refused(ErrorCode.unknown_member_id, member_id))

    def _admit(self, request: JoinRequest, member_id: str, turn: Turn) -> None:
        if not len(self.members):
            self.protocol_type = request.protocol_type
        self._delay_again = self.state is State.PREPARING_REBALANCE and self._is_initial
        self.members.add(
            Member(
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
        turn.wake(session_alarm(member_id), NEW_MEMBER_TIMEOUT_MS)
        self._rebalance_or_complete(turn)

    def _update(self, request: JoinRequest, member: Member, turn: Turn) -> None:
        self.members.update(member, request.protocols, request.session_timeout_ms, request.rebalance_timeout_ms)
        before = self.members.set_join_token(member, request.token)
        turn.reply(before, join_refused(ErrorCode.rebalance_in_progress, member.member_id))

    def _replace(self, request: JoinRequest, member: Member, new_id: str, turn: Turn) -> None:
        """A static member returns: its former self is fenced, the new one takes its place."""
        former_id, former_leader = member.member_id, self.members.leader
        fenced = ErrorCode.fenced_instance_id
        turn.reply(self.members.set_join_token(member, None), join_refused(fenced, former_id))
        turn.reply(member.sync_token, sync_answer(fenced))
        member.sync_token = None
        self._to_sync.discard(former_id)
        self.members.rename(member, new_id)
        turn.forget(session_alarm(former_id))
        self._update(request, member, turn)
        turn.wake(session_alarm(new_id), member.session_timeout_ms)
        if self.state is State.STABLE and self.members.select_protocol() == self.protocol_name:
            self._store(turn)
            self._welcome_back(request, member, former_leader, turn)
        elif self.state is State.PREPARING_REBALANCE:
            self._complete_if_all_joined(turn)
        else:
            # The leader may have been told the former id, so its assignments would miss the new one.
            self._prepare(turn)

    def _welcome_back(self, request: JoinRequest, member: Member, former_leader: str | None, turn: Turn) -> None:
        """Older clients cannot be told to skip the assignment: those are told of the former leader, and follow."""
        leads = self.members.leader == member.member_id
        answer = self._joined(member)
        if request.can_skip_assignment:
            answer["skip_assignment"] = leads
        else:
            answer |= {"leader": former_leader or "", "members": ()}
        turn.reply(self.members.set_join_token(member, None), answer)

    def _joined(self, member: Member) -> dict[str, Any]:
        leads = self.members.leader == member.member_id
        others = self.members.by_id.values() if leads else ()
        return {
            "throttle_time": 0,
            "error_code": ErrorCode.none,
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol_name,
            "leader": self.members.leader or "",
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

    def rebalance(self, now_ms: int) -> list[Effect]:
        """Have every member join again."""
        turn = Turn(now_ms)
        self._prepare(turn)
        return turn.effects

    def _rebalance_or_complete(self, turn: Turn) -> None:
        if (self.state, Event.MEMBERS_CHANGED) in TRANSITIONS:
            self._prepare(turn)
        else:
            self._complete_if_all_joined(turn)

    def _prepare(self, turn: Turn) -> None:
        if self.state is State.COMPLETING_REBALANCE:
            for member in self.members.by_id.values():
                member.assignment = b""
                self._end_sync(member, sync_answer(ErrorCode.rebalance_in_progress), turn)
        self._to_sync.clear()
        turn.forget(SYNC_ALARM)
        self._is_initial = self.is_empty
        self._move(Event.MEMBERS_CHANGED)
        if self._is_initial:
            delay = self._settings.initial_rebalance_delay_ms
            self._delay_again = False
            self._delay_left_ms = max(self.members.rebalance_timeout_ms - delay, 0)
            turn.wake(JOIN_ALARM, delay)
        elif self.members.all_joined:
            self._complete(turn)
        else:
            turn.wake(JOIN_ALARM, self.members.rebalance_timeout_ms)

    def _complete_if_all_joined(self, turn: Turn) -> None:
        if self.state is State.PREPARING_REBALANCE and not self._is_initial and self.members.all_joined:
            self._complete(turn)

    def _end_initial_delay(self, turn: Turn) -> None:
        if self._delay_again and self._delay_left_ms:
            self._delay_again = False
            delay = min(self._settings.initial_rebalance_delay_ms, self._delay_left_ms)
            self._delay_left_ms = max(self._delay_left_ms - delay, 0)
            turn.wake(JOIN_ALARM, delay)
        else:
            self._complete(turn)

    def _complete(self, turn: Turn) -> None:
        turn.forget(JOIN_ALARM)
        late = [m.member_id for m in self.members.by_id.values() if not m.is_joining and m.instance_id is None]
        for member_id in late:
            self._drop(member_id, turn)
        if len(self.members) and not self.members.elect_joined_leader():
            turn.wake(JOIN_ALARM, max(self.members.rebalance_timeout_ms, _SHORTEST_WAIT_MS))
            return
        self.generation += 1
        self._is_initial = False
        self._to_sync.clear()
        if not len(self.members):
            self.protocol_name = None
            self._move(Event.NONE_JOINED)
            self._store(turn)
            return
        self.protocol_name = self.members.select_protocol()
        self._move(Event.ALL_JOINED)
        for member in self.members.by_id.values():
            turn.reply(self.members.set_join_token(member, None), self._joined(member))
            turn.wake(session_alarm(member.member_id), member.session_timeout_ms)
            member.is_new = False
            self._to_sync.add(member.member_id)
        turn.wake(SYNC_ALARM, self.members.rebalance_timeout_ms)

    # Syncing

    def sync(self, request: SyncRequest, now_ms: int) -> list[Effect]:
        """A SyncGroup: the leader's brings the assignments, the others' ask for theirs."""
        turn = Turn(now_ms)
        try:
            member = self._check_sync(request)
        except CodedError as error:
            turn.reply(request.token, sync_answer(error.code))
            return turn.effects
        self._to_sync.discard(member.member_id)
        if not self._to_sync:
            turn.forget(SYNC_ALARM)
        if self.state is State.STABLE:
            turn.reply(request.token, self._assigned(member))
            return turn.effects
        turn.reply(member.sync_token, sync_answer(ErrorCode.rebalance_in_progress))
        member.sync_token = request.token
        if self.members.leader == member.member_id:
            self._assign(request, turn)
        return turn.effects

    def _check_sync(self, request: SyncRequest) -> Member:
        if self.is_empty or self.is_dead:
            raise CodedError(ErrorCode.unknown_member_id)
        member = self.members.check(request.member_id, request.instance_id)
        if request.generation != self.generation:
            raise CodedError(ErrorCode.illegal_generation)
        if request.protocol_type not in (None, self.protocol_type) or (
            self.protocol_name is not None and request.protocol_name not in (None, self.protocol_name)
        ):
            raise CodedError(ErrorCode.inconsistent_group_protocol)
        if self.state is State.PREPARING_REBALANCE:
            raise CodedError(ErrorCode.rebalance_in_progress)
        return member

    def _assign(self, request: SyncRequest, turn: Turn) -> None:
        for member in self.members.by_id.values():
            member.assignment = request.assignments.get(member.member_id, b"")
        self._move(Event.ASSIGNED)
        self._store(turn)
        for member in self.members.by_id.values():
            self._end_sync(member, self._assigned(member), turn)

    def _assigned(self, member: Member) -> dict[str, Any]:
        return sync_answer(ErrorCode.none, member.assignment, self.protocol_type, self.protocol_name)

    def _end_sync(self, member: Member, answer: dict[str, Any], turn: Turn) -> None:
        if member.sync_token is not None:
            turn.reply(member.sync_token, answer)
            member.sync_token = None
            turn.wake(session_alarm(member.member_id), member.session_timeout_ms)

    # Staying and leaving

    def heartbeat(
        self, token: object, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> list[Effect]:
        """A Heartbeat: the member lives, and learns whether it must join again."""
        turn = Turn(now_ms)
        try:
            member = self.members.check(member_id, instance_id)
            if generation != self.generation:
                raise CodedError(ErrorCode.illegal_generation)
        except CodedError as error:
            turn.reply(token, heartbeat_answer(error.code))
            return turn.effects
        turn.wake(session_alarm(member_id), member.session_timeout_ms)
        preparing = self.state is State.PREPARING_REBALANCE
        turn.reply(token, heartbeat_answer(ErrorCode.rebalance_in_progress if preparing else ErrorCode.none))
        return turn.effects

    def leave(self, token: object, leaving: Sequence[LeavingMember], now_ms: int) -> list[Effect]:
        """A LeaveGroup of one member or of many."""
        turn = Turn(now_ms)
        before = len(self.members)
        answers = [
            {
                "member_id": one.member_id,
                "group_instance_id": one.instance_id,
                "error_code": self._leave_one(one, turn),
            }
            for one in leaving
        ]
        if len(self.members) < before:
            self._rebalance_or_complete(turn)
        else:
            self._complete_if_all_joined(turn)
        turn.reply(token, {"throttle_time": 0, "error_code": ErrorCode.none, "members": answers})
        return turn.effects

    def _leave_one(self, leaving: LeavingMember, turn: Turn) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id and leaving.instance_id is not None:
            member_id = self.members.static_id(leaving.instance_id) or ""
        if member_id not in self.members.pending:
            try:
                self.members.check(member_id, leaving.instance_id)
            except CodedError as error:
                return error.code
        self._drop(member_id, turn)
        return ErrorCode.none

    def _drop(self, member_id: str, turn: Turn) -> None:
        member = self.members.by_id.get(member_id)
        if member is not None:
            unknown = ErrorCode.unknown_member_id
            turn.reply(self.members.set_join_token(member, None), join_refused(unknown))
            turn.reply(member.sync_token, sync_answer(unknown))
            member.sync_token = None
        self.members.remove(member_id)
        self._to_sync.discard(member_id)
        turn.forget(session_alarm(member_id))

    # Alarms

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """Every member gets a session timeout to show that it is still there."""
        turn = Turn(now_ms)
        for member in self.members.by_id.values():
            turn.wake(session_alarm(member.member_id), member.session_timeout_ms)
        if len(self.members) > self._settings.max_size:
            self._prepare(turn)
        return turn.effects

    def on_alarm(self, name: Hashable, now_ms: int) -> list[Effect]:
        """An alarm rings: for a silent member, for those who did not join, or for those who did not sync."""
        turn = Turn(now_ms)
        if name == JOIN_ALARM:
            if self.state is State.PREPARING_REBALANCE and self._is_initial:
                self._end_initial_delay(turn)
            elif self.state is State.PREPARING_REBALANCE:
                self._complete(turn)
        elif name == SYNC_ALARM:
            self._expire_syncs(turn)
        elif isinstance(name, tuple):
            self._expire_session(name[1], turn)
        return turn.effects

    def _expire_syncs(self, turn: Turn) -> None:
        if self._to_sync and self.state in (State.COMPLETING_REBALANCE, State.STABLE):
            for member_id in list(self._to_sync):
                self._drop(member_id, turn)
            self._prepare(turn)

    def _expire_session(self, member_id: str, turn: Turn) -> None:
        member = self.members.by_id.get(member_id)
        if member is None and member_id not in self.members.pending:
            return
        if member is not None and member.is_excused:
            return
        self._drop(member_id, turn)
        if self.state is State.PREPARING_REBALANCE:
            if self.members.all_joined:
                self._complete(turn)
        elif member is not None:
            self._prepare(turn)

    # Queries

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, *, transactional: bool = False
    ) -> list[Effect]:
        """Whether this member may commit offsets now (`CodedError` if not). A commit also counts as a heartbeat."""
        if generation < 0 and self.is_empty:
            return []
        member: Member | None = None
        if generation >= 0 or member_id or instance_id is not None:
            member = self.members.check(member_id, instance_id)
            if generation != self.generation:
                raise CodedError(ErrorCode.illegal_generation)
        elif not transactional and not self.is_empty:
            raise CodedError(ErrorCode.unknown_member_id)
        if not transactional and self.state is State.COMPLETING_REBALANCE:
            raise CodedError(ErrorCode.rebalance_in_progress)
        turn = Turn(now_ms)
        if member is not None and not transactional:
            turn.wake(session_alarm(member_id), member.session_timeout_ms)
        return turn.effects

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Anyone may read a classic group's offsets."""

    def check_offset_delete(self) -> None:
        """Offsets of a group with members can be deleted only if we can tell what the members read."""
        if not self.is_empty and self.protocol_type != CONSUMER:
            raise CodedError(ErrorCode.non_empty_group)

    def check_delete(self) -> None:
        if not self.is_empty:
            raise CodedError(ErrorCode.non_empty_group)

    def subscribed_topics(self) -> Container[str]:
        """The topics that members read; all, where consumers cannot tell us."""
        if self.protocol_type != CONSUMER:
            return ()
        if self._subscribed is not None and self._subscribed[0] == self.generation:
            return self._subscribed[1]
        told = {member.metadata(self.protocol_name) for member in self.members.by_id.values()}
        topics = [subscribed_topics(metadata) for metadata in told]
        known = [each for each in topics if each is not None]
        found: Container[str] = set[str]().union(*known) if len(known) == len(topics) else _EVERYTHING
        if self.state in (State.COMPLETING_REBALANCE, State.STABLE):
            self._subscribed = (self.generation, found)
        return found

    def offsets_idle_since(self, commit_timestamp: int) -> int | None:
        """Since when an offset is of no use, for its expiry; None while it is."""
        if self.protocol_type is None:
            return commit_timestamp
        if self.is_empty:
            # Later than Kafka where a consumer without membership goes on to commit: its offsets are in use.
            return max(commit_timestamp, self.state_timestamp)
        if self.protocol_type != CONSUMER or self.state is not State.STABLE:
            return None
        return None if self.subscribed_topics() is _EVERYTHING else commit_timestamp

    def describe(self) -> dict[str, Any]:
        """The group in the words of DescribeGroups; what members are assigned is known only of a stable one."""
        is_stable = self.state is State.STABLE
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


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of a consumer's subscription, any version; None when it is not one."""
    try:
        return parse_topics(metadata)
    except NotConsumerProtocol:
        return None
