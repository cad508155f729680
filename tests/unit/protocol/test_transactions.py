import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.encode import encode_response
from headrace.protocol.errors import ErrorCode, ProtocolViolation
from headrace.protocol.topic_partition import TopicPartition
from headrace.protocol.transactions import DescribedTransaction, read_described


def described(start_ms: int, topics: list[dict[str, object]]) -> bytes:
    state = {
        "error_code": ErrorCode.none,
        "transactional_id": "x",
        "transaction_state": "Ongoing",
        "transaction_timeout": 60_000,
        "transaction_start_time": start_ms,
        "producer_id": 7,
        "producer_epoch": 3,
        "topics": topics,
    }
    answer = {"throttle_time": 0, "transaction_states": [state]}
    return bytes(encode_response(ApiKey.DESCRIBE_TRANSACTIONS, 0, answer))


def test_transactions_are_read_with_a_time_and_without() -> None:
    topics: list[dict[str, object]] = [{"topic": "t", "partitions": [0, 5]}, {"topic": "u", "partitions": [1]}]
    (found,) = read_described(memoryview(described(1234, topics)))
    partitions = (TopicPartition("t", 0), TopicPartition("t", 5), TopicPartition("u", 1))
    assert found == DescribedTransaction(ErrorCode.none, "x", "Ongoing", 60_000, 1234, 7, 3, partitions)
    (idle,) = read_described(memoryview(described(-1, [])))
    assert (idle.start_ms, idle.partitions) == (-1, ())


def test_an_answer_that_is_cut_short_is_no_answer() -> None:
    whole = described(1234, [{"topic": "t", "partitions": [0, 5]}])
    for size in range(len(whole)):
        with pytest.raises(ProtocolViolation):
            read_described(memoryview(whole[:size]))
