"""Which replica a consumer should read from (KIP-392): one in its own rack, where the leader is not.

A leader sends consumers that say where they are to a member of the ISR near them; a follower serves what it knows to
be committed. Who is sent, and who is not, is decided here, purely.
"""

from collections.abc import Callable, Mapping
from typing import Final

from headrace.cluster.image import BrokerNode, PartitionState

NOBODY: Final = -1

EndOf = Callable[[int], int]
"""How far a follower has come, by broker; -1 where that is not known."""


def reader_for(
    rack: str,
    offset: int,
    state: PartitionState,
    brokers: Mapping[int, BrokerNode],
    end_of: EndOf,
    listener: str = "",
) -> int:
    """The broker for a consumer in a rack that is at an offset; `NOBODY` where it is best served by the leader.

    Whom it is sent to must hold the offset: one that does not would answer that there is no such offset. And it must
    have the listener that the consumer is told addresses of.
    """
    if not rack or _rack(state.leader, brokers) == rack:
        return NOBODY
    near = [r for r in state.isr if r != state.leader and _rack(r, brokers) == rack and end_of(r) >= offset]
    near = [r for r in near if brokers[r].endpoint(listener) is not None]
    return max(near, key=lambda r: (end_of(r), -r), default=NOBODY)


def _rack(broker: int, brokers: Mapping[int, BrokerNode]) -> str | None:
    """Of a broker that lives."""
    node = brokers.get(broker)
    return None if node is None else node.rack
