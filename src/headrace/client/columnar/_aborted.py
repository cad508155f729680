"""Which batches belong to transactions that were aborted.

An aborted transaction begins at a known offset and ends with its producer's abort marker. What the producer wrote in
between is left out. Fetch names the aborted transactions of the range it answers for, so nothing of this needs to be
remembered from one fetch to the next.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ...protocol.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from ...protocol.errors import CodedError
from ...protocol.records import decode_marker
from . import _decoding as kernels
from ._damage import BadBatch
from ._heads import Table

_WHAT_COUNTS = [kernels.PRODUCER, kernels.LAST_OFFSET, kernels.ATTRIBUTES]


def aborted(
    heads: Table, transactions: Sequence[tuple[int, int]], batch_of: Callable[[int], memoryview]
) -> npt.NDArray[np.bool_]:
    """For each batch, whether it was aborted. `transactions` are (producer_id, first_offset); `batch_of` gives the
    bytes of a row, which are asked for where it is a marker.
    """
    hidden = np.zeros(len(heads), np.bool_)
    waiting = sorted(transactions, key=lambda transaction: transaction[1], reverse=True)
    producers = {producer for producer, _ in transactions}
    suspects = np.flatnonzero(np.isin(heads[:, kernels.PRODUCER], list(producers)))
    under_way: set[int] = set()
    for row, (producer, last_offset, attributes) in zip(
        suspects.tolist(), heads[suspects][:, _WHAT_COUNTS].tolist(), strict=True
    ):
        while waiting and waiting[-1][1] <= last_offset:
            under_way.add(waiting.pop()[0])
        if producer not in under_way:
            continue
        if not attributes & CONTROL_BIT:
            hidden[row] = bool(attributes & TRANSACTIONAL_BIT)
        elif _is_abort_marker(batch_of(row), int(heads[row, kernels.BASE_OFFSET])):
            under_way.discard(producer)
    return hidden


def _is_abort_marker(batch: memoryview, offset: int) -> bool:
    try:
        marker = decode_marker(batch)
    except (CodedError, ValueError) as error:
        raise BadBatch(f"a control batch cannot be read: {error}", offset) from error
    return marker is not None and not marker.committed
