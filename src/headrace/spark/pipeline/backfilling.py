"""Running a backfill: its queries until they have come to their end, then its archives, a range at a time."""

from dataclasses import replace
from typing import Any

from headrace.client.columnar.cluster import Cluster
from headrace.lake.errors import LakeError
from headrace.lake.places import is_object_store

from ..archive.backfill import backfill as backfill_archive
from .backfill import BadBackfill, Plan, archive_source, archives, bounded, with_queries
from .building import BOOTSTRAP
from .failures import PipelineFailed, cause_of
from .lease import Leases
from .model import Declaration, Source
from .paths import PipelinePaths
from .progress import SinkProgress
from .run import RunOptions, RunView, in_order_of, in_session, run_with
from .vocabulary import client_of


def run_backfill(declaration: Declaration, plan: Plan, options: RunOptions, view: RunView) -> list[SinkProgress]:
    """Run until all of the plan is written, or a stop is asked for; the last progress of each sink.

    `declaration` is what `backfill.chosen` made. Fails as `run` does.
    """
    whole = bounded(declaration, plan)
    if options.spark.is_connect:
        _require_shared(whole)

    def work(spark: Any, paths: PipelinePaths, lease: Leases | None) -> list[SinkProgress]:
        return run_backfill_with(spark, whole, plan, paths, options, view, lease)

    return in_session(whole, options, view, work)


def run_backfill_with(
    spark: Any,
    declaration: Declaration,
    plan: Plan,
    paths: PipelinePaths,
    options: RunOptions,
    view: RunView,
    lease: Leases | None = None,
) -> list[SinkProgress]:
    """The same in a session that is there already; `declaration` is bounded by the plan."""
    queries = with_queries(declaration)
    found: list[SinkProgress] = []
    if queries is not None:
        found = run_with(spark, queries, paths, replace(options, once=True), view, lease)
    if not options.stop.is_set():
        found = [*found, *_run_archives(spark, declaration, plan, options, view)]
    return in_order_of(declaration, found)


def _require_shared(declaration: Declaration) -> None:
    """BadBackfill where workers of a server would write files to their machine, and this one commit them to its own."""
    for sink, output in archives(declaration):
        if not is_object_store(output.options.lake.path):
            raise BadBackfill(
                f"sink '{sink.name}' has its tables in {output.options.lake.path}, which the server of Spark Connect "
                "does not share with this machine: run it without --remote, or keep the tables in an object store"
            )


def _run_archives(
    spark: Any, declaration: Declaration, plan: Plan, options: RunOptions, view: RunView
) -> list[SinkProgress]:
    sources = {source.name: source for source in declaration.sources}
    found = []
    for sink, output in archives(declaration):
        progress = SinkProgress(sink=sink.name, state="running")
        source, ranges = sources[sink.table], plan.spans[sink.table].ranges
        given = archive_source(source, options.bootstrap)
        try:
            ids = _topic_ids(source, options.bootstrap, {where.topic for where in ranges})
            for done in backfill_archive(spark, output.options, output.values, given, ranges, ids):
                rows, bad = progress.rows_out + done.rows, progress.bad_records + done.bad
                progress = replace(progress, rows_out=rows, bad_records=bad)
                view.progress([progress])
                if options.stop.is_set():
                    break
        except LakeError as error:
            raise PipelineFailed(f"sink '{sink.name}': {error}") from error
        except Exception as error:
            raise PipelineFailed(f"sink '{sink.name}': {cause_of(error)}") from error
        found.append(replace(progress, state="stopped"))
    return found


def _topic_ids(source: Source, bootstrap: str, topics: set[str]) -> dict[str, str]:
    with Cluster(client_of({BOOTSTRAP: bootstrap, **source.options})) as cluster:
        images = cluster.describe(topics)
    return {name: image.id.hex() for name, image in images.items() if image.id is not None}
