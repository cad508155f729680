"""An archive as a declared pipeline: one source of all its topics, one sink."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from headrace.client.columnar.api import Bound, resolved
from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import EARLIEST, TopicPartition
from headrace.lake.opening import Lake
from headrace.lake.places import is_object_store, local_path

from ..pipeline.authoring import node_of
from ..pipeline.document import DocumentPosition, InvalidPipeline
from ..pipeline.model import Declaration
from ..pipeline.reading import read_declaration
from ..source.offsets import to_spark

SOURCE: Final = "records"
SINK: Final = "tables"
_COMMAND: Final = DocumentPosition("archive", 0)


def archive_name(topics: Sequence[str]) -> str:
    """What an archive of these topics is called; its checkpoint, too."""
    if len(topics) == 1:
        return f"archive-{topics[0]}"
    digest = sha256(",".join(sorted(topics)).encode()).hexdigest()[:8]
    return f"archive-{len(topics)}-topics-{digest}"


def archive_document(
    topics: Sequence[str], path: str, source: Mapping[str, str], sink: Mapping[str, Any], every: str | None
) -> dict[str, Any]:
    """The archive as a YAML file has it."""
    return {
        "name": archive_name(topics),
        **({"trigger": every} if every else {}),
        "sources": {SOURCE: {"topics": list(topics), **source}},
        "sinks": {SINK: {"from": SOURCE, "archive": path if is_object_store(path) else str(local_path(path)), **sink}},
    }


def declared(document: Mapping[str, Any], path: str) -> Declaration:
    """The pipeline that a document declares; InvalidPipeline with its mistakes, which have no lines.

    Its checkpoint is in the directory of the tables where that is this machine's. It may be lost: the tables know which
    offsets they have.
    """
    directory = Path.cwd() if is_object_store(path) else local_path(path)
    try:
        return read_declaration(node_of(dict(document), _COMMAND), directory / "archive.yaml")
    except InvalidPipeline as error:
        raise InvalidPipeline([one.removeprefix(f"{_COMMAND}: ") for one in error.problems]) from error


def starting_offsets(lake: Lake, topics: Sequence[str], cluster: Cluster, start: Bound | None = None) -> str | None:
    """Where an archive without a checkpoint goes on: behind what its tables have, at `start` where they have nothing;
    None where that is the beginning of them all.
    """
    tables = {topic: lake.table(topic).snapshot() for topic in topics}
    partitions = [
        TopicPartition(topic, number) for topic, count in cluster.partitions(topics).items() for number in range(count)
    ]
    known = {
        where: end
        for where in partitions
        if (snapshot := tables[where.topic]) is not None and (end := snapshot.state.end(where.partition)) is not None
    }
    if not known and start is None:
        return None
    begin = dict.fromkeys(partitions, EARLIEST) if start is None else resolved(cluster, partitions, start, "--from")
    return json.dumps(to_spark({**begin, **known}), separators=(",", ":"))
