"""Rows to partitions: by the rule of Kafka's Java client, so that keys land alike from every language."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..errors import ClientError


def partitions_of(keys: pa.Array, count: int, sticky: int) -> npt.NDArray[np.int32]:
    """The partition out of `count` of each key (binary or strings); `sticky` where the key is null."""
    from ._encode_kernels import choose_partitions
    from ._inputs import binary_input

    if count < 1:
        raise ValueError(f"a topic has at least one partition, not {count}")
    chosen = np.empty(len(keys), np.int32)
    choose_partitions(binary_input(keys, "key"), count, sticky, chosen)
    return chosen


def split_by_partition(
    rows: pa.RecordBatch, partitions: npt.NDArray[np.int32], count: int
) -> dict[int, pa.RecordBatch]:
    """The rows of each partition that has any, in their order; `ClientError` for a partition that is not there."""
    from ._encode_kernels import order_by_partition

    starts = np.zeros(count + 1, np.int64)
    order = np.empty(len(partitions), np.int64)
    wrong = order_by_partition(_read_only(partitions), starts, order)
    if wrong >= 0:
        raise ClientError(
            f"there is no partition {partitions[wrong]}, the topic has {count}, numbered from 0 on", "_INVALID_ARG"
        )
    filled = np.flatnonzero(np.diff(starts))
    if len(filled) == 1:
        return {int(filled[0]): rows}
    sorted_rows = rows.take(pa.array(order))
    return {int(n): sorted_rows.slice(starts[n], starts[n + 1] - starts[n]) for n in filled}


def _read_only(partitions: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    view = np.ascontiguousarray(partitions, np.int32).view()
    view.flags.writeable = False
    return view
