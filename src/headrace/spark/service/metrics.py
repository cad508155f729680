"""`/metrics` of a service of pipelines, for Prometheus."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from headrace import __version__
from headrace.metrics.exposition import Page, Snapshot, put_process, render
from headrace.metrics.names import PIPELINES

from .model import Status

_OF_SINKS: Final = {
    "headrace_pipeline_rows_in_total": "rows_in",
    "headrace_pipeline_rows_out_total": "rows_out",
    "headrace_pipeline_bad_records_total": "bad_records",
    "headrace_pipeline_late_rows_total": "dropped_late",
    "headrace_pipeline_rows_per_second": "rows_per_second",
    "headrace_pipeline_lag_records": "lag",
    "headrace_pipeline_batch": "batch",
    "headrace_pipeline_state_rows": "state_rows",
    "headrace_pipeline_state_bytes": "state_bytes",
    "headrace_pipeline_query_restarts_total": "restarts",
}
"""Metrics that are fields of a sink's progress."""


def page_of(deployed: int, runners: int, is_cut_off: bool, statuses: list[Status], accept: str = "") -> Page:
    """The text of a scrape."""
    snapshot = Snapshot(PIPELINES)
    put_process(snapshot)
    snapshot.put("headrace_build_info", 1, __version__)
    snapshot.put("headrace_pipelines_deployed", deployed)
    snapshot.put("headrace_pipeline_runners", runners)
    snapshot.put("headrace_pipeline_service_cut_off", float(is_cut_off))
    for status in statuses:
        snapshot.put("headrace_pipeline_state", 1, status.name, status.state.value)
        snapshot.put("headrace_pipeline_restarts_total", status.restarts, status.name)
        snapshot.put("headrace_pipeline_failures", status.failures, status.name)
        for sink in status.sinks:
            _put_sink(snapshot, status.name, dict(sink))
    return render(snapshot, accept)


def _put_sink(snapshot: Snapshot, pipeline: str, sink: dict[str, Any]) -> None:
    labels = pipeline, str(sink.get("sink"))
    for metric, field in _OF_SINKS.items():
        value = sink.get(field)
        if isinstance(value, (int, float)):
            snapshot.put(metric, value, *labels)
    for rule, count in (sink.get("expectations") or {}).items():
        snapshot.put("headrace_pipeline_expectation_failures_total", count, *labels, rule)
    if sink.get("latency_ms") is not None:
        snapshot.put("headrace_pipeline_batch_seconds", sink["latency_ms"] / 1000, *labels)
    if sink.get("last_progress") is not None:
        moment = datetime.fromisoformat(sink["last_progress"]).timestamp()
        snapshot.put("headrace_pipeline_last_progress_timestamp_seconds", moment, *labels)


@contextmanager
def served(host: str, port: int, page: Callable[[str], Page]) -> Iterator[str]:
    """Serve `/metrics` and `/healthz` for the length of the block; the address, as HOST:PORT."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/healthz":
                self._answer(200, b"ok\n", "text/plain")
            elif path == "/metrics":
                told = page(self.headers.get("Accept", ""))
                self._answer(200, told.body, told.content_type)
            else:
                self._answer(404, b"there are /metrics and /healthz\n", "text/plain")

        def _answer(self, code: int, body: bytes, kind: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer((host, port), Handler)
    thread = threading.Thread(target=server.serve_forever, name="pipeline-metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
