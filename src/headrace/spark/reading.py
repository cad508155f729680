"""A task's side: the records of one range as Arrow batches of exactly the columns that Spark expects.

What is here travels to the executors, pickled, so it holds settings and no connections: those belong to the worker
process, which keeps them from one micro-batch to the next.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headrace.client.columnar.model import OffsetsGone, Range, UnknownTopic

from . import loss
from .errors import each_plainly
from .options import SourceOptions

Fetch = Callable[[Range], Iterator[pa.RecordBatch]]
OnLoss = Callable[[str], None]


class RangeTask(InputPartition):
    """One task: a range of offsets of one partition."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(tuple(wanted))

    @property
    def wanted(self) -> Range:
        """What the task reads."""
        return Range(*self.value)


@dataclass(frozen=True, slots=True)
class Rows:
    """Reads the rows of a task as a user wants them."""

    options: SourceOptions
    columns: list[str]

    def read(self, task: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task, or none for the task that Spark makes up where there is nothing to read."""
        if not isinstance(task, RangeTask):
            return iter(())
        batches = read(self._fetch, task.wanted, self._on_loss)
        return each_plainly(batch.select(self.columns) for batch in batches)

    def _fetch(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        # Spark imports the source to find its name and its columns; only tasks need the compiled loops.
        from headrace.client.columnar.cluster import shared_cluster
        from headrace.client.columnar.reader import read_ranges

        cluster = shared_cluster(self.options.client)
        return read_ranges(
            cluster, [wanted], with_headers=self.options.with_headers, read_committed=self.options.read_committed
        )

    def _on_loss(self, message: str) -> None:
        loss.report([message], fail=self.options.fail_on_data_loss)


def read(fetch: Fetch, wanted: Range, on_loss: OnLoss) -> Iterator[pa.RecordBatch]:
    """All records of a range. `on_loss` hears what is no longer there; if it lets it pass, what is there is read.

    A worker may remember a topic that was deleted and made anew before the range was planned; the client tells the two
    apart and refuses. It is asked once more then, since it knows the new topic by now.
    """
    may_ask_again = True
    while wanted.start < wanted.end:
        try:
            for batch in fetch(wanted):
                may_ask_again = False
                yield batch
            return
        except UnknownTopic as error:
            on_loss(error.message)
            return
        except OffsetsGone as error:
            if may_ask_again and error.earliest <= wanted.start and wanted.end <= error.latest:
                may_ask_again = False
                continue
            on_loss(error.message)
            wanted = _left(wanted, error)


def _left(wanted: Range, gone: OffsetsGone) -> Range:
    """What is still to be read and still there; nothing if the log ends before it."""
    begin = gone.earliest if gone.offset < gone.earliest else wanted.end
    return wanted._replace(start=begin)
