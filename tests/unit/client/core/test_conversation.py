from struct import pack

import pytest

from headrace.client.core.conversation import Conversation, read_answer_head
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ProtocolViolation
from headrace.protocol.exchange import LARGEST_ANSWER, matching_body, request_head
from headrace.protocol.peer import InternalApi


def test_answers_belong_to_requests_in_their_order() -> None:
    conversation: Conversation[str] = Conversation("me")
    for name, version in (("first", 0), ("second", 3)):
        conversation.head(ApiKey.API_VERSIONS, version, 0)
        conversation.expect(ApiKey.API_VERSIONS, version, name)
    assert conversation.answered(1).waiter == "first"
    with pytest.raises(ProtocolViolation, match="an answer to request 7 where 2 was asked"):
        conversation.answered(7)
    with pytest.raises(ProtocolViolation, match="where none was asked"):
        conversation.answered(3)


def test_a_head_counts_the_body_and_has_tags_where_its_version_has() -> None:
    conversation: Conversation[None] = Conversation("me")
    plain = conversation.head(ApiKey.API_VERSIONS, 0, body_size=5)
    assert plain == pack(">ihhih", 10 + 2 + 5, ApiKey.API_VERSIONS, 0, 1, 2) + b"me"
    flexible = conversation.head(ApiKey.API_VERSIONS, 3, body_size=0)
    assert flexible == pack(">ihhih", 10 + 2 + 1, ApiKey.API_VERSIONS, 3, 2, 2) + b"me\0"


def test_brokers_name_no_client_and_have_no_tags_among_themselves() -> None:
    assert request_head(InternalApi.FEED, 0, 9, None) == pack(">hhih", InternalApi.FEED, 0, 9, -1)
    assert bytes(matching_body(memoryview(pack(">i", 9) + b"\1body"), 9, InternalApi.FEED, 0)) == b"\1body"


@pytest.mark.parametrize("answer", [b"", b"\0\0\0", pack(">i", 8) + b"x"])
def test_an_answer_to_something_else_is_a_violation(answer: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="not the one to request 9"):
        matching_body(memoryview(answer), 9, ApiKey.METADATA, 1)


@pytest.mark.parametrize("length", [-1, 0, 3, LARGEST_ANSWER + 1])
def test_a_length_that_no_answer_has_is_a_violation(length: int) -> None:
    with pytest.raises(ProtocolViolation, match="is this a Kafka broker"):
        read_answer_head(pack(">ii", length, 1))
    assert read_answer_head(b"skipped!" + pack(">ii", LARGEST_ANSWER, 4), 8) == (LARGEST_ANSWER - 4, 4)
