"""What the checker says of share groups: small histories with one thing wrong, and the same with nothing wrong."""

from typing import Any

import pytest

from tests.support.checker.history import History
from tests.support.checker.violations import violations

TOPIC, GROUP, LOCK = "t", "g", 10.0


class Shares:
    """A history of one partition, whose first three offsets hold records."""

    def __init__(self) -> None:
        self.now = 0.0
        self.history = History(lambda: self.now)
        self.history.send("p", TOPIC, 0, ["v0", "v1", "v2"]).ok(offset=0)

    def acquired(self, member: str, first: int, last: int, at: float) -> None:
        self.now = at
        values = [[offset, f"v{offset}"] for offset in range(first, last + 1)]
        self.history.note(
            "acquired", "ok", **self._place(member), since=at - 0.5, lock=LOCK, records=values, ranges=[[first, last]]
        )

    def said(self, member: str, kind: str, offset: int, at: float, phase: str = "ok") -> None:
        self.now = at
        operation = self.history.invoke("acknowledge", **self._place(member), offsets=[offset], kind=kind)
        self.now = at + 0.1
        getattr(operation, phase)()

    def begins_anew(self, at: float, phase: str = "ok", offset: int = 0) -> None:
        self.now = at
        place = {"group": GROUP, "topic": TOPIC, "partition": 0}
        operation = self.history.invoke("rewind", **place, offset=offset)
        self.now = at + 0.5
        getattr(operation, phase)()

    def ends(self, *letters: int) -> list[str]:
        """The kinds of what is wrong, once the group is done with everything."""
        self.now = 100.0
        self.history.final(TOPIC, 0, [(offset, f"v{offset}", None) for offset in range(3)])
        for offset in letters:
            place = {"group": GROUP, "topic": TOPIC, "partition": 0}
            self.history.note("letter", "ok", **place, offset=offset, count=1, value=f"v{offset}")
        self.history.note("drained", "ok", group=GROUP, letters="dlq")
        return sorted({text.partition(":")[0] for text in violations(self.history.events)})

    def _place(self, member: str) -> dict[str, Any]:
        return {"group": GROUP, "member": member, "topic": TOPIC, "partition": 0}


@pytest.fixture
def shares() -> Shares:
    """A member has all three records, and has accepted the last two."""
    made = Shares()
    made.acquired("a", 0, 2, 1.0)
    made.said("a", "accept", 1, 2.0)
    made.said("a", "accept", 2, 2.0)
    return made


def test_nothing_is_wrong_with_records_that_are_accepted_released_or_rejected(shares: Shares) -> None:
    shares.said("a", "release", 0, 2.0)
    shares.acquired("b", 0, 0, 3.0)
    shares.said("b", "reject", 0, 4.0)
    assert shares.ends(0) == []


def test_a_record_is_anothers_once_its_lock_has_expired_or_its_member_is_gone(shares: Shares) -> None:
    shares.acquired("b", 0, 0, 1.0 + LOCK)
    shares.history.note("left", "info", group=GROUP, member="b", since=12.0)
    shares.acquired("c", 0, 0, 13.0)
    shares.said("a", "accept", 0, 13.5)  # too late: it is told so only where the group is not past the record
    shares.said("c", "accept", 0, 14.0)
    assert shares.ends() == []


def test_two_who_have_accepted_a_record_are_one_too_many(shares: Shares) -> None:
    shares.said("a", "accept", 0, 2.0)
    shares.acquired("b", 0, 0, 3.0)
    shares.said("b", "accept", 0, 4.0)
    assert shares.ends() == ["accepted twice", "delivered again"]


def test_a_record_that_a_member_has_is_nobody_elses(shares: Shares) -> None:
    shares.acquired("b", 0, 0, 5.0)
    shares.said("b", "accept", 0, 6.0)
    assert shares.ends() == ["delivered again"]


def test_a_lock_that_is_renewed_holds_longer(shares: Shares) -> None:
    shares.said("a", "renew", 0, 9.0)
    shares.acquired("b", 0, 0, 12.0)
    shares.said("b", "accept", 0, 13.0)
    assert shares.ends() == ["delivered again"]


def test_a_new_leader_knows_nothing_of_locks(shares: Shares) -> None:
    shares.now = 4.0
    shares.history.note("leader", "info", topic=TOPIC, partition=0, epoch=1, leader=2)
    shares.acquired("b", 0, 0, 5.0)
    shares.said("b", "accept", 0, 6.0)
    assert shares.ends() == []


def test_what_was_done_before_a_group_began_anew_is_done_again(shares: Shares) -> None:
    shares.said("a", "accept", 0, 2.0)
    shares.begins_anew(4.0)
    shares.acquired("b", 0, 2, 5.0)
    shares.said("b", "accept", 0, 6.0)
    shares.said("b", "reject", 1, 6.0)
    assert shares.ends(1) == ["never done"], "the third one"


@pytest.mark.parametrize(("phase", "offset"), [("info", 0), ("ok", 3)])
def test_where_it_may_not_have_begun_anew_what_was_done_before_counts(shares: Shares, phase: str, offset: int) -> None:
    shares.said("a", "accept", 0, 2.0)
    shares.begins_anew(4.0, phase, offset)
    shares.acquired("b", 1, 2, 5.0)
    shares.said("b", "accept", 1, 6.0)
    assert shares.ends() == []


def test_after_it_began_anew_a_record_is_one_members_again(shares: Shares) -> None:
    shares.said("a", "accept", 0, 2.0)
    shares.begins_anew(4.0)
    shares.acquired("b", 0, 2, 5.0)
    for offset in range(3):
        shares.said("b", "accept", offset, 6.0)
    shares.acquired("c", 0, 0, 7.0)
    assert shares.ends() == ["delivered again"]


@pytest.mark.parametrize(
    ("kind", "letters", "wrong"),
    [
        ("release", (), ["never done"]),
        ("reject", (), ["lost letter", "never done"]),
        ("accept", (0,), ["wrong letter"]),
        ("release", (0,), []),
    ],
)
def test_every_record_is_accepted_or_has_a_dead_letter(
    shares: Shares, kind: str, letters: tuple[int, ...], wrong: list[str]
) -> None:
    shares.said("a", kind, 0, 2.0)
    assert shares.ends(*letters) == wrong


@pytest.mark.parametrize("topic", ["__share_group_state", "__consumer_offsets", "dlq", TOPIC])
def test_where_what_the_group_had_done_was_destroyed_nothing_is_promised(shares: Shares, topic: str) -> None:
    shares.acquired("b", 0, 2, 5.0)
    shares.history.note("loss", "info", topic=topic, partition=0, brokers=[])
    assert shares.ends() == []
