"""`/metrics`: what this gateway counts, for Prometheus."""

import asyncio

from msgspec import Struct

from headrace import __version__
from headrace.metrics import names
from headrace.metrics.exposition import Page, Snapshot, durations, put_process, render
from headrace.web.measured import HttpCounts
from headrace.web.messages import Answer, Request
from headrace.web.routes import Reply, Routes

from .health import GatewayHealth


class Anything(Struct, frozen=True):
    """Scrapers add parameters of their own."""


def metrics_routes(counts: HttpCounts, health: GatewayHealth) -> Routes:
    """`/metrics`, never refused for its rate."""
    routes = Routes(tag="Metrics", about="For Prometheus.")
    media = ("text/plain", "application/openmetrics-text")

    @routes.get(
        "/metrics",
        "What is counted.",
        answers={200: Reply("Metrics as text.", media=media)},
        query=Anything,
        is_open=True,
    )
    async def metrics(request: Request, query: Anything) -> Answer:
        snapshot = _snapshot(counts, (await health.state()).brokers)
        accept = request.fields.get(b"accept", b"").decode("latin-1")
        page = await asyncio.to_thread(_rendered, snapshot, accept)
        return Answer(200, page.body, page.content_type.encode())

    return routes


def _snapshot(counts: HttpCounts, brokers: int) -> Snapshot:
    snapshot = Snapshot(names.GATEWAY)
    snapshot.put("headrace_build_info", 1, __version__)
    snapshot.put("headrace_gateway_brokers", brokers)
    snapshot.put("headrace_gateway_requests_pending", counts.pending)
    snapshot.put("headrace_gateway_websockets", counts.websockets)
    for (method, route, status), count in counts.requests.items():
        snapshot.put("headrace_gateway_requests_total", count, method, route, str(status))
    for route, histogram in counts.durations.items():
        snapshot.put("headrace_gateway_request_seconds", durations(histogram), route)
    return snapshot


def _rendered(snapshot: Snapshot, accept: str) -> Page:
    put_process(snapshot)
    return render(snapshot, accept)
