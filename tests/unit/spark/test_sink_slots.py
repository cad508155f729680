"""A slot is one attempt's alone while it writes, and another's after it."""

import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from headrace.spark.sink.slots import TaskSlots

HOLDER = """
import sys
from pathlib import Path
from headrace.spark.sink.slots import TaskSlots
with TaskSlots(Path(sys.argv[1])).lease("-0", list) as slot:
    print(slot, flush=True)
    sys.stdin.read()
"""


def test_attempts_at_the_same_time_have_slots_of_their_own(tmp_path: Path) -> None:
    slots = TaskSlots(tmp_path)
    with slots.lease("-0", list) as one, slots.lease("-0", list) as other:
        assert one != other


def test_a_slot_is_used_again(tmp_path: Path) -> None:
    slots = TaskSlots(tmp_path / "made" / "when needed")
    with slots.lease("-0", list) as first:
        pass
    with slots.lease("-0", list) as second:
        assert second == first


def test_a_slot_with_an_open_transaction_is_passed_over(tmp_path: Path) -> None:
    slots = TaskSlots(tmp_path)
    with slots.lease("-0", list) as first:
        pass
    with slots.lease("-0", lambda _: []) as second:
        assert second != first


def test_a_slot_that_was_taken_and_left_open_between_two_looks_is_passed_over(tmp_path: Path) -> None:
    slots = TaskSlots(tmp_path)
    with slots.lease("-0", list) as first:
        pass
    looks = []

    def are_free(known: Collection[str]) -> list[str]:
        looks.append(known)
        return list(known) if len(looks) == 1 else []

    with slots.lease("-0", are_free) as second:
        assert second != first
    assert len(looks) == 2


def test_a_process_that_is_paused_keeps_its_slot_and_one_that_dies_loses_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        theirs = holder.stdout.readline().strip()
        os.kill(holder.pid, signal.SIGSTOP)
        with TaskSlots(tmp_path).lease("-0", list) as ours:
            assert ours != theirs
        (tmp_path / ours.removesuffix("-0")).unlink()
    finally:
        holder.kill()
        holder.communicate()
    with TaskSlots(tmp_path).lease("-0", list) as ours:
        assert ours == theirs


def test_where_no_file_can_be_made_each_attempt_has_a_slot_that_nobody_uses_again(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    slots = TaskSlots(tmp_path / "file" / "directory")
    with slots.lease("-0", list) as first:
        pass
    with slots.lease("-0", list) as second:
        assert second != first
