"""The result of an AlterPartition request: a leader asks the active controller for another ISR."""

from typing import NamedTuple, TypeAlias

from headrace.protocol.errors import CodedError

from .image import PartitionState


class AlteredPartition(NamedTuple):
    """The partition's state as it now is, and the `min.insync.replicas` that the controller goes by."""

    state: PartitionState
    least_isr: int


AlterPartitionResult: TypeAlias = AlteredPartition | CodedError
