from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.consumer_protocol import (
    NotConsumerProtocol,
    encode_assignment,
    encode_subscription,
    parse_assignment,
    parse_partitions,
    parse_subscription,
    parse_topics,
)

NAMES = st.text("abc", min_size=1, max_size=3)


@given(st.sets(NAMES))
def test_topics_are_read_as_they_were_subscribed_to(topics: set[str]) -> None:
    data = encode_subscription(topics)
    assert parse_topics(data) == parse_subscription(data).topics == topics


@given(st.dictionaries(NAMES, st.frozensets(st.integers(0, 100))), st.integers(0, 3))
def test_partitions_are_read_as_they_were_assigned(partitions: dict[str, frozenset[int]], version: int) -> None:
    data = encode_assignment(partitions, version)
    written = {topic: tuple(sorted(indexes)) for topic, indexes in partitions.items()}
    assert parse_assignment(data) == (written, b"")
    assert parse_partitions(data) == written


@given(st.binary(max_size=60))
def test_bytes_of_any_kind_are_read_or_refused(data: bytes) -> None:
    for parse in (parse_topics, parse_subscription, parse_assignment, parse_partitions):
        try:
            parse(data)
        except NotConsumerProtocol:
            pass


def test_a_count_that_the_bytes_cannot_hold_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(NotConsumerProtocol, match="2000000000 entries in the 1 bytes"):
        parse_topics(pack(">hi", 0, 2_000_000_000) + b"x")
