"""Is what a pipeline reads there? Asked before Spark starts, which takes seconds and hides the answer in its own."""

from headrace.client.columnar.cluster import Cluster
from headrace.client.probe import require_listener

from ..options import Topics
from .building import BOOTSTRAP
from .model import Declaration
from .vocabulary import parsed_source


def require_sources(declaration: Declaration, bootstrap: str) -> None:
    """Return if each topic that is read by name exists; ClusterUnreachable or UnknownTopic if not."""
    for source in declaration.sources:
        _require({BOOTSTRAP: bootstrap, **source.options})


def _require(options: dict[str, str]) -> None:
    require_listener(options[BOOTSTRAP])
    parsed = parsed_source(options)
    if isinstance(parsed.subscription, Topics):
        cluster = Cluster(parsed.client)
        try:
            cluster.partitions(parsed.subscription.names)
        finally:
            cluster.close()
