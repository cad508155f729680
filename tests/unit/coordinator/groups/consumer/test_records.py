"""Records are Kafka's, byte for byte, and say again what they were told."""

from contextlib import suppress
from uuid import UUID

import pytest

from headrace.coordinator.groups.consumer.member import ClassicMetadata, ConsumerMember, MemberState
from headrace.coordinator.groups.consumer.records import (
    Change,
    CurrentAssignment,
    MemberSubscription,
    ResolvedRegex,
    decode,
    encode,
)
from headrace.coordinator.groups.targets import GroupEpoch, TargetEpoch, TargetMember
from headrace.coordinator.runtime.fields import BadRecord

TOPIC = UUID(int=5)
TOLD = ConsumerMember(
    id="m",
    instance_id="i",
    rack_id=None,
    client_id="c",
    client_host="/h",
    subscribed_topic_names=frozenset({"b", "a"}),
    subscribed_topic_regex="x.*",
    rebalance_timeout_ms=300,
    server_assignor="uniform",
)
CLASSIC = ConsumerMember(
    id="m", client_id="c", classic=ClassicMetadata(session_timeout_ms=9, protocols=(("range", b"\x01"), ("rr", b"")))
)
HOLDS = ConsumerMember(
    id="m",
    epoch=7,
    previous_epoch=6,
    state=MemberState.UNREVOKED_PARTITIONS,
    assigned={TOPIC: frozenset({1, 0})},
    pending_revocation={TOPIC: frozenset({2})},
)
CHANGES: list[Change] = [
    GroupEpoch(3),
    GroupEpoch(3, 2**64 - 1),
    GroupEpoch(None),
    MemberSubscription("m", TOLD),
    MemberSubscription("m", CLASSIC),
    MemberSubscription("m", None),
    TargetEpoch(4),
    TargetEpoch(None),
    TargetMember("m", {TOPIC: frozenset(range(300))}),
    TargetMember("m", {}),
    TargetMember("m", None),
    CurrentAssignment("m", HOLDS),
    CurrentAssignment("m", None),
    ResolvedRegex("x.*", frozenset({"x1", "x2"}), 12),
    ResolvedRegex("x.*", None),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_a_change_survives_its_record(change: Change) -> None:
    write = encode("grüppe", change)
    assert decode(write.key, write.value) == ("grüppe", change)


def test_the_bytes_are_those_of_kafkas_schemas() -> None:
    assert encode("g", GroupEpoch(3, 1)).key == b"\x00\x03\x00\x01g"
    assert (
        encode("g", GroupEpoch(3, 1)).value == b"\x00\x00\x00\x00\x00\x03\x01\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01"
    )
    assert encode("g", MemberSubscription("m", None)).key == b"\x00\x05\x00\x01g\x00\x01m"
    assert encode("g", MemberSubscription("m", TOLD)).value == (
        b"\x00\x00\x02i\x00\x02c\x03/h\x03\x02a\x02b\x04x.*\x00\x00\x01\x2c\x08uniform\x00"
    )
    assert encode("g", TargetEpoch(4)).key == b"\x00\x06\x00\x01g"
    assert encode("g", TargetEpoch(4)).value == b"\x00\x00\x00\x00\x00\x04\x00"
    target = encode("g", TargetMember("m", {TOPIC: frozenset({2, 1})}))
    assert target.key == b"\x00\x07\x00\x01g\x00\x01m"
    assert target.value == b"\x00\x00\x02" + TOPIC.bytes + b"\x03\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00"
    current = encode("g", CurrentAssignment("m", HOLDS))
    assert current.key == b"\x00\x08\x00\x01g\x00\x01m"
    assert current.value is not None
    assert current.value[:11] == b"\x00\x00\x00\x00\x00\x07\x00\x00\x00\x06\x01"
    assert encode("g", ResolvedRegex("x", None)).key == b"\x00\x10\x00\x01g\x00\x01x"


def test_the_classic_protocols_of_a_member_are_a_tagged_struct_that_may_be_null() -> None:
    value = encode("g", MemberSubscription("m", CLASSIC)).value
    assert value is not None
    assert value.endswith(b"\x01\x00\x15\x01\x00\x00\x00\x09\x03\x06range\x02\x01\x00\x03rr\x01\x00\x00")


def test_topics_of_groups_before_kafka_4_1_are_read_over() -> None:
    assert decode(b"\x00\x04\x00\x01g", b"\x00\x00\x01\x00") == ("g", None)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_a_record_that_is_cut_short_is_bad_or_says_the_same(change: Change) -> None:
    key, value = encode("g", change).key, encode("g", change).value
    for end in range(len(key)):
        with pytest.raises(BadRecord):
            decode(key[:end], value)
    for end in range(len(value or b"")):
        with suppress(BadRecord):
            assert decode(key, value and value[:end]) == ("g", change)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (b"\x00\x63\x00\x01g", None, "a key of type 99"),
        (b"\x00\x03\x00\x01g", b"\x00\x01\x00\x00\x00\x03\x00", "a value of version 1"),
        (b"\x00\x08\x00\x01g\x00\x01m", bytes(10) + b"\x63\x01\x01\x00", "a member in state 99"),
        (b"\x00\x07\x00\x01g\x00\x01m", b"\x00\x00\xff\xff\xff\xff\x0f\x00", "4294967294 entries"),
    ],
)
def test_what_cannot_be_read_is_told(key: bytes, value: bytes | None, reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        decode(key, value)
