from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.runtime.fields import BadRecord
from headrace.coordinator.transactions.model import TransactionMetadata
from headrace.coordinator.transactions.records import decode_key, decode_value, encode_key, encode_value
from headrace.coordinator.transactions.states import TransactionState
from headrace.protocol.topic_partition import TopicPartition

NUMBERS = st.integers(-1, 2**62)
EPOCHS = st.integers(-1, 2**15 - 1)
PARTITIONS = st.frozensets(st.tuples(st.text(min_size=1, max_size=300), st.integers(0, 2**31 - 1)))
TRANSACTIONS = st.builds(
    TransactionMetadata,
    transactional_id=st.text(min_size=1),
    producer_id=NUMBERS,
    producer_epoch=EPOCHS,
    timeout_ms=st.integers(0, 2**31 - 1),
    state=st.sampled_from([state for state in TransactionState if state is not TransactionState.EMPTY]),
    partitions=PARTITIONS,
    start_ms=NUMBERS,
    update_ms=NUMBERS,
    previous_producer_id=NUMBERS,
    next_producer_id=NUMBERS,
    client_version=st.integers(0, 2),
)


def _with_ids(transaction: TransactionMetadata, first_id: int) -> TransactionMetadata:
    names = sorted({topic for topic, _ in transaction.partitions})
    return replace(transaction, topic_ids={name: UUID(int=first_id + n) for n, name in enumerate(names[::2])})


@given(st.builds(_with_ids, TRANSACTIONS, st.integers(0, 2**100)))
def test_what_was_written_is_read(transaction: TransactionMetadata) -> None:
    assert decode_key(encode_key(transaction.transactional_id)) == transaction.transactional_id
    assert decode_value(transaction.transactional_id, encode_value(transaction)) == transaction


def test_a_value_is_byte_for_byte_what_kafka_writes() -> None:
    transaction = TransactionMetadata(
        transactional_id="orders",
        producer_id=7,
        producer_epoch=3,
        timeout_ms=60_000,
        state=TransactionState.PREPARE_COMMIT,
        partitions=frozenset({TopicPartition("t", 1), TopicPartition("t", 0)}),
        start_ms=5,
        update_ms=6,
        previous_producer_id=4,
        client_version=2,
    )
    assert encode_key("orders").hex() == "0000" + "0006" + b"orders".hex()
    assert encode_value(transaction).hex() == "".join(
        (
            "0001",
            "0000000000000007",
            "0003",
            "0000ea60",
            "02",
            "02" + "02" + b"t".hex() + "03" + "00000000" + "00000001" + "00",
            "0000000000000006",
            "0000000000000005",
            "02" + "0008" + "0000000000000004" + "0202" + "0002",
        )
    )


def test_the_id_of_a_topic_is_a_tagged_field_which_kafka_passes_over() -> None:
    """TransactionLogValue is flexible, so each topic may end in tagged fields: a count, then number, size and data."""
    topic_id = UUID("01234567-89ab-cdef-0123-456789abcdef")
    plain = TransactionMetadata(
        transactional_id="orders",
        producer_id=7,
        producer_epoch=3,
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        partitions=frozenset({TopicPartition("t", 1)}),
    )
    partition = "02" + "02" + b"t".hex() + "02" + "00000001"
    tagged = encode_value(replace(plain, topic_ids={"t": topic_id})).hex()
    assert partition + "00" in encode_value(plain).hex()
    assert partition + "01" + "e807" + "10" + topic_id.hex in tagged
    short = bytes.fromhex(tagged.replace("10" + topic_id.hex, "0f" + topic_id.hex[2:]))
    with pytest.raises(BadRecord, match="topic id of 15 bytes"):
        decode_value("orders", short)


def test_values_of_kafkas_first_version_are_read() -> None:
    value = bytes.fromhex(
        "0000" + "0000000000000007" + "0003" + "0000ea60" + "01"
        "00000001" + "0001" + b"t".hex() + "00000001" + "00000005" + "0000000000000006" + "0000000000000005"
    )
    found = decode_value("orders", value)
    assert (found.state, found.partitions, found.update_ms, found.start_ms) == (
        TransactionState.ONGOING,
        frozenset({("t", 5)}),
        6,
        5,
    )
    nothing = bytes.fromhex("0000" + "0000000000000007" + "0003" + "0000ea60" + "00" + "ffffffff" + "00" * 16)
    assert decode_value("orders", nothing).partitions == frozenset()


def test_an_id_without_a_transaction_has_no_partitions() -> None:
    empty = TransactionMetadata(transactional_id="t", producer_id=1, producer_epoch=0, timeout_ms=1)
    assert encode_value(empty)[17] == 0
    assert decode_value("t", encode_value(empty)) == empty


@given(TRANSACTIONS, st.data())
def test_a_damaged_record_is_named_and_never_anything_else(
    transaction: TransactionMetadata, data: st.DataObject
) -> None:
    value = bytearray(encode_value(replace(transaction, transactional_id="t")))
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(BadRecord):
        decode_value("t", bytes(value[:cut]))


def test_a_key_that_is_cut_short_is_no_other_id() -> None:
    key = encode_key("orders")
    for end in range(len(key)):
        with pytest.raises(BadRecord):
            decode_key(key[:end])


def test_a_state_that_nobody_knows_is_told() -> None:
    value = bytearray(
        encode_value(TransactionMetadata(transactional_id="t", producer_id=1, producer_epoch=0, timeout_ms=1))
    )
    value[16] = 9
    with pytest.raises(BadRecord, match="'t' cannot be read: a state of 9"):
        decode_value("t", bytes(value))


def test_records_of_unknown_kinds_are_passed_over() -> None:
    assert decode_key(b"\0\7abc") is None
