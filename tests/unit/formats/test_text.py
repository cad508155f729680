"""Values that are text."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.payload import payload_of_rows
from headrace.formats.text import StringCodec


@given(st.lists(st.none() | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary()))
def test_a_value_is_text_exactly_if_it_is_utf8(rows: list[bytes | None]) -> None:
    found = StringCodec().decode(payload_of_rows(rows))
    found.values.validate(full=True)
    expected = {}
    for place, row in enumerate(rows):
        try:
            expected[place] = None if row is None else row.decode()
        except UnicodeDecodeError:
            expected[place] = None
            assert found.errors.pop(place) == "not UTF-8"
    assert found.errors == {}
    assert found.values.to_pylist() == list(expected.values())
