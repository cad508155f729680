"""The loops as plain Python, with every access to memory checked: compiled, they check none.

Run as a program; it tries examples of the property tests and fails at the first access out of bounds.
"""

import os
from typing import Any

os.environ["NUMBA_DISABLE_JIT"] = "1"

import numpy as np

from headrace.spark.formats import machine


class Memory:
    """What a pointer points to."""

    def __init__(self, array: Any) -> None:
        self.cells = array.reshape(-1)

    def __getitem__(self, place: Any) -> Any:
        found = self.cells[self.within(place, 1)]
        return np.int64(found) if found.dtype.itemsize == 1 else found

    def __setitem__(self, place: Any, value: Any) -> None:
        self.cells[self.within(place, 1)] = value

    def within(self, place: Any, size: Any) -> int:
        """The place, if so many cells are there."""
        if size and not 0 <= place <= len(self.cells) - size:
            raise AssertionError(f"{size} at {place} of {len(self.cells)}")
        return int(place)


def _eight_bytes(data: Memory, pos: Any) -> Any:
    start = data.within(pos, 8)
    return np.frombuffer(data.cells[start : start + 8].tobytes(), np.uint64)[0]


def _low_zeros(bits: Any) -> Any:
    number = int(bits)
    return np.uint64((number & -number).bit_length() - 1 if number else 64)


def _copy(target: Memory, to: Any, source: Memory, start: Any, size: Any) -> None:
    to, start = target.within(to, size), source.within(start, size)
    target.cells[to : to + size] = source.cells[start : start + size]


machine.pointer, machine.eight_bytes, machine.low_zeros, machine.copy = Memory, _eight_bytes, _low_zeros, _copy


def main() -> None:
    """Run the property tests on checked memory."""
    from tests import conftest  # noqa: F401 - its settings

    from . import test_avro, test_avro_resolution, test_json, test_protobuf, test_protobuf_resolution

    with np.errstate(over="ignore"):
        test_json.test_the_loop_reads_what_the_reader_of_single_records_reads(zone="Europe/Paris")
        test_avro.test_records_of_any_schema_are_read_as_they_were_written()
        test_avro_resolution.test_records_are_resolved_as_fastavro_resolves_them()
        test_avro_resolution.test_any_bytes_are_a_record_or_bad()
        test_avro_resolution.test_a_recursive_field_that_the_reader_does_not_have_is_passed_over()
        test_protobuf_resolution.test_a_message_is_bad_or_all_of_its_values_are_those_that_were_written()
        test_protobuf.test_messages_are_read_as_the_library_wrote_them()
        test_protobuf.test_damaged_messages_are_bad_exactly_where_the_library_refuses_them()


if __name__ == "__main__":
    main()
