"""Topics in Spark: a data source and a sink of Arrow batches, tables, and the pipelines declared on them."""

from typing import TYPE_CHECKING, Any

from .registration import RegistrationError, register

if TYPE_CHECKING:
    from .tables import register_topics

__all__ = ["RegistrationError", "register", "register_topics"]


def __getattr__(name: str) -> Any:
    """Load what looks at topics; workers, which load the rest, have no use for it."""
    if name != "register_topics":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .tables import register_topics

    return register_topics
