"""The classic group against everything that can happen to it, in any order."""

import itertools
import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.coordinator.groups.classic import (
    ClassicGroup,
    ClassicSettings,
    ClassicState,
    JoinRequest,
    LeavingMember,
    SyncRequest,
)
from headrace.coordinator.groups.classic.records import decode_group
from headrace.coordinator.runtime.decision import Decision, Reply
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.testing.clock import SimulatedClock

PARTITIONS = 12
SESSION_MS = 10_000
REBALANCE_MS = 30_000
SETTINGS = ClassicSettings(initial_rebalance_delay_ms=3_000, max_size=5)
INSTANCES = ("alpha", "beta")
COMMIT_REFUSALS = (
    ErrorCode.unknown_member_id,
    ErrorCode.illegal_generation,
    ErrorCode.fenced_instance_id,
    ErrorCode.rebalance_in_progress,
)


@dataclass(eq=False)
class Client:
    """A consumer as its own process sees itself."""

    instance_id: str | None
    asks_for_id: bool
    skips: bool
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    members: tuple[str, ...] = ()
    assignment: frozenset[int] = frozenset()
    waits_for: str | None = None
    next_step: str = "join"
    """What its library would do next, were it left to itself."""
    protocols: Mapping[str, bytes] = field(default_factory=lambda: {"range": b"v1"})


class ClassicGroupMachine(RuleBasedStateMachine):
    """Lets the group's decisions take effect at once, and checks after each step what must always hold."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SimulatedClock()
        self.numbers = itertools.count(1)
        self.group = self._new_group()
        self.stored: bytes | None = None
        self.timers: dict[Hashable, int] = {}
        self.waiting: dict[int, tuple[Client, Callable[[Client, Mapping[str, Any]], None]]] = {}
        self.answered: set[int] = set()
        self.clients: list[Client] = []
        self.highest_generation = 0
        self.assigned: dict[int, dict[str, bytes]] = {}
        """What each generation was assigned, as its members heard it."""

    def _new_group(self) -> ClassicGroup:
        return ClassicGroup("g", SETTINGS, wall_ms=self.clock.now_ms, new_id=lambda: str(next(self.numbers)))

    def _now(self) -> int:
        return int(self.clock.monotonic() * 1000)

    def _carry_out(self, decision: Decision) -> None:
        assert self.group.is_stored is (self.stored is not None), "nothing is changed before its record is written"
        for _, value in decision.records:
            self.stored = value
        decision.take_effect()
        for name, at_ms in decision.timers:
            if at_ms is None:
                self.timers.pop(name, None)
            else:
                assert at_ms >= self._now()
                self.timers[name] = at_ms
        for reply in decision.replies:
            self._answer(reply)

    def _answer(self, reply: Reply) -> None:
        assert isinstance(reply.token, int)
        assert reply.token not in self.answered, "a request was answered twice"
        self.answered.add(reply.token)
        client, heard = self.waiting.pop(reply.token)
        client.waits_for = None
        heard(client, reply.values)

    def _ask(self, client: Client, kind: str, heard: Callable[[Client, Mapping[str, Any]], None]) -> int:
        token = next(self.numbers)
        client.waits_for = kind
        self.waiting[token] = (client, heard)
        return token

    def _join(self, client: Client) -> None:
        request = JoinRequest(
            token=self._ask(client, "join", self._joined),
            member_id=client.member_id,
            instance_id=client.instance_id,
            client_id="c",
            client_host="/h",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=client.protocols,
            must_know_its_id=client.asks_for_id,
            can_skip_assignment=client.skips,
        )
        self._carry_out(self.group.join(request, self._now()))

    def _joined(self, client: Client, values: Mapping[str, Any]) -> None:
        code = values["error_code"]
        if code is ErrorCode.member_id_required:
            client.member_id = values["member_id"]
        elif code is ErrorCode.none:
            client.member_id = values["member_id"]
            client.generation = values["generation_id"]
            client.leads = values["leader"] == client.member_id and not values["skip_assignment"]
            client.members = tuple(member["member_id"] for member in values["members"])
            client.assignment = frozenset()
            client.next_step = "sync"
        else:
            self._forget(client, code)

    def _forget(self, client: Client, code: ErrorCode) -> None:
        client.generation = -1
        client.assignment = frozenset()
        client.next_step = "join"
        if code in (ErrorCode.unknown_member_id, ErrorCode.group_max_size_reached):
            client.member_id = ""
        elif code is ErrorCode.fenced_instance_id and client in self.clients:
            self.clients.remove(client)

    def _synced(self, client: Client, values: Mapping[str, Any]) -> None:
        if values["error_code"] is not ErrorCode.none:
            self._forget(client, values["error_code"])
            return
        known = self.assigned.setdefault(client.generation, {})
        assert known.get(client.member_id, values["assignment"]) == values["assignment"]
        known[client.member_id] = values["assignment"]
        client.assignment = frozenset(json.loads(values["assignment"] or b"[]"))
        client.next_step = "heartbeat"

    @initialize(dynamic=st.integers(0, 3), static=st.booleans(), turns=st.integers(0, 8))
    def begin(self, dynamic: int, static: bool, turns: int) -> None:
        """Some members to begin with, so that most runs see a group at work."""
        for _ in range(dynamic):
            self.a_dynamic_member_comes(asks_for_id=True)
        if static:
            self.a_static_member_comes(INSTANCES[0], skips=True)
        for _ in range(turns):
            self.everyone_goes_on(turns=1)

    @rule(asks_for_id=st.booleans())
    def a_dynamic_member_comes(self, asks_for_id: bool) -> None:
        client = Client(instance_id=None, asks_for_id=asks_for_id, skips=True)
        self.clients.append(client)
        self._join(client)

    @rule(instance_id=st.sampled_from(INSTANCES), skips=st.booleans())
    def a_static_member_comes(self, instance_id: str, skips: bool) -> None:
        client = Client(instance_id=instance_id, asks_for_id=True, skips=skips)
        self.clients.append(client)
        self._join(client)

    def _idle(self) -> list[Client]:
        return [client for client in self.clients if client.waits_for is None]

    @precondition(lambda self: self._idle())
    @rule(data=st.data(), changed=st.booleans())
    def a_member_joins_again(self, data: st.DataObject, changed: bool) -> None:
        client = data.draw(st.sampled_from(self._idle()))
        if changed:
            client.protocols = {"range": b"v2", "sticky": b"v2"}
        self._join(client)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def a_waiting_member_reconnects_and_joins_again(self, data: st.DataObject) -> None:
        waiting = [client for client in self.clients if client.waits_for == "join" and client.member_id]
        if waiting:
            client = data.draw(st.sampled_from(waiting))
            for token in [token for token, (other, _) in self.waiting.items() if other is client]:
                self.waiting[token] = (Client(None, True, True), lambda _client, _values: None)
            self._join(client)

    @precondition(lambda self: self._idle())
    @rule(data=st.data())
    def a_member_syncs(self, data: st.DataObject) -> None:
        self._sync(data.draw(st.sampled_from(self._idle())))

    def _sync(self, client: Client) -> None:
        assignments: dict[str, bytes] = {}
        if client.leads and client.members:
            for position, member_id in enumerate(client.members):
                mine = list(range(position, PARTITIONS, len(client.members)))
                assignments[member_id] = json.dumps(mine).encode()
            assignments["nobody"] = b"[0]"
        request = SyncRequest(
            token=self._ask(client, "sync", self._synced),
            member_id=client.member_id,
            instance_id=client.instance_id,
            generation=client.generation,
            protocol_type="consumer",
            protocol_name=None,
            assignments=assignments,
        )
        self._carry_out(self.group.sync(request, self._now()))

    @precondition(lambda self: self._idle())
    @rule(data=st.data())
    def a_member_heartbeats(self, data: st.DataObject) -> None:
        self._heartbeat(data.draw(st.sampled_from(self._idle())))

    def _heartbeat(self, client: Client) -> None:
        def heard(client: Client, values: Mapping[str, Any]) -> None:
            code = values["error_code"]
            if code is ErrorCode.rebalance_in_progress:
                client.next_step = "join"
            elif code is not ErrorCode.none:
                self._forget(client, code)
            else:
                assert client.generation == self.group.generation

        token = self._ask(client, "heartbeat", heard)
        instance = client.instance_id
        self._carry_out(self.group.classic_heartbeat(token, client.member_id, instance, client.generation, self._now()))

    @rule(turns=st.integers(1, 12))
    def everyone_goes_on(self, turns: int) -> None:
        """Each client does what its library would, and time passes in between."""
        for _ in range(turns):
            for client in self._idle():
                if client in self.clients and client.waits_for is None:
                    {"join": self._join, "sync": self._sync, "heartbeat": self._heartbeat}[client.next_step](client)
            self.time_passes(1_000)

    @precondition(lambda self: self._idle())
    @rule(data=st.data())
    def a_member_commits(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self._idle()))
        try:
            self._carry_out(
                self.group.check_commit(client.member_id, client.instance_id, client.generation, self._now())
            )
        except CodedError as error:
            if error.code not in COMMIT_REFUSALS:
                raise
            return
        if client.generation >= 0:
            assert client.generation == self.group.generation
            assert client.member_id in self.group.members.by_id
        else:
            assert self.group.is_empty

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def a_member_leaves(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        leaver = Client(None, True, True)
        token = self._ask(leaver, "leave", lambda _client, _values: None)
        member_id = client.member_id
        leaving = [LeavingMember(member_id=member_id, instance_id=client.instance_id)]
        self._carry_out(self.group.leave(token, leaving, self._now()))
        assert token in self.answered
        assert member_id not in self.group.members.by_id or client.instance_id is not None

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def a_member_dies(self, data: st.DataObject) -> None:
        self.clients.remove(data.draw(st.sampled_from(self.clients)))

    @rule(milliseconds=st.sampled_from([1, 1_000, 2_999, 6_000, 15_000]))
    def time_passes(self, milliseconds: int) -> None:
        end = self._now() + milliseconds
        while self.timers and min(self.timers.values()) <= end:
            self._expire_next()
        self.clock.advance(max(end - self._now(), 0))

    def _expire_next(self) -> None:
        name = min(self.timers, key=lambda name: self.timers[name])
        self.clock.advance(max(self.timers.pop(name) - self._now(), 0))
        self._carry_out(self.group.on_timer(name, self._now()))

    @rule()
    def the_broker_restarts(self) -> None:
        for reply in self.group.resign(ErrorCode.not_coordinator):
            self._answer(reply)
        assert not self.waiting, "a request was never answered"
        self.timers.clear()
        self.group = self._new_group()
        self.highest_generation = 0
        if self.stored is not None:
            self.group.replay(b"", self.stored)
            self.highest_generation = decode_group(self.stored).generation
            self._carry_out(self.group.on_loaded(self._now()))

    @invariant()
    def generations_grow(self) -> None:
        assert self.group.generation >= self.highest_generation
        self.highest_generation = self.group.generation

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        if self.group.state is not ClassicState.STABLE:
            return
        heard = self.assigned.get(self.group.generation, {})
        owned: list[int] = []
        for member in self.group.members.by_id.values():
            assert heard.get(member.member_id, member.assignment) == member.assignment
            owned += json.loads(member.assignment or b"[]")
        assert len(owned) == len(set(owned)), "two members own a partition"

    @invariant()
    def only_the_living_are_counted(self) -> None:
        members = self.group.members
        assert members.joining == sum(member.is_joining for member in members.by_id.values())
        assert not members.pending & members.by_id.keys()
        assert (members.leader in members.by_id) if members.by_id else members.leader is None
        assert self.group._to_sync <= members.by_id.keys()
        if self.group.is_empty:
            assert not members.by_id
        elif self.group.state is not ClassicState.PREPARING_REBALANCE:
            assert members.by_id

    @invariant()
    def every_wait_ends(self) -> None:
        """A request waits only where a timer is set that will end it."""
        tokens = {m.join_token for m in self.group.members.by_id.values()}
        tokens |= {m.sync_token for m in self.group.members.by_id.values()}
        assert self.waiting.keys() == tokens - {None}
        if self.group.state is ClassicState.PREPARING_REBALANCE:
            assert "join" in self.timers
            assert self.group._is_initial or not self.group.members.all_joined, "everyone waits, and for nobody"
        for member in self.group.members.by_id.values():
            assert member.is_excused or ("session", member.member_id) in self.timers
            if member.sync_token is not None:
                assert "sync" in self.timers or ("session", self.group.members.leader) in self.timers

    @invariant()
    def what_members_were_told_is_stored(self) -> None:
        if self.group.state is not ClassicState.STABLE:
            return
        assert self.stored is not None
        stored = decode_group(self.stored)
        assert stored.generation == self.group.generation
        kept = {member.member_id: member.assignment for member in stored.members}
        for member in self.group.members.by_id.values():
            assert kept[member.member_id] == member.assignment

    def teardown(self) -> None:
        """Left alone, a group comes to rest: nobody waits, nobody is left."""
        for _ in range(1_000):
            if not self.timers:
                break
            self._expire_next()
        assert not self.timers
        assert not self.waiting
        assert self.group.is_empty
        assert not self.group.members.pending


TestClassicGroup = ClassicGroupMachine.TestCase
TestClassicGroup.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
