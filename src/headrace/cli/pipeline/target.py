"""The cluster that keeps deployed pipelines, for the commands about them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.client.properties import for_columnar

from ..client_options import resolve_target

if TYPE_CHECKING:
    from headrace.client.columnar.cluster import Cluster


def client_settings(bootstrap: str, properties: list[str] | None) -> dict[str, str]:
    """Settings of the columnar client, of all that says where to connect and as whom."""
    target = resolve_target(bootstrap, properties)
    return {**for_columnar(target.settings), "bootstrap.servers": target.bootstrap}


@contextmanager
def opened_cluster(bootstrap: str, properties: list[str] | None) -> "Iterator[Cluster]":
    """A client of it; ClusterUnreachable at once where nobody listens."""
    from headrace.client.columnar.cluster import Cluster
    from headrace.client.probe import require_listener

    settings = client_settings(bootstrap, properties)
    require_listener(settings["bootstrap.servers"])
    with Cluster({"default.api.timeout.ms": "15000", **settings}) as cluster:
        yield cluster
