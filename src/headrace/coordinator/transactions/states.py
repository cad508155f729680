"""The states of a transactional id, and the table of what leads from one to the next.

Once a transaction is prepared its outcome is decided for ever: from there only its markers are written, and the
complete state of the same outcome follows. The decisions are in `transactions.decisions`; whatever they decide, they
move only along this table, and docs are drawn from it.
"""

from enum import Enum
from typing import Final


class State(Enum):
    """Kafka's names, as DescribeTransactions shows them."""

    EMPTY = "Empty"
    """The id has a producer, which has begun nothing."""
    ONGOING = "Ongoing"
    """Partitions were added; the producer writes to them."""
    PREPARE_COMMIT = "PrepareCommit"
    """Committed for ever; its markers are being written."""
    PREPARE_ABORT = "PrepareAbort"
    """Aborted for ever; its markers are being written."""
    COMPLETE_COMMIT = "CompleteCommit"
    """Every partition knows that it was committed."""
    COMPLETE_ABORT = "CompleteAbort"
    """Every partition knows that it was aborted."""
    DEAD = "Dead"
    """The id has expired and is forgotten."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """The producer is shut out, by a new one or by the timeout, and its transaction is to be aborted. Passed through
    within one decision, never stored."""


class Event(Enum):
    """What moves a transactional id."""

    INIT = "a producer takes the id"
    ADD = "partitions are added"
    COMMIT = "the producer commits"
    ABORT = "the producer aborts"
    FENCE = "a new producer comes, or the time is over"
    MARKERS_WRITTEN = "every partition has its marker"
    EXPIRE = "the id was not used for long"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.EMPTY, Event.INIT): State.EMPTY,
    (State.COMPLETE_COMMIT, Event.INIT): State.EMPTY,
    (State.COMPLETE_ABORT, Event.INIT): State.EMPTY,
    (State.EMPTY, Event.ADD): State.ONGOING,
    (State.ONGOING, Event.ADD): State.ONGOING,
    (State.COMPLETE_COMMIT, Event.ADD): State.ONGOING,
    (State.COMPLETE_ABORT, Event.ADD): State.ONGOING,
    (State.ONGOING, Event.COMMIT): State.PREPARE_COMMIT,
    (State.ONGOING, Event.ABORT): State.PREPARE_ABORT,
    (State.EMPTY, Event.ABORT): State.PREPARE_ABORT,
    (State.COMPLETE_COMMIT, Event.ABORT): State.PREPARE_ABORT,
    (State.COMPLETE_ABORT, Event.ABORT): State.PREPARE_ABORT,
    (State.ONGOING, Event.FENCE): State.PREPARE_EPOCH_FENCE,
    (State.PREPARE_EPOCH_FENCE, Event.ABORT): State.PREPARE_ABORT,
    (State.PREPARE_COMMIT, Event.MARKERS_WRITTEN): State.COMPLETE_COMMIT,
    (State.PREPARE_ABORT, Event.MARKERS_WRITTEN): State.COMPLETE_ABORT,
    (State.EMPTY, Event.EXPIRE): State.DEAD,
    (State.COMPLETE_COMMIT, Event.EXPIRE): State.DEAD,
    (State.COMPLETE_ABORT, Event.EXPIRE): State.DEAD,
}
"""An abort of nothing is taken only from producers of the newer protocol, which cannot know whether anything of theirs
was added; see `decisions.end`."""

PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
"""The outcome is decided, and not everyone knows it."""
RESTING: Final = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
"""Nothing is open."""
