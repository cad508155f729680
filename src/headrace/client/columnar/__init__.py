"""Topics as Arrow columns: whole record batches off the wire and onto it, with no loop over messages in Python."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .api import read_arrow, scan_arrow, write_arrow
    from .cluster import Cluster, shared_cluster
    from .model import (
        EARLIEST,
        LATEST,
        SCHEMA,
        SCHEMA_WITH_HEADERS,
        OffsetsGone,
        Range,
        TopicPartition,
        UnknownPartition,
        UnknownTopic,
    )
    from .reader import read_ranges
    from .transaction import PreparedTransaction, finish_transaction
    from .writer import Writer

__all__ = [
    "EARLIEST",
    "LATEST",
    "SCHEMA",
    "SCHEMA_WITH_HEADERS",
    "Cluster",
    "OffsetsGone",
    "PreparedTransaction",
    "Range",
    "TopicPartition",
    "UnknownPartition",
    "UnknownTopic",
    "Writer",
    "finish_transaction",
    "read_arrow",
    "read_ranges",
    "scan_arrow",
    "shared_cluster",
    "write_arrow",
]

_HOMES: Final = {
    "Cluster": "cluster",
    "PreparedTransaction": "transaction",
    "Writer": "writer",
    "finish_transaction": "transaction",
    "read_arrow": "api",
    "read_ranges": "reader",
    "scan_arrow": "api",
    "shared_cluster": "cluster",
    "write_arrow": "api",
}
"""The modules of names that are not in `model`."""


def __getattr__(name: str) -> Any:
    """Load what is asked for, and with it pyarrow and numba, which not every user of the package has."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f".{_HOMES.get(name, 'model')}", __name__)
    except ModuleNotFoundError as error:
        if error.name not in ("pyarrow", "numba", "numpy"):
            raise
        raise ImportError(f"{name} needs {error.name}: pip install 'headrace[arrow]'") from error
    return getattr(module, name)
