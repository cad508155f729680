"""Apache Kafka itself answers members of a share group as ours does, through one long history."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support import acls
from tests.support.apache_kafka import WITH_SHARE_GROUPS, ApacheKafka
from tests.support.maven import Unavailable
from tests.support.share import ShareMember
from tests.support.wire import Wire, batch_of, produce_request
from tests.unit.server.test_share_fetch import topic_id_of

pytestmark = [pytest.mark.long, pytest.mark.kafka]

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
SETTINGS: Final = {"group.share.record.lock.duration.ms": "60000"}
"""So long that no lock expires, however busy the machine is."""
NOTHING: Final = {"min_bytes": 0, "max_bytes": 0, "max_records": 0}
WAIT_MS: Final = 5_000
Step = Callable[["Members"], Any]
Seen = tuple[str, Any]


class Members:
    """Of a group at one broker, by name, each with its own connection."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._wires: list[Wire] = []
        self._members: dict[str, ShareMember] = {}
        self.wire = self.connect()
        self.topic_id = self.topic("t", *[5] * 3)
        self.of("a").initialize()

    def topic(self, name: str, *sizes: int) -> UUID:
        """A new topic with batches of so many records."""
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        acls.ask(self.wire, 19, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
        topic_id = UUID(int=0)
        while not topic_id.int:
            topic_id = topic_id_of(self.wire, name)
        for size in sizes:
            answer = self.wire.ask(0, 9, produce_request(name, batch_of(*[b"x"] * size)))
            assert not int(answer.responses[0].partition_responses[0].error_code)
        return topic_id

    def connect(self) -> Wire:
        self._wires.append(Wire(self._bootstrap))
        return self._wires[-1]

    def of(self, name: str, version: int = 2) -> ShareMember:
        known = self._members.get(name)
        if known is None:
            member_id = f"{name}Sv3jRqTLW1p3oV0Jf1Ag"
            known = self._members[name] = ShareMember(self.connect(), self.topic_id, member=member_id, version=version)
        return known

    def close(self) -> None:
        for wire in self._wires:
            wire.socket.close()


def fetch(name: str, *acks: tuple[int, int, int], **values: Any) -> Step:
    return lambda members: members.of(name).fetch(*acks, **values)


def acknowledge(name: str, *acks: tuple[int, int, int], **values: Any) -> Step:
    return lambda members: members.of(name).acknowledge(*acks, **values)


HISTORY: Final[tuple[Step, ...]] = (
    fetch("b", epoch=3),
    fetch("a", wait_ms=WAIT_MS, max_records=4),
    fetch("a", wait_ms=WAIT_MS, max_records=4, batch_size=2),
    fetch("a", wait_ms=WAIT_MS, max_records=2, share_acquire_mode=1),
    fetch("b", wait_ms=WAIT_MS),
    fetch("b", wait_ms=100),
    acknowledge("b", (0, 0, ACCEPT)),
    acknowledge("a", (0, 1, ACCEPT)),
    acknowledge("a", (0, 1, ACCEPT)),
    acknowledge("a", (3, 4, ACCEPT)),
    acknowledge("a", (3, 3, ACCEPT)),
    acknowledge("a", (2, 2, RELEASE)),
    fetch("b", wait_ms=WAIT_MS),
    acknowledge("b", (2, 2, REJECT)),
    acknowledge("b", (100, 101, ACCEPT)),
    acknowledge("b", (13, 13, GAP)),
    acknowledge("b", (14, 14, RENEW)),
    acknowledge("b", (14, 14, RENEW), renew=True),
    lambda members: members.of("b").fetch((14, 14, RENEW), is_renew_ack=True, epoch=members.of("b").epoch),
    fetch("b", (14, 14, RENEW), is_renew_ack=True, **NOTHING),
    acknowledge("b", (14, 14, ACCEPT), (13, 13, ACCEPT)),
    acknowledge("b", (14, 14, 9)),
    acknowledge("b", (14, 13, ACCEPT)),
    acknowledge("b", (12, 14, ACCEPT), (14, 14, ACCEPT)),
    acknowledge("b", (14, 14, ACCEPT), epoch=0),
    acknowledge("b", (14, 14, ACCEPT), epoch=99),
    fetch("c", (14, 14, ACCEPT), epoch=0),
    fetch("c"),
    fetch("c", (5, 5, ACCEPT)),
    fetch("b", (14, 14, RELEASE), epoch=-1),
    fetch("b"),
    fetch("c", wait_ms=WAIT_MS),
    acknowledge("a", (5, 5, ACCEPT), epoch=-1),
    fetch("c", wait_ms=WAIT_MS),
    lambda members: ShareMember(members.wire, members.topic_id, group="unknown", member="d").fetch(wait_ms=WAIT_MS),
    lambda members: ShareMember(members.wire, members.topic_id, member="").fetch(),
    lambda members: members.of("e", version=1).fetch(),
    lambda members: members.of("e").acknowledge((14, 14, RENEW)),
)


def seen(answer: Any) -> tuple[Seen, ...]:
    """The codes of an answer, and each offset that it gives."""
    found: list[Seen] = [("code", answer.error_code.name)]
    for topic in answer.responses:
        for partition in topic.partitions:
            found += [(name, int(getattr(partition, name))) for name in CODES if hasattr(partition, name)]
            for first, last, count in map(_range, getattr(partition, "acquired_records", ())):
                found += [("offset", (offset, count)) for offset in range(first, last + 1)]
    return tuple(found)


def delivered_in_vain(members: Members, mode: int) -> list[tuple[int, int, int]]:
    """The first and last offset of each fetch, and how often they were delivered, where a member releases all."""
    topic_id = members.topic(f"in-vain-{mode}", 40)
    member = ShareMember(members.connect(), topic_id, group=f"in-vain-{mode}", member="aSv3jRqTLW1p3oV0Jf1Ag")
    member.initialize()
    found = []
    for _ in range(10):
        ranges = member.take(wait_ms=WAIT_MS, share_acquire_mode=mode)
        assert member.say(*[(first, last, RELEASE) for first, last, _ in ranges]) is ErrorCode.none
        found.append((ranges[0][0], ranges[-1][1], ranges[0][2]))
    return found


CODES: Final = ("error_code", "acknowledge_error_code")


def _range(acquired: Any) -> tuple[int, int, int]:
    return acquired.first_offset, acquired.last_offset, acquired.delivery_count


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Members, Members]]:
    theirs = {"group.coordinator.rebalance.protocols": "classic,consumer,share", **SETTINGS}
    try:
        with ApacheKafka(tmp_path, theirs, version=WITH_SHARE_GROUPS) as kafka, Broker(SETTINGS) as ours:
            members = Members(ours.bootstrap), Members(kafka.bootstrap)
            yield members
            for each in members:
                each.close()
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_one_history_has_the_same_answers(both: tuple[Members, Members]) -> None:
    ours, theirs = both
    for number, step in enumerate(HISTORY):
        assert (number, seen(step(ours))) == (number, seen(step(theirs)))


@pytest.mark.parametrize("mode", [0, 1])
def test_what_is_delivered_again_and_again_comes_in_the_same_parts(both: tuple[Members, Members], mode: int) -> None:
    ours, theirs = both
    assert delivered_in_vain(ours, mode) == delivered_in_vain(theirs, mode)


def test_as_many_records_are_out_as_the_limit_and_the_size_of_a_batch_say(both: tuple[Members, Members]) -> None:
    """A batch comes whole, unless the member wants no more records than it asks for: also where the limit is less."""
    for members in both:
        topic_id = members.topic("locks", 3000)
        for mode, last in ((0, 2999), (1, 1999)):
            group = f"locks-{mode}"
            member = ShareMember(members.connect(), topic_id, group=group, member="aSv3jRqTLW1p3oV0Jf1Ag")
            member.initialize()
            assert member.take(wait_ms=WAIT_MS, max_records=9000, share_acquire_mode=mode) == [(0, last, 1)]
