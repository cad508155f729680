"""Feature levels: which formats the brokers of a cluster use, between each other and in the metadata store.

A level is a number for all of it together: the messages of `protocol.peer`, replication (`protocol.replicate`), and the
records in the store. A broker speaks a range of levels and says which with its registration and on each link. The
cluster has a finalized level (`cluster.feature_level`), which an operator raises once every broker speaks it; a broker
that does not speak it is no member. On a link brokers use the finalized level, or less where the other end speaks less;
each request tells it in its version, and is answered in the same, so that a raise needs no new links.

Level 1 is all that there was before levels: brokers that tell none speak that one. A new level is a new row:

    level  what it brought
    1      the first formats
"""

from typing import Any, Final, NamedTuple


class LevelRange(NamedTuple):
    """The levels that a broker speaks, both ends included."""

    min: int
    max: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.min <= level <= self.max

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min} to {self.max}"

    @classmethod
    def read(cls, values: Any) -> "LevelRange":
        """What a broker has told; one that tells nothing is of before there were levels. `ValueError` for nonsense."""
        if values is None:
            return BEFORE_LEVELS
        if not isinstance(values, list | tuple) or len(values) != 2 or not all(type(v) is int for v in values):
            raise ValueError(f"{values!r} is no range of feature levels")
        return cls(*values)


FIRST: Final = 1
BEFORE_LEVELS: Final = LevelRange(FIRST, FIRST)
"""Of brokers that were made before there were levels."""
SUPPORTED: Final = LevelRange(FIRST, 1)
"""What this program speaks."""


def version_of(level: int) -> int:
    """The version in the head of requests between brokers. Before there were levels it was 0."""
    return level - FIRST


def level_of(version: int) -> int:
    """The level that a request of a broker was made in."""
    return version + FIRST
