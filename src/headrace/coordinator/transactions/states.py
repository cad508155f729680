"""The states of a transactional id, and the table of what leads from one to the next.

Once a transaction is prepared its outcome is decided for ever: from there only its markers are written, and the
complete state of the same outcome follows. The decisions are in `transactions.decisions`; whatever they decide, they
move only along this table, and docs are drawn from it.
"""

from enum import Enum
from typing import Final


class TransactionState(Enum):
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


TRANSITIONS: Final[dict[tuple[TransactionState, Event], TransactionState]] = {
    (TransactionState.EMPTY, Event.INIT): TransactionState.EMPTY,
    (TransactionState.COMPLETE_COMMIT, Event.INIT): TransactionState.EMPTY,
    (TransactionState.COMPLETE_ABORT, Event.INIT): TransactionState.EMPTY,
    (TransactionState.EMPTY, Event.ADD): TransactionState.ONGOING,
    (TransactionState.ONGOING, Event.ADD): TransactionState.ONGOING,
    (TransactionState.COMPLETE_COMMIT, Event.ADD): TransactionState.ONGOING,
    (TransactionState.COMPLETE_ABORT, Event.ADD): TransactionState.ONGOING,
    (TransactionState.ONGOING, Event.COMMIT): TransactionState.PREPARE_COMMIT,
    (TransactionState.ONGOING, Event.ABORT): TransactionState.PREPARE_ABORT,
    (TransactionState.EMPTY, Event.ABORT): TransactionState.PREPARE_ABORT,
    (TransactionState.COMPLETE_COMMIT, Event.ABORT): TransactionState.PREPARE_ABORT,
    (TransactionState.COMPLETE_ABORT, Event.ABORT): TransactionState.PREPARE_ABORT,
    (TransactionState.ONGOING, Event.FENCE): TransactionState.PREPARE_EPOCH_FENCE,
    (TransactionState.PREPARE_EPOCH_FENCE, Event.ABORT): TransactionState.PREPARE_ABORT,
    (TransactionState.PREPARE_COMMIT, Event.MARKERS_WRITTEN): TransactionState.COMPLETE_COMMIT,
    (TransactionState.PREPARE_ABORT, Event.MARKERS_WRITTEN): TransactionState.COMPLETE_ABORT,
    (TransactionState.EMPTY, Event.EXPIRE): TransactionState.DEAD,
    (TransactionState.COMPLETE_COMMIT, Event.EXPIRE): TransactionState.DEAD,
    (TransactionState.COMPLETE_ABORT, Event.EXPIRE): TransactionState.DEAD,
}
"""An abort of nothing is taken only from producers of the newer protocol, which cannot know whether anything of theirs
was added; see `decisions.end`."""

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The outcome is decided, and not everyone knows it."""
RESTING: Final = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
"""Nothing is open."""
