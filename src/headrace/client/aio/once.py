"""Publishing once per idempotency key, with nothing remembered outside the log.

A broker remembers, for each producer id, the sequence numbers of what it wrote last, on every replica, and answers a
repeated batch with the offset of the first. So each key gets a producer id of its own: a hash of who writes where under
which key, the same on every gateway. It stands in the upper half of the ids, which brokers, who count from 0, never
give to anybody, and which ours remember for `headrace.idempotency.key.expiration.ms`: as there are many keys, an hour.

The sequence number of its one batch is a hash of what is written. A broker takes any number from a producer that it
does not know, so the first write is taken whatever it says; a retry repeats the number and is recognized; another
body under the same key has another number, which is out of order: that is how a key used twice is found out.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from headrace.protocol.batch import FIRST_KEY_PRODUCER
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records import Record

from ..core.transactions import ProducerId
from .producer import Identity

_LOWER_BITS: Final = FIRST_KEY_PRODUCER - 1
_SEQUENCE_BITS: Final = (1 << 30) - 1
USED_FOR_ANOTHER: Final = frozenset(
    {ErrorCode.out_of_order_sequence_number, ErrorCode.duplicate_sequence_number, ErrorCode.invalid_producer_epoch}
)
"""What a broker says when a key comes again with another body."""


def identity(cluster_id: str, principal: str, topic: str, key: str, records: Sequence[Record]) -> Identity:
    """The identity of the one batch that a key writes to a partition."""
    name = "\0".join((cluster_id, principal, topic, key)).encode()
    digest = hashlib.blake2b(name, digest_size=8, person=b"headrace-once").digest()
    producer_id = FIRST_KEY_PRODUCER | int.from_bytes(digest, "big") & _LOWER_BITS
    return Identity(ProducerId(producer_id, 0), fingerprint(records))


def fingerprint(records: Sequence[Record]) -> int:
    """A number for what records hold; their offsets and times do not count."""
    state = hashlib.blake2b(digest_size=8)
    for record in records:
        for part in (record.key, record.value, *(p for k, v in record.headers for p in (k.encode(), v))):
            state.update(b"-" if part is None else b"%d:" % len(part) + part)
        state.update(b";")
    return int.from_bytes(state.digest(), "big") & _SEQUENCE_BITS


def partition_of(key: str, partitions: int) -> int:
    """Where records without a key of their own go: the same partition at every retry."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % partitions
