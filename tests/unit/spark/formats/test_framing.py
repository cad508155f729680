"""What stands before a value that a registry's serializer wrote."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.spark.formats.framing import Unframed, confluent, confluent_protobuf
from headrace.spark.formats.payload import payload_of_rows

HEAD = b"\0\0\0\0\7"


def values(unframed: Unframed) -> list[bytes | None]:
    payload, _ = unframed
    return [payload.row(row) if payload.present[row] else None for row in range(payload.rows)]


@given(st.lists(st.none() | st.binary(max_size=20), max_size=6))
def test_the_head_is_taken_off_every_value_and_off_nothing_else(rows: list[bytes | None]) -> None:
    unframed = confluent(payload_of_rows([None if row is None else HEAD + row for row in rows]))
    assert values(unframed) == rows
    assert unframed[1] == {}


def test_a_value_without_a_head_is_bad_and_a_tombstone_is_not() -> None:
    _, errors = confluent(payload_of_rows([HEAD, None, b"", b"\0\0\0\0", b"\1\0\0\0\7x", b'{"id": 1}']))
    assert set(errors) == {2, 3, 4, 5}
    assert "framing=confluent" in errors[2]


def test_no_values_are_no_trouble() -> None:
    assert values(confluent(payload_of_rows([]))) == []
    assert values(confluent_protobuf(payload_of_rows([None]))) == [None]


def test_protobuf_has_the_path_of_its_message_type_behind_the_head() -> None:
    framed = [HEAD + b"\0abc", HEAD + b"\2\0abc", HEAD + b"\4\2\6abc", HEAD + b"\0", None]
    unframed = confluent_protobuf(payload_of_rows(list(framed)))
    assert values(unframed) == [b"abc", b"abc", b"abc", b"", None]
    assert unframed[1] == {}


def test_a_path_that_is_cut_short_or_negative_is_bad() -> None:
    unframed = confluent_protobuf(payload_of_rows([HEAD, HEAD + b"\4\2", HEAD + b"\1", HEAD + b"\xff" * 12, b"x"]))
    assert values(unframed) == [None] * 5
    assert set(unframed[1]) == {0, 1, 2, 3, 4}
