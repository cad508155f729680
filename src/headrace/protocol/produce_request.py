"""A Produce request as a client sends it, by hand: the record batches stay where they are, between heads of ours.

Versions 3-12. From 9 on lengths are varints and structs end in tagged fields.
"""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

from .encode import write_count, write_text, write_topic, write_uvarint
from .produce import FIRST_FLEXIBLE

Buffer = bytes | bytearray | memoryview

_ACKS_TIMEOUT: Final = Struct(">hi")
_I32: Final = Struct(">i")


def produce_parts(
    version: int,
    topics: Mapping[str, Sequence[tuple[int, Buffer]]],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> list[Buffer]:
    """The body as parts to send one after the other; a partition stands with its one record batch."""
    flexible = version >= FIRST_FLEXIBLE
    parts: list[Buffer] = []
    run = bytearray()
    write_text(run, transactional_id, flexible)
    run += _ACKS_TIMEOUT.pack(acks, timeout_ms)
    write_count(run, len(topics), flexible)
    for topic, partitions in topics.items():
        write_topic(run, topic, None, by_id=False, flexible=flexible)
        write_count(run, len(partitions), flexible)
        for index, batch in partitions:
            run += _I32.pack(index)
            if flexible:
                write_uvarint(run, len(batch) + 1)
            else:
                run += _I32.pack(len(batch))
            parts += (run, batch)
            run = bytearray(b"\0") if flexible else bytearray()
        run += b"\0" if flexible else b""
    run += b"\0" if flexible else b""
    parts.append(run)
    return parts
