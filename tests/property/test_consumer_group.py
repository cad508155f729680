"""A consumer group gives every partition to one member at a time, whatever its members, the network and time do."""

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.coordinator.groups.consumer import HeartbeatRequest
from headrace.coordinator.groups.consumer.member import AWAY, partitions_of
from headrace.coordinator.groups.targets import JOINING, LEFT
from headrace.protocol.errors import ErrorCode
from tests.support.coordinator.consumer_group import Host, Owned, code, make_image, owned, put_topic, topic_id

TOPICS = ("orders", "orders-eu", "payments")
REGEX = "orders.*"
ROUNDS = 7
SUBSCRIPTIONS = [frozenset({"orders"}), frozenset({"orders", "payments"}), frozenset(TOPICS), frozenset[str]()]


class Mood(Enum):
    """What a client does after a heartbeat."""

    TAKES = "takes and gives up what it was told"
    GIVES_UP = "gives up what it was told"
    DAWDLES = "does nothing yet"
    LOSES = "never gets the answer"


MOODS = [Mood.TAKES, Mood.TAKES, Mood.TAKES, Mood.GIVES_UP, Mood.DAWDLES, Mood.LOSES]


@dataclass
class Client:
    """A consumer as KIP-848 describes it: it owns what it was told to, and says when it has given something up."""

    id: str
    instance_id: str | None
    names: frozenset[str] | None
    regex: str | None
    epoch: int = JOINING
    owned: Owned = field(default_factory=dict)
    told: Owned = field(default_factory=dict)
    says_all: bool = True
    seen_epochs: list[int] = field(default_factory=list)

    def request(self) -> HeartbeatRequest:
        full = self.says_all
        return HeartbeatRequest(
            token="heartbeat",
            member_id=self.id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=60_000 if full else -1,
            subscribed_topic_names=self.names if full else None,
            subscribed_topic_regex=self.regex if full else None,
            owned=dict(self.owned),
        )

    def wants(self, name: str) -> bool:
        return name in (self.names or ()) or (bool(self.regex) and name.startswith("orders"))

    def give_up(self) -> None:
        kept = {topic: indexes & self.told.get(topic, frozenset()) for topic, indexes in self.owned.items()}
        self.owned = {topic: indexes for topic, indexes in kept.items() if indexes}

    def take(self) -> None:
        self.give_up()
        self.owned = dict(self.told)

    def abandon(self) -> None:
        self.owned, self.told, self.epoch, self.says_all = {}, {}, JOINING, True


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.host = Host(make_image({"orders": 3, "payments": 2}))
        self.clients: list[Client] = []
        self.born = 0
        self.lives = 0
        self.last_epoch = 0

    def client(self, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(self.clients))

    def send(self, client: Client, *, lose: bool = False) -> None:
        request = client.request()
        self.host.carry_out(self.host.group.heartbeat(request, self.host.now_ms))
        answer = self.host.answers.pop("heartbeat")
        if lose:
            client.says_all = True
        elif code(answer) is ErrorCode.none:
            self.learn(client, answer["member_epoch"], owned(answer))
        else:
            assert code(answer) in (
                ErrorCode.fenced_member_epoch,
                ErrorCode.unknown_member_id,
                ErrorCode.fenced_instance_id,
                ErrorCode.unreleased_instance_id,
            )
            client.abandon()

    def learn(self, client: Client, epoch: int, told: Owned | None) -> None:
        assert epoch >= client.epoch, "a member's epoch went back"
        client.epoch, client.says_all = epoch, False
        if told is not None:
            client.told = told

    @rule(names=st.sampled_from(SUBSCRIPTIONS), by_regex=st.booleans(), static=st.booleans(), lose=st.booleans())
    @precondition(lambda self: len(self.clients) < 5)
    def join(self, names: frozenset[str], by_regex: bool, static: bool, lose: bool) -> None:
        self.born += 1
        instance = f"i{self.born % 2}" if static else None
        client = Client(f"m{self.born}", instance, None if by_regex else names, REGEX if by_regex else None)
        if instance is None or all(other.instance_id != instance for other in self.clients):
            self.clients.append(client)
            self.send(client, lose=lose)

    @rule(turns=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(MOODS)), min_size=8, max_size=24))
    @precondition(lambda self: self.clients)
    def talk(self, turns: list[tuple[int, Mood]]) -> None:
        """Members send heartbeats, and do what they are told at once, in part, or not yet."""
        for number, mood in turns:
            client = self.clients[number % len(self.clients)]
            self.send(client, lose=mood is Mood.LOSES)
            if mood is Mood.TAKES:
                client.take()
            elif mood is Mood.GIVES_UP:
                client.give_up()
            self.a_partition_has_one_owner()

    @rule(data=st.data(), names=st.sampled_from(SUBSCRIPTIONS))
    @precondition(lambda self: self.clients)
    def subscribe(self, data: st.DataObject, names: frozenset[str]) -> None:
        client = self.client(data)
        client.names, client.regex, client.says_all = names, "", True

    @rule(data=st.data(), says_so=st.booleans())
    @precondition(lambda self: self.clients)
    def go(self, data: st.DataObject, says_so: bool) -> None:
        client = self.client(data)
        self.clients.remove(client)
        if says_so:
            self.host.beat(client.id, LEFT if client.instance_id is None else AWAY, instance_id=client.instance_id)

    @rule(ms=st.sampled_from([500, 1_500, 5_000, 20_000, 50_000]))
    def pass_time(self, ms: int) -> None:
        self.host.advance(ms)

    @rule(name=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def grow_topic(self, name: str, more: int) -> None:
        topic = self.host.image.topic(name)
        if topic is None:
            self.lives += 1
            put_topic(self.host.image, name, more, self.lives)
        elif len(topic.partitions) < 9:
            life = next(life for life in range(self.lives + 1) if topic_id(name, life) == topic.id)
            put_topic(self.host.image, name, len(topic.partitions) + more, life)

    @rule(name=st.sampled_from(TOPICS))
    def delete_topic(self, name: str) -> None:
        if self.host.image.topic(name) is not None:
            self.host.image.remove_topic(name)

    @rule(compacted=st.booleans())
    def restart(self, compacted: bool) -> None:
        self.host.restart(compacted=compacted)

    @rule()
    def settle(self) -> None:
        """With all members heartbeating, the group gets to its target in a bounded number of rounds."""
        members = self.host.group.state.members
        while members.keys() - {client.id for client in self.clients}:
            for client in self.clients:
                self.send(client)
                client.take()
            self.host.advance(5_000)
            members = self.host.group.state.members
        for _ in range(ROUNDS):
            for client in self.clients:
                self.send(client)
                client.take()
            self.host.advance(1_000)
        self.check_settled()

    def check_settled(self) -> None:
        group = self.host.group
        assert group.state_name == ("Stable" if self.clients else "Empty")
        for client in self.clients:
            assert client.owned == group.state.target_of(client.id), "a member did not get to its target"
        wanted: set[tuple[UUID, int]] = set()
        for topic in self.host.image.topics():
            if any(client.wants(topic.name) for client in self.clients):
                wanted |= {(topic.id, index) for index in range(len(topic.partitions))}
        assert {part for client in self.clients for part in partitions_of(client.owned)} == wanted

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        seen: dict[tuple[UUID, int], str] = {}
        for client in self.clients:
            if client.id in self.host.group.state.members:
                for partition in partitions_of(client.owned):
                    assert partition not in seen, f"{seen[partition]} and {client.id} own {partition}"
                    seen[partition] = client.id

    @invariant()
    def members_own_what_the_group_knows(self) -> None:
        state = self.host.group.state
        held = [
            partition
            for member in state.members.values()
            for part in (member.assigned, member.pending_revocation)
            for partition in partitions_of(part)
        ]
        assert len(held) == len(set(held)) == len(state.owners)
        assert set(state.owners.values()) | state.targets.keys() <= state.members.keys()

    @invariant()
    def epochs_grow(self) -> None:
        state = self.host.group.state
        assert state.epoch >= self.last_epoch
        assert state.target_epoch <= state.epoch
        self.last_epoch = state.epoch
        for member in state.members.values():
            assert member.epoch <= state.target_epoch

    @invariant()
    def every_member_is_watched(self) -> None:
        for member_id in self.host.group.state.members:
            assert self.host.timers["session", member_id] >= self.host.now_ms

    @invariant()
    def the_log_tells_everything(self) -> None:
        state = vars(self.host.group.state)
        assert vars(self.host.replayed().state) == state
        assert vars(self.host.replayed(compacted=True).state) == state


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = settings(max_examples=150, stateful_step_count=40)
