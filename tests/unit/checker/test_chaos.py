"""The parts of `make chaos` hold every test that is marked long."""

from pathlib import Path

from tests.chaos import PARTS

TESTS = Path(__file__).parents[2]


def test_every_long_test_is_in_a_part() -> None:
    named = [TESTS.parent / word for command in PARTS.values() for word in command if word.startswith("tests/")]
    long = [path for path in TESTS.rglob("test_*.py") if "mark.long" in path.read_text() and path != Path(__file__)]
    missing = [path for path in long if not any(path.is_relative_to(each) for each in named)]
    assert long
    assert not missing, f"to be added to tests/chaos.py: {missing}"


def test_every_file_of_a_part_is_there() -> None:
    for command in PARTS.values():
        for word in command:
            assert not word.startswith("tests/") or (TESTS.parent / word).exists(), word
