"""Members of a share group at a broker: sessions, fetches that wait, acknowledgements, errors."""

from collections.abc import Iterator
from itertools import count
from uuid import UUID

import pytest

from headrace.protocol.acl import AclOperation, ResourceType
from headrace.protocol.api import SUPPORTED, ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support import acls
from tests.support.quotas import set_quotas
from tests.support.share import ShareMember
from tests.support.wire import Wire, batch_of, produce_request, values_in
from tests.unit.server.test_throttling import is_answered

ACCEPT, RELEASE, RENEW = 1, 2, 4
VERSIONS = range(SUPPORTED[ApiKey.SHARE_FETCH].min, SUPPORTED[ApiKey.SHARE_FETCH].max + 1)
WAIT_MS = 60_000
NUMBERS = count()


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker({"group.share.record.lock.duration.ms": "1000"}) as running:
        yield running


def topic_id_of(wire: Wire, name: str) -> UUID:
    topic = {"name": name, "topic_id": None}
    found = acls.ask(wire, 3, 12, {"topics": (topic,), "include_topic_authorized_operations": False})
    return UUID(int=found.topics[0].topic_id.int)


class Queue:
    """A topic of one partition, its producer, and the members of a group."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.group = name
        self.topic = broker.create_topic(name, 1)
        self.wires: list[Wire] = []
        self.writer = self.connect()
        self.topic_id = topic_id_of(self.writer, name)
        self.member("first").initialize()

    def connect(self) -> Wire:
        self.wires.append(Wire(self.broker.bootstrap))
        return self.wires[-1]

    def member(self, name: str = "a", version: int = 2) -> ShareMember:
        return ShareMember(self.connect(), self.topic_id, group=self.group, member=name, version=version)

    def produce(self, *values: bytes) -> None:
        answer = self.writer.ask(0, 9, produce_request(self.topic, batch_of(*values)))
        assert answer.responses[0].partition_responses[0].error_code is ErrorCode.none

    def close(self) -> None:
        for wire in self.wires:
            wire.socket.close()


@pytest.fixture
def queue(shared: Broker) -> Iterator[Queue]:
    made = Queue(shared, f"queue-{next(NUMBERS)}")
    yield made
    made.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_delivered_once_and_acknowledged_in_every_version(queue: Queue, version: int) -> None:
    queue.produce(b"a", b"b")
    queue.produce(b"c")
    member, other = queue.member("a", version), queue.member("b", version)
    answer = member.fetch(wait_ms=WAIT_MS)
    partition = answer.responses[0].partitions[0]
    assert values_in(partition.records) == [b"a", b"b", b"c"]
    assert [(r.first_offset, r.last_offset, r.delivery_count) for r in partition.acquired_records] == [(0, 2, 1)]
    assert answer.acquisition_lock_timeout.total_seconds() == 1
    assert other.take() == []
    assert member.say((1, 1, ACCEPT)) is ErrorCode.none
    assert member.say((1, 1, ACCEPT)) is ErrorCode.invalid_record_state
    assert other.say((2, 2, ACCEPT)) is ErrorCode.invalid_record_state
    assert member.say((0, 0, ACCEPT)) is ErrorCode.none
    assert member.say((0, 1, ACCEPT)) is ErrorCode.none, "the group has come further"
    assert member.take((2, 2, RELEASE)) in ([], [(2, 2, 2)])


def test_a_waiting_fetch_is_woken_by_what_is_produced_and_by_what_is_released(queue: Queue) -> None:
    first, second = queue.member("a"), queue.member("b")
    first.send_fetch(wait_ms=WAIT_MS)
    second.send_fetch(wait_ms=WAIT_MS)
    queue.produce(b"a")
    assert first.receive_fetch().responses[0].partitions[0].acquired_records[0].delivery_count == 1
    assert not is_answered(queue.broker, second.wire)
    assert first.say((0, 0, RELEASE)) is ErrorCode.none
    assert second.receive_fetch().responses[0].partitions[0].acquired_records[0].delivery_count == 2


def test_a_waiting_fetch_is_woken_by_a_lock_that_expires_and_by_a_member_that_is_gone(queue: Queue) -> None:
    queue.produce(b"a")
    members = [queue.member(name) for name in "abc"]
    assert members[0].take(wait_ms=WAIT_MS) == [(0, 0, 1)]
    assert members[1].take(wait_ms=WAIT_MS) == [(0, 0, 2)]
    members[1].wire.socket.close()
    assert members[2].take(wait_ms=WAIT_MS) == [(0, 0, 3)]


def test_members_that_are_gone_take_no_records_with_them(queue: Queue) -> None:
    gone = [queue.member(f"gone {number}") for number in range(6)]
    for member in gone:
        member.send_fetch(wait_ms=WAIT_MS)
    assert not any(is_answered(queue.broker, member.wire) for member in gone)
    for member in gone:
        member.wire.socket.close()
    assert not is_answered(queue.broker, queue.writer)
    queue.produce(b"a")
    assert queue.member().take(wait_ms=WAIT_MS) == [(0, 0, 1)]


def test_a_fetch_of_a_session_that_another_took_the_place_of_gets_nothing(queue: Queue) -> None:
    cut_off, member = queue.member("a"), queue.member("a")
    cut_off.send_fetch(wait_ms=WAIT_MS)
    assert not is_answered(queue.broker, cut_off.wire)
    member.send_fetch(wait_ms=WAIT_MS)
    assert not is_answered(queue.broker, member.wire)
    assert not cut_off.receive_fetch().responses[0].partitions[0].acquired_records
    queue.produce(b"a")
    assert member.receive_fetch().responses[0].partitions[0].acquired_records[0].delivery_count == 1


def test_a_fetch_that_waits_is_answered_when_the_next_request_of_its_session_comes(queue: Queue) -> None:
    member = queue.member()
    assert member.take() == []
    for _ in range(2):
        member.send_fetch(wait_ms=WAIT_MS)
    assert not member.receive_fetch().responses
    queue.produce(b"a")
    assert member.receive_fetch().responses[0].partitions[0].acquired_records[0].delivery_count == 1


def test_the_end_of_a_session_releases_what_it_has_acquired_and_not_what_it_accepts(queue: Queue) -> None:
    queue.produce(b"a", b"b")
    first, second = queue.member("a"), queue.member("b")
    assert first.take(wait_ms=WAIT_MS) == [(0, 1, 1)]
    assert first.say((0, 0, ACCEPT), epoch=-1) is ErrorCode.none
    assert second.take(wait_ms=WAIT_MS) == [(1, 1, 2)]
    assert second.fetch((1, 1, ACCEPT), epoch=-1).responses[0].partitions[0].acknowledge_error_code == 0
    assert second.fetch().error_code is ErrorCode.share_session_not_found


def test_requests_of_a_session_are_numbered(queue: Queue) -> None:
    member = queue.member()
    assert member.fetch(epoch=3).error_code is ErrorCode.share_session_not_found
    assert member.acknowledge(epoch=0).error_code is ErrorCode.invalid_share_session_epoch
    assert member.fetch((0, 0, ACCEPT), epoch=0).error_code is ErrorCode.invalid_request
    member.take()
    assert member.fetch(epoch=2).error_code is ErrorCode.invalid_share_session_epoch
    assert member.acknowledge(epoch=2).error_code is ErrorCode.invalid_share_session_epoch
    member.take()
    assert member.acknowledge(epoch=-1).error_code is ErrorCode.none


def test_there_are_only_so_many_sessions() -> None:
    with Broker({"group.share.max.share.sessions": "2"}) as broker:
        queue = Queue(broker, "q")
        first, second, late = (queue.member(name) for name in "abc")
        first.take()
        second.take()
        assert late.fetch().error_code is ErrorCode.share_session_limit_reached
        first.take(epoch=0)  # its own session begins anew
        first.acknowledge(epoch=-1)
        late.take(epoch=0)
        queue.close()


def test_a_session_that_takes_the_place_of_another_releases_what_that_one_had(queue: Queue) -> None:
    queue.produce(b"a")
    first, other = queue.member("a"), queue.member("b")
    assert first.take(wait_ms=WAIT_MS) == [(0, 0, 1)]
    assert first.take(epoch=0) == []
    assert first.acknowledge(epoch=-1).error_code is ErrorCode.none
    assert other.take(wait_ms=WAIT_MS) == [(0, 0, 2)]


def test_a_group_takes_no_more_sessions_than_it_can_have_members() -> None:
    with Broker({"group.share.max.share.sessions": "10", "group.share.max.size": "2"}) as broker:
        queue = Queue(broker, "q")
        other = queue.member("other")
        other.group = "others"
        wire = queue.connect()
        flood = [ShareMember(wire, queue.topic_id, group="q", member=f"m{number}") for number in range(5)]
        assert [member.fetch().error_code for member in flood[:4]] == [ErrorCode.none] * 4
        refused = flood[4].fetch()
        assert refused.error_code is ErrorCode.share_session_limit_reached
        assert refused.error_message == "there are too many share sessions of group q"
        assert other.fetch().error_code is ErrorCode.none, "others have room"
        again = ShareMember(wire, queue.topic_id, group="q", member="m0")
        assert again.fetch().error_code is ErrorCode.none, "in place of its own"
        queue.close()


def test_requests_about_too_much_are_refused(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.produce(b"a", b"b", b"c")
    member = queue.member()
    assert member.take(wait_ms=WAIT_MS) == [(0, 2, 1)]
    monkeypatch.setattr("headrace.server.handlers.share_fetch.MOST_RUNS", 2)
    assert member.say(*((offset, offset, 1 + offset % 2) for offset in range(3))) is ErrorCode.invalid_request
    assert member.say((0, 1, ACCEPT), (2, 2, RELEASE)) is ErrorCode.none
    monkeypatch.setattr("headrace.server.handlers.share_sessions.MOST_OF_SESSION", 1)
    assert member.fetch().error_code is ErrorCode.none
    forgotten = [{"topic_id": queue.topic_id, "partitions": (0,)}]
    stranger = ShareMember(member.wire, UUID(int=7), group=queue.group)
    answer = stranger.fetch(epoch=member.epoch)
    assert answer.error_code is ErrorCode.share_session_limit_reached
    monkeypatch.setattr("headrace.server.handlers.share_fetch.MOST_OF_SESSION", 1)
    assert member.fetch(epoch=0, forgotten_topics_data=forgotten).error_code is ErrorCode.invalid_request


def test_locks_are_renewed_by_requests_that_fetch_nothing(queue: Queue) -> None:
    queue.produce(b"a")
    member = queue.member()
    assert member.take(wait_ms=WAIT_MS) == [(0, 0, 1)]
    assert member.fetch((0, 0, RENEW), is_renew_ack=True).error_code is ErrorCode.invalid_request
    nothing = {"min_bytes": 0, "max_bytes": 0, "max_records": 0}
    assert member.take((0, 0, RENEW), is_renew_ack=True, epoch=1, **nothing) == []
    member.epoch = 2
    assert member.say((0, 0, RENEW)) is ErrorCode.invalid_request, "the request has to say so"
    assert member.say((0, 0, RENEW), renew=True) is ErrorCode.none


@pytest.mark.parametrize("accepts", [True, False])
def test_a_group_that_was_reset_while_nobody_read_goes_on_where_it_was_set(queue: Queue, accepts: bool) -> None:
    queue.produce(b"a", b"b", b"c")
    first, second = queue.member("a"), queue.member("b")
    assert first.take(wait_ms=WAIT_MS) == [(0, 2, 1)]
    first.acknowledge(*([(0, 2, ACCEPT)] if accepts else []), epoch=-1)  # what it does not accept is released
    queue.member().initialize(state_epoch=2, start_offset=0 if accepts else 2)
    assert second.take(wait_ms=WAIT_MS) == ([(0, 2, 1)] if accepts else [(2, 2, 1)])


@pytest.mark.parametrize(
    "acks",
    [
        [(1, 0, ACCEPT)],
        [(0, 0, 7)],
        [(0, 0, -1)],
        [(1, 1, ACCEPT), (0, 0, ACCEPT)],
        [(5, 6, ACCEPT)],
        [(-1, 0, ACCEPT)],
    ],
)
def test_what_makes_no_sense_is_refused(queue: Queue, acks: list[tuple[int, int, int]]) -> None:
    queue.produce(b"a", b"b")
    member = queue.member()
    member.take(wait_ms=WAIT_MS)
    assert member.say(*acks) is ErrorCode.invalid_request
    assert member.say((0, 1, ACCEPT)) is ErrorCode.none


def test_unknown_topics_and_partitions_and_groups_are_told_apart(queue: Queue) -> None:
    stranger = ShareMember(queue.connect(), UUID(int=7), group=queue.group)
    assert stranger.fetch().responses[0].partitions[0].error_code is ErrorCode.unknown_topic_id
    nobody = ShareMember(queue.connect(), queue.topic_id, group="never initialized")
    assert nobody.fetch(wait_ms=WAIT_MS).responses[0].partitions[0].error_code is ErrorCode.unknown_server_error
    nameless = ShareMember(queue.connect(), queue.topic_id, group=queue.group, member="")
    assert nameless.fetch().error_code is ErrorCode.invalid_request


def test_who_owes_bytes_gets_no_records_and_is_heard_all_the_same() -> None:
    with Broker() as broker:
        queue = Queue(broker, "q")
        queue.produce(bytes(100_000))
        member = queue.member()
        set_quotas(broker, {"client-id": "test"}, consumer_byte_rate=10_000_000.0)
        assert member.take(wait_ms=WAIT_MS) == [(0, 0, 1)]
        set_quotas(broker, {"client-id": "test"}, consumer_byte_rate=100.0)
        queue.produce(bytes(1000))
        answer = member.fetch((0, 0, ACCEPT))
        queue.close()
    assert answer.error_code is ErrorCode.none


def test_topics_need_the_right_to_be_read() -> None:
    with Broker(acls.SETTINGS) as broker:
        wire = acls.login(broker.bootstrap, "super")
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        acls.ask(wire, 19, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
        rights = [acls.acl("literal", AclOperation.READ, ResourceType.GROUP, "jobs")]
        acls.ask(wire, 30, 3, {"creations": rights})
        member = ShareMember(wire, topic_id_of(wire, "t"))
        member.initialize()
        assert member.take() == []
        stranger = ShareMember(acls.login(broker.bootstrap, "literal"), member.topic_id, member="b")
        assert stranger.fetch().responses[0].partitions[0].error_code is ErrorCode.topic_authorization_failed
        acknowledged = stranger.acknowledge((0, 0, ACCEPT)).responses[0].partitions[0]
        assert acknowledged.error_code is ErrorCode.topic_authorization_failed
        wire.socket.close()
        stranger.wire.socket.close()
