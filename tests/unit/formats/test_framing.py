"""What stands before a value that a registry's serializer wrote."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.framing import NO_HEAD, Framed, Head, confluent
from headrace.formats.payload import payload_of_rows

HEAD = b"\0\0\0\0\7"


def values(framed: Framed) -> list[bytes | None]:
    payload = framed.payload
    return [payload.row(row) if payload.present[row] else None for row in range(payload.rows)]


def heads(framed: Framed) -> list[Head | None]:
    return [None if number == NO_HEAD else framed.heads[number] for number in framed.which.tolist()]


@given(st.lists(st.none() | st.tuples(st.integers(0, 2**32 - 1) | st.just(7), st.binary(max_size=20)), max_size=6))
def test_the_head_is_taken_off_every_value_and_off_nothing_else(rows: list[tuple[int, bytes] | None]) -> None:
    framed = confluent(
        payload_of_rows([None if row is None else b"\0" + row[0].to_bytes(4, "big") + row[1] for row in rows])
    )
    assert values(framed) == [row and row[1] for row in rows]
    assert heads(framed) == [row and Head(row[0]) for row in rows]
    assert framed.errors == {}
    assert len(set(framed.heads)) == len(framed.heads)


def test_a_value_without_a_head_is_bad_and_a_tombstone_is_not() -> None:
    framed = confluent(payload_of_rows([HEAD, None, b"", b"\0\0\0\0", b"\1\0\0\0\7x", b'{"id": 1}']))
    assert set(framed.errors) == {2, 3, 4, 5}
    assert "framing=confluent" in framed.errors[2]
    assert heads(framed) == [Head(7), *[None] * 5]


def test_no_values_are_no_trouble() -> None:
    assert values(confluent(payload_of_rows([]))) == []
    assert values(confluent(payload_of_rows([None]), has_indexes=True)) == [None]


def test_rows_that_were_picked_have_their_own_heads() -> None:
    picked = payload_of_rows([HEAD + b"a", None, b"\0\0\0\0\1b"]).rows_at(np.array([2, 1]))
    assert heads(confluent(picked)) == [Head(1), None]


def test_protobuf_has_the_path_of_its_message_type_behind_the_head() -> None:
    rows: list[bytes | None] = [HEAD + b"\0abc", HEAD + b"\2\0abc", HEAD + b"\4\2\6abc", HEAD + b"\0", None]
    framed = confluent(payload_of_rows(rows), has_indexes=True)
    assert values(framed) == [b"abc", b"abc", b"abc", b"", None]
    assert heads(framed) == [Head(7, (0,)), Head(7, (0,)), Head(7, (1, 3)), Head(7, (0,)), None]
    assert framed.errors == {}


def test_a_path_that_is_cut_short_or_negative_is_bad() -> None:
    rows: list[bytes | None] = [HEAD, HEAD + b"\4\2", HEAD + b"\1", HEAD + b"\xff" * 12, b"x"]
    framed = confluent(payload_of_rows(rows), has_indexes=True)
    assert values(framed) == [None] * 5
    assert set(framed.errors) == {0, 1, 2, 3, 4}
