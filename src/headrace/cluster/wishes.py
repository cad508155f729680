"""What a leader is told of the ISR that it wished for."""

from typing import NamedTuple, TypeAlias

from headrace.protocol.errors import CodedError

from .image import PartitionState


class Granted(NamedTuple):
    """The partition's state as it now is, and the least ISR (`min.insync.replicas`) that the controller judges by."""

    state: PartitionState
    least_isr: int


Outcome: TypeAlias = Granted | CodedError
