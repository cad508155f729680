"""An archive without Spark, in a process of its own, to be killed: `python -m tests.support.faults.archiver JSON`.

It does what Spark's driver and workers do, batch after batch, each written by two workers after one another. A batch
begins where a note beside the tables says, which is written after the commit: so a batch that was cut off is tried
again, with the same offsets or with more.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.client.columnar import Cluster
from headrace.client.columnar.model import LATEST, Range, TopicPartition
from headrace.client.columnar.reader import read_ranges
from headrace.lake.archiving import Archive, ArchiveOptions, TopicBatch
from headrace.lake.opening import Lake
from headrace.lake.values import decoder_for_topic
from headrace.lake.writing import LakeWriter, TopicResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiverTask:
    bootstrap: str
    topic: str
    path: str
    format: str
    note: str
    schema: str
    mode: str = "append"


def main() -> None:
    task = ArchiverTask(**json.loads(sys.argv[1]))
    values = {"format": "json", "schema": task.schema}
    options = ArchiveOptions(
        lake=Lake(path=task.path, format=task.format), mode=task.mode, compact_every=3, file_bytes=1 << 20
    )
    archive = Archive(options=options, decoders=lambda topic: decoder_for_topic(topic, values))
    note = Path(task.note)
    with Cluster({"bootstrap.servers": task.bootstrap}) as cluster:
        while True:
            start = {int(one): end for one, end in json.loads(note.read_text()).items()} if note.exists() else {}
            end = ends(cluster, task.topic)
            if start == end:
                sys.stdout.write("all\n")
                sys.stdout.flush()
                return
            add(archive, cluster, task.topic, start, end)
            new = note.with_suffix(".new")
            new.write_text(json.dumps(end))
            new.replace(note)
            sys.stdout.write("batch\n")
            sys.stdout.flush()


def ends(cluster: Cluster, topic: str) -> dict[int, int]:
    partitions = [TopicPartition(topic, number) for number in range(cluster.partitions([topic])[topic])]
    return {where.partition: end or 0 for where, end in cluster.offsets(dict.fromkeys(partitions, LATEST)).items()}


def add(archive: Archive, cluster: Cluster, topic: str, start: dict[int, int], end: dict[int, int]) -> None:
    ranges = {number: (start.get(number, 0), stop) for number, stop in end.items()}

    def execute(tasks: Any) -> list[TopicResult]:
        results: list[TopicResult] = []
        for half in (0, 1):
            writer = LakeWriter(tasks)
            part = [Range(topic, number, *span) for number, span in ranges.items() if number % 2 == half]
            for batch in read_ranges(cluster, part, with_headers=True):
                writer.write(batch)
            results += writer.finish()
        return results

    archive.add([TopicBatch(topic=topic, ranges=ranges)], execute)


if __name__ == "__main__":
    main()
