"""Dead letters of share groups (KIP-1191): what is written of a record that was rejected, or delivered too often.

A letter has the headers of Kafka's brokers, which tell where the record was, which group gave it up, after how many
deliveries, and why; with `errors.deadletterqueue.copy.record.enable` also the record itself: its key, its value, its
own headers, and when it was written. A record may be given up with its letter in a state of its own (ARCHIVING), which
the share coordinator keeps: so no letter is lost with its leader, though one may be written twice. Whoever reads
letters tells those from others by the place that they name.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.protocol.records import Record

PREFIX: Final = "__dlq.errors."
"""How the headers of a letter begin that tell of its record."""
REJECTED: Final = "Offset rejected by client."
DELIVERED_TOO_OFTEN: Final = "Offset delivery count exceeded the threshold."
TIMESTAMP: Final = "headrace.dlq.timestamp"
"""The header that tells when the record was written: that of the letter says when it was given up."""
OMITTED: Final = "headrace.dlq.omitted"
"""The header of a letter that is without its record although it should have it: why."""


_ABOUT: Final = (PREFIX, "headrace.dlq.")
"""Headers of letters: a record's own by such names are left out, as nobody but brokers may tell what a letter tells."""


class DeadRecord(NamedTuple):
    """A record that a share group has given up."""

    record: Record
    delivery_count: int
    reason: str
    omitted: str = ""
    """Why its letter is without it, where it should have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRecords:
    """Some that a group has given up in a partition, and where their letters go."""

    group_id: str
    topic: str
    partition: int
    letter_topic: str
    copies_records: bool
    """Whether letters have the whole record."""
    records: Sequence[DeadRecord]


def letter(dead: DeadRecord, of: DeadRecords, now_ms: int, *, omitted: str = "") -> Record:
    """The letter of a record, which it has in it unless it was `omitted`, for that reason."""
    record, delivery_count, reason, unreadable = dead
    omitted = unreadable or omitted
    copies = of.copies_records and not omitted
    about = {
        f"{PREFIX}topic": of.topic,
        f"{PREFIX}partition": str(of.partition),
        f"{PREFIX}offset": str(record.offset),
        f"{PREFIX}group": of.group_id,
        f"{PREFIX}delivery.count": str(delivery_count),
        f"{PREFIX}message": reason,
        TIMESTAMP: str(record.timestamp),
    }
    if omitted and of.copies_records:
        about[OMITTED] = omitted
    own = [each for each in record.headers if not each[0].startswith(_ABOUT)] if copies else ()
    return Record(
        0,
        now_ms,
        record.key if copies else None,
        record.value if copies else None,
        (*own, *((name, text.encode()) for name, text in about.items())),
    )


class DeadLetterStore(ABC):
    """Writes letters, wherever the partition is led that they go to."""

    @abstractmethod
    async def write(self, dead: DeadRecords) -> None:
        """Write the letters of these records; returns once they are committed. `CodedError` says why that cannot be:
        some may have been written, and all are to be tried again."""
