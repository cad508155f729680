"""Is what a pipeline reads there? Asked before Spark starts, which takes seconds and hides the answer in its own."""

from collections.abc import Mapping

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import UnknownTopic
from headrace.client.probe import require_listener

from ..sink.task import require_topic_to_write
from ..source.options import Topics
from .building import BOOTSTRAP, Problem
from .model import Declaration
from .vocabulary import parsed_source


def require_topics(declaration: Declaration, bootstrap: str) -> None:
    """Return if each topic that is read by name, or that dead letters go to, exists.

    ClusterUnreachable or UnknownTopic if not: a topic for letters that is missed only by the first of them would
    stop a pipeline in the middle of the night.
    """
    for source in declaration.sources:
        _require({BOOTSTRAP: bootstrap, **source.options}, source.dead_letter_topic)


def absent_topics(declaration: Declaration, bootstrap: str) -> list[Problem]:
    """Each source whose topics are not all there, found without making any; ClientError where brokers do not answer."""
    found: list[Problem] = []
    for source in declaration.sources:
        try:
            _require({BOOTSTRAP: bootstrap, **source.options}, letters="")
        except UnknownTopic as error:
            found.append((source.place, f"source '{source.name}': {error.message}", error))
    return found


def _require(options: Mapping[str, str], letters: str) -> None:
    require_listener(options[BOOTSTRAP])
    parsed = parsed_source(options)
    with Cluster(parsed.client) as cluster:
        if isinstance(parsed.subscription, Topics):
            cluster.partitions(parsed.subscription.names)
        if letters:
            require_topic_to_write(cluster, letters)
