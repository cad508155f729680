"""What a classic group is between events: its state, its generation, its record; and the questions asked of it."""

from collections.abc import Callable, Container
from typing import Any, Final

from headrace.coordinator.effects import Effect, Reply, Write
from headrace.coordinator.group import GroupType
from headrace.coordinator.records import StoredGroup, decode_group, encode_group, group_key
from headrace.protocol.errors import CodedError, ErrorCode

from .member import Member
from .roster import Roster
from .settings import ClassicSettings
from .states import TRANSITIONS, Event, State
from .subscription import CONSUMER, subscribed_topics
from .turn import Turn, join_refused, session_alarm, sync_answer


class _Everything:
    """Holds every topic."""

    def __contains__(self, topic: object) -> bool:
        return True


_EVERYTHING: Final = _Everything()


class ClassicBase:
    """State and questions. `wall_ms` is the time of day, for what is stored; `new_id` makes ids that nobody has."""

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
        self.roster = Roster()
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
        return not self.is_stored and self.is_empty and not self.roster.pending

    # Persistence

    def replay(self, key: bytes, value: bytes | None) -> None:  # noqa: ARG002 - a classic group has one record
        """Become what a record of the log says."""
        self.roster = Roster()
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
        self.roster.leader = stored.leader
        for member in stored.members:
            self.roster.add(Member.restored(member, stored.protocol))

    def tombstones(self) -> list[Write]:
        """What takes the group's records out of the log."""
        return [Write(group_key(self.group_id), None)]

    def _store(self, turn: Turn) -> None:
        stored = StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.roster.leader,
            state_timestamp=self.state_timestamp,
            members=tuple([member.store(self.protocol_name) for member in self.roster.members.values()]),
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
        for member in self.roster.members.values():
            turn.reply(self.roster.set_join_token(member, None), join_refused(code, member.member_id))
            turn.reply(member.sync_token, sync_answer(code))
            member.sync_token = None
        return [effect for effect in turn.effects if isinstance(effect, Reply)]

    # Questions

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int, *, transactional: bool = False
    ) -> list[Effect]:
        """Whether this member may commit offsets now (`CodedError` if not). A commit also counts as a heartbeat."""
        if generation < 0 and self.is_empty:
            return []
        member: Member | None = None
        if generation >= 0 or member_id or instance_id is not None:
            member = self.roster.check(member_id, instance_id)
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
        told = {member.metadata(self.protocol_name) for member in self.roster.members.values()}
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
                for member in self.roster.members.values()
            ],
        }
